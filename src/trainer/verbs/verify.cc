// `tranche verify`.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/exit_codes.h"
#include "trainer/parity.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

absl::StatusOr<ParityOptions> ReadOptions(const Arguments& arguments) {
  ParityOptions options;
  TRANCHE_ASSIGN_OR_RETURN(options.recompute, ParseRecompute(arguments.Get("recompute", "none")));
  const std::string dtype = arguments.Get("dtype", "fp32");
  if (dtype != "fp32" && dtype != "bf16") {
    return absl::InvalidArgumentError(absl::StrCat("--dtype ", dtype, ": must be fp32 or bf16"));
  }
  if (dtype == "bf16") options.dtype = DType::kBFloat16;
  TRANCHE_ASSIGN_OR_RETURN(const int64_t threads, arguments.GetInt("threads", 0, 0, 4096));
  options.threads = static_cast<int>(threads);
  return options;
}

std::string Row(const std::string& name, const std::vector<ParityResult>& results, bool* passed) {
  std::string row;
  *passed = true;
  for (const ParityResult& result : results) {
    absl::StrAppendFormat(&row, "  %s %.1e/%.0e", result.quantity, result.error, result.tolerance);
    if (result.passed()) continue;
    *passed = false;
    absl::StrAppendFormat(&row, " OVER%s", result.where.empty() ? "" : " at " + result.where);
  }
  return absl::StrFormat("%-6s %-16s%s", *passed ? "ok" : "FAILED", name, row);
}

int Run(const Arguments& arguments) {
  const absl::StatusOr<ParityOptions> options = ReadOptions(arguments);
  if (!options.ok()) return ReportError(options.status());
  int failed = 0, unreadable = 0, total = 0;
  for (const std::string& path : arguments.positionals()) {
    // A shell's parity/* also matches the page that describes the folders.
    if (!IsDirectory(path) && FileExists(path) && arguments.positionals().size() > 1) {
      LogNote(absl::StrCat(path, " is no folder: passed over"));
      continue;
    }
    ++total;
    const absl::StatusOr<ParityCase> parity = ReadParityCase(path);
    if (!parity.ok()) {
      ReportError(parity.status());
      ++unreadable;
      continue;
    }
    const absl::StatusOr<std::vector<ParityResult>> results = RunParity(*parity, *options);
    if (!results.ok()) {
      ReportError(results.status());
      ++unreadable;
      continue;
    }
    bool passed = false;
    absl::PrintF("%s\n", Row(parity->name, *results, &passed));
    failed += !passed;
  }
  absl::PrintF("%d of %d folders inside tolerance (%s, recompute %s; largest error/tolerance)\n",
               total - failed - unreadable, total, DTypeName(options->dtype),
               Name(options->recompute));
  if (unreadable > 0 || total == 0) return kExitBadInput;
  return failed > 0 ? kExitFailed : kExitDone;
}

}  // namespace

Verb VerifyVerb() {
  return {
      .name = "verify",
      .summary = "Compares loss, gradients and training steps with a reference's.",
      .usage = "DIR... [flags]",
      .example = "tranche verify parity/*",
      .flags = {{"recompute", "none|selective|full", "What backward computes again."},
                {"dtype", "fp32|bf16", "bf16 compares losses only, within 0.1."},
                {"threads", "N", "Threads to compute with; 0 takes all there are."}},
      .min_positionals = 1,
      .max_positionals = -1,
      .run = Run,
  };
}

}  // namespace tranche
