// Sums of a matrix's columns, for gradients of biases: compiled once per instruction set.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace tranche::cpu {

// sums[j] += Σ over all rows of columns [col, col + cols), cols <= kMaxSumCols. The order of a sum
// depends on the number of rows alone.
inline constexpr int64_t kMaxSumCols = 512;
inline constexpr int64_t kSumRows = 16;  // rows summed in order before their sum is added to others
void AddColumnSums(const Tensor& matrix, int64_t col, int64_t cols, float* sums);

}  // namespace tranche::cpu
