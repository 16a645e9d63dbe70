// `tranche train` from a loaded recipe to an exit code.
#pragma once

#include "absl/status/statusor.h"
#include "trainer/exit_codes.h"
#include "trainer/recipe.h"

namespace tranche {

struct TrainOptions {
  bool dry_run = false;    // check everything and print the plan; write nothing
  bool overwrite = false;  // remove an earlier run from the output directory first
};

absl::StatusOr<ExitCode> RunTraining(const Recipe& recipe, const TrainOptions& options);

}  // namespace tranche
