// The bucket that a run communicates in, chosen by measurement: what collectives cost between these
// ranks, what computing costs on this machine, and the step that both predict for every size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/rehearsal.h"
#include "trainer/run_setup.h"
#include "trainer/world.h"

namespace tranche {

inline constexpr Collective kMeasuredCollectives[] = {Collective::kAllGather,
                                                      Collective::kReduceScatter};

// One size of one collective.
struct CollectiveTime {
  Collective kind = Collective::kAllGather;
  int64_t bytes = 0;   // that a rank sends
  double seconds = 0;  // of the slowest rank, the best of a few
};

// The whole array of the largest collective that is measured: the run's largest group, in bounds.
int64_t LargestMeasuredBytes(const RunSetup& setup);

// All ranks together, on streams as in training; the same on every rank. No larger sizes once one
// takes long.
absl::StatusOr<std::vector<CollectiveTime>> MeasureCollectives(const RunSetup& setup, World& world,
                                                               Comm& comm, Backend& backend);

// The line nearest to the times, with neither part below zero. Collectives
// that were not measured cost nothing.
CollectiveCosts FitCosts(const std::vector<CollectiveTime>& times);

// What a core's worth of computing reaches here while all ranks compute, and what it loses to
// collectives that run beside it: the same on every rank.
absl::StatusOr<MachineRates> MeasureRates(const RunSetup& setup, World& world, Comm& comm,
                                          Backend& backend, int threads,
                                          const CollectiveCosts& costs);

// A size and the step that is predicted for it.
struct BucketChoice {
  int64_t bucket_bytes = 0;
  double step_seconds = 0;
  int64_t collectives = 0;  // of a step
};

// Sizes from 64 KiB to the largest group, each twice the last, in ascending order.
absl::StatusOr<std::vector<BucketChoice>> PredictBuckets(const RunSetup& setup, int threads,
                                                         const MachineRates& rates);
// The shortest step; of steps within a hundredth of it, the one with the largest bucket, which
// leaves the least to chance.
const BucketChoice& BestBucket(const std::vector<BucketChoice>& choices);

}  // namespace tranche
