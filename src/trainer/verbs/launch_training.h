// The start of `tranche train` on several ranks of this host: by `tranche launch`, or because the
// recipe's [launch] says so.
#pragma once

#include "absl/status/statusor.h"
#include "trainer/cli.h"
#include "trainer/recipe.h"

namespace tranche {

// Runs the ranks to their end and returns their exit code (launch/local.h). What the recipe says of
// the launch, the flags of `tranche launch` say better; those of `tranche train` are passed on.
absl::StatusOr<int> LaunchTraining(const Recipe& recipe, const Arguments& arguments);

}  // namespace tranche
