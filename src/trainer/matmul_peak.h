// What this machine's matrix product reaches: the yardstick for a run's utilisation.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "tensor/arena.h"
#include "tensor/backend.h"

namespace tranche {

// Square products of a size that fills the caches, on a backend and in memory of their own (tens of
// MB).
class Products {
 public:
  static absl::StatusOr<Products> Create(DType dtype, int threads);

  static double Flops();      // of one
  double Seconds(int count);  // that so many take, one after the other
  double Peak();              // FLOP/s, the best of those of about a third of a second

 private:
  Products(std::unique_ptr<Backend> backend, Arena arena);

  std::unique_ptr<Backend> backend_;
  Arena arena_;
  std::unique_ptr<Stream> stream_;
  MatMulArgs args_;
};

// The peak of products that are made for it.
absl::StatusOr<double> MeasureMatMulPeak(DType dtype, int threads);

}  // namespace tranche
