// What was measured between ranks, kept for their next start: on the same machines over the same
// links a run need not measure again.
//
// One small JSON file of rank 0's for every combination of host names, ranks on them, cores, data
// type and UCX settings, in $TRANCHE_CACHE_DIR, else $XDG_CACHE_HOME/tranche, else
// ~/.cache/tranche. TRANCHE_CACHE_DIR= (empty) keeps nothing. A file that is older than a week,
// that cannot be read or is of something else counts as none; one that cannot be written is a
// warning.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "trainer/rehearsal.h"
#include "trainer/run_setup.h"
#include "trainer/world.h"

namespace tranche {

struct KnownRates {
  MachineRates rates;
  std::string source;  // "measured now", "measured 3h12m ago (PATH)"
};

// All ranks together; the same on every rank. `comm`: the ranks that share shards.
absl::StatusOr<KnownRates> KnownOrMeasuredRates(const RunSetup& setup, World& world, Comm& comm,
                                                Backend& backend, int threads);

// Keeps what was measured elsewhere. All ranks together.
absl::Status KeepRates(const RunSetup& setup, World& world, Backend& backend,
                       const MachineRates& rates);

}  // namespace tranche
