// How long training steps of a recipe take on random tokens: what `bench train` and `tune` measure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/run_setup.h"
#include "trainer/world.h"

namespace tranche {

struct StepTimes {
  std::vector<double> seconds;  // of each step after the warm-up, in ascending order
  double exposed_seconds = 0;   // of a step: what computing waited for other ranks, on average
  double loss = 0;              // after the last
  double flops = 0;             // of a step of all ranks, without recompute
  int64_t arena_bytes = 0;      // of one rank

  double best() const { return seconds.front(); }
  double median() const { return seconds[seconds.size() / 2]; }
};

// All ranks together. `comm`: of them, on `backend`; null for one rank.
absl::StatusOr<StepTimes> MeasureSteps(const RunSetup& setup, Backend& backend, Comm* comm,
                                       int threads, int64_t warm_up, int64_t steps);

}  // namespace tranche
