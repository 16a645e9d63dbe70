// What a recipe leaves open about sharding, settled by all ranks together before a run.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "trainer/run_setup.h"
#include "trainer/world.h"

namespace tranche {

// Which layers stay gathered, and the bucket. What was settled, in words: "4, ZeRO stage 1, …".
// `shards`: the ranks that share shards, on `backend`.
absl::StatusOr<std::string> SettleSharding(World& world, Comm& shards, Backend& backend,
                                           int threads, RunSetup* setup);

}  // namespace tranche
