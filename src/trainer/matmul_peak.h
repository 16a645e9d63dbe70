// What this machine's matrix product reaches: the yardstick for a run's utilisation.
#pragma once

#include "absl/status/statusor.h"
#include "tensor/dtype.h"

namespace tranche {

// FLOP/s of square products of a size that fills the caches, the best of a few tries within about a
// third of a second. Takes and gives back its own memory (tens of MB).
absl::StatusOr<double> MeasureMatMulPeak(DType dtype, int threads);

}  // namespace tranche
