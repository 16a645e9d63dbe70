#include "trainer/step_line.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

const char* OutcomeName(StepReport::Outcome outcome) {
  switch (outcome) {
    case StepReport::Outcome::kUpdated:
      return "updated";
    case StepReport::Outcome::kNonFinite:
      return "nonfinite";
    case StepReport::Outcome::kNoTargets:
      return "no_targets";
  }
  return "?";
}

double Rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

}  // namespace

std::string StepLine(const StepReport& r) {
  std::string line =
      absl::StrFormat("step %d/%d (%.1f%%)", r.step, r.total_steps,
                      100.0 * static_cast<double>(r.step) / static_cast<double>(r.total_steps));
  if (r.outcome == StepReport::Outcome::kNoTargets) {
    absl::StrAppend(&line, " | no target in this batch, no update");
  } else {
    absl::StrAppendFormat(&line, " | loss %.4f", r.loss);
    if (r.next_sentence_loss) absl::StrAppendFormat(&line, " | nsp %.4f", *r.next_sentence_loss);
    absl::StrAppendFormat(&line, " | grad_norm %.3f", r.grad_norm);
    if (r.outcome == StepReport::Outcome::kNonFinite) {
      absl::StrAppend(&line, " | NOT FINITE, update skipped");
    }
  }
  absl::StrAppendFormat(&line, " | lr %.2e | tok/s %s", r.learning_rate,
                        FormatCount(Rate(static_cast<double>(r.step_tokens), r.seconds)));
  if (r.peak_flops > 0) {
    // A share above 1 says that the peak is none.
    const double share = Rate(r.model_flops, r.seconds) / r.peak_flops;
    absl::StrAppend(&line, " | mfu ",
                    share > 1 ? std::string(">100%") : absl::StrFormat("%.1f%%", 100 * share));
  }
  absl::StrAppend(&line, " | mem ", FormatBytes(r.memory_bytes));
  absl::StrAppendFormat(&line, " | data %.1f%%", 100 * Rate(r.data_seconds, r.seconds));
  absl::StrAppend(&line, " | step ", FormatSeconds(r.seconds), " | tokens ",
                  FormatCount(static_cast<double>(r.total_tokens)), " | skipped ", r.skipped_steps,
                  " | eta ", FormatSeconds(r.eta_seconds));
  return line;
}

std::string StepJson(const StepReport& r) {
  nlohmann::ordered_json line = {{"event", "step"}, {"step", r.step}};
  line["outcome"] = OutcomeName(r.outcome);
  if (r.outcome != StepReport::Outcome::kNoTargets) {
    line["loss"] = r.loss;
    if (r.next_sentence_loss) line["next_sentence_loss"] = *r.next_sentence_loss;
    line["grad_norm"] = r.grad_norm;
  }
  line["lr"] = r.learning_rate;
  line["tokens"] = r.step_tokens;
  line["predicted_tokens"] = r.step_predicted;
  line["total_tokens"] = r.total_tokens;
  line["seconds"] = r.seconds;
  line["data_seconds"] = r.data_seconds;
  line["model_flops"] = r.model_flops;
  line["memory_bytes"] = r.memory_bytes;
  line["skipped_steps"] = r.skipped_steps;
  return line.dump();
}

}  // namespace tranche
