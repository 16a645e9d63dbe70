// Verbs that can start ranks of themselves: `-n 4` runs the same verb, with its other flags, in
// four processes that find each other.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "launch/local.h"
#include "trainer/cli.h"
#include "trainer/world.h"

namespace tranche {

// `verb` with --ranks (also -n) and --oversubscribe after its own flags.
Verb WithRankFlags(Verb verb);
// An error in a world of one, for verbs that measure what is between ranks.
absl::Status NeedsOthers(const World& world);

// What ranks of this program are started with, but for what their verb decides.
LocalLaunch RankLaunch(int64_t ranks);
// Adds those of `flags` that were given, as they were given.
void PassOn(const std::vector<Flag>& flags, const Arguments& arguments,
            std::vector<std::string>* words);

// With --ranks: starts them and returns their exit code. Without: does `work` in this process's
// world (RunInWorld).
int RunOnRanks(const Verb& verb, const Arguments& arguments,
               const std::function<absl::Status(World&)>& work);

}  // namespace tranche
