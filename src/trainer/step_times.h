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
  ExposedSeconds exposed;       // of all measured steps
  double loss = 0;              // after the last
  double flops = 0;             // of a step of all ranks, without recompute
  int64_t arena_bytes = 0;      // of one rank

  double best() const { return seconds.front(); }
  double per_step(double sum) const { return sum / static_cast<double>(seconds.size()); }
  double median() const { return seconds[seconds.size() / 2]; }
};

// All ranks together. `comms`: on `backend`.
absl::StatusOr<StepTimes> MeasureSteps(const RunSetup& setup, Backend& backend,
                                       const CommGroups& comms, int threads, int64_t warm_up,
                                       int64_t steps);

}  // namespace tranche
