#include "trainer/verbs/inspect_checkpoint.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/units.h"
#include "nlohmann/json.hpp"
#include "trainer/checkpoint.h"

namespace tranche {

absl::StatusOr<std::string> InspectCheckpoint(const std::string& path, bool json) {
  TRANCHE_ASSIGN_OR_RETURN(const CheckpointManifest manifest, VerifyCheckpoint(path));
  if (json) {
    nlohmann::ordered_json out = {{"step", manifest.step},
                                  {"total_steps", manifest.schedule.total_steps},
                                  {"total_tokens", manifest.total_tokens},
                                  {"samples", manifest.samples()},
                                  {"nonfinite_steps", manifest.nonfinite_steps},
                                  {"no_target_steps", manifest.no_target_steps},
                                  {"precision", manifest.precision},
                                  {"data_fingerprint", manifest.data_fingerprint},
                                  {"files", nlohmann::ordered_json::array()}};
    for (const auto& file : manifest.files) {
      out["files"].push_back(
          {{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.checksum}});
    }
    return out.dump(2) + "\n";
  }
  std::string text = absl::StrFormat(
      "checkpoint   step %d of %d, %s tokens, %s samples; trained for %s in %s\n", manifest.step,
      manifest.schedule.total_steps, FormatInteger(manifest.total_tokens),
      FormatInteger(manifest.samples()), FormatSeconds(manifest.seconds), manifest.precision);
  absl::StrAppendFormat(&text, "schedule     %s, peak %.3g; the next step's rate is %.6g\n",
                        manifest.schedule_name, manifest.schedule.peak,
                        manifest.finished() ? 0 : manifest.schedule.At(manifest.step + 1));
  absl::StrAppendFormat(&text, "skipped      %d steps not finite, %d without a target\n",
                        manifest.nonfinite_steps, manifest.no_target_steps);
  for (const auto& file : manifest.files) {
    absl::StrAppendFormat(&text, "file         %-22s %12s  %s  ok\n", file.name,
                          FormatBytes(file.bytes), file.checksum);
  }
  return text;
}

}  // namespace tranche
