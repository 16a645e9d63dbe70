// Verbs that can start ranks of themselves: `-n 4` runs the same verb, with its other flags, in
// four processes that find each other.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "trainer/cli.h"
#include "trainer/world.h"

namespace tranche {

// --ranks (also -n) and --oversubscribe, for the verb's list of flags.
std::vector<Flag> RankFlags();

// With --ranks: starts them and returns their exit code. Without: does `work` in this process's
// world (RunInWorld).
int RunOnRanks(const Verb& verb, const Arguments& arguments,
               const std::function<absl::StatusOr<int>(World&)>& work);

}  // namespace tranche
