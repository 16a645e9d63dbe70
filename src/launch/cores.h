// The cores of this host, and which of them each rank gets.
#pragma once

#include <sched.h>

#include <vector>

#include "absl/status/statusor.h"

namespace tranche {

// What one rank may run on.
struct RankCores {
  cpu_set_t set;
  int cores = 0;
};

// Deals out the cores that this process may use: the same number to each rank, in order, no core to
// two ranks; what does not go round is left free. With more ranks than cores FailedPrecondition,
// or, where `oversubscribe`, ranks take turns on the cores.
absl::StatusOr<std::vector<RankCores>> DealCores(int ranks, bool oversubscribe);

}  // namespace tranche
