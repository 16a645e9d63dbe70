// `tranche train` from a loaded recipe to an exit code.
#pragma once

#include "absl/status/statusor.h"
#include "trainer/exit_codes.h"
#include "trainer/recipe.h"
#include "trainer/world.h"

namespace tranche {

struct TrainOptions {
  bool dry_run = false;    // check everything and print the plan; write nothing
  bool overwrite = false;  // remove an earlier run from the output directory first
};

// One rank's part of the run, which is all of it in a world of one.
absl::StatusOr<ExitCode> RunTraining(const Recipe& recipe, const TrainOptions& options,
                                     World& world);

}  // namespace tranche
