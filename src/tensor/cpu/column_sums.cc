#include "tensor/cpu/column_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/column_sums.cc"
#include "hwy/foreach_target.h"

#include <algorithm>

#include "hwy/highway.h"
#include "tensor/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

// to[j] = Σ over rows [begin, end) in order, a vector of columns at a time: the lines of sixteen
// rows stay in cache.
template <typename T>
void SumRows(const Tensor& matrix, int64_t col, int64_t cols, int64_t begin, int64_t end,
             float* to) {
  const T* const from = matrix.Row<T>(begin) + col;
  ForVectors(cols, [&](int64_t j, auto extent) {
    VF sum = Load(from + j, extent);
    const T* at = from + j + matrix.stride;
    for (int64_t i = begin + 1; i < end; ++i, at += matrix.stride) {
      sum = hn::Add(sum, Load(at, extent));
    }
    Store(sum, to + j, extent);
  });
}

// Sixteen rows make a sum, sixteen of these a sum of sums, those add up: for accuracy, and in the
// order of PyTorch's `sum`.
template <typename T>
void ColumnSums(const Tensor& matrix, int64_t col, int64_t cols, float* sums) {
  HWY_ALIGN float sixteen[kMaxSumCols], group[kMaxSumCols], total[kMaxSumCols];
  const auto add = [&](const float* from, float* to) {
    ForVectors(cols, [&](int64_t j, auto extent) {
      Store(hn::Add(Load(to + j, extent), Load(from + j, extent)), to + j, extent);
    });
  };
  std::fill(total, total + cols, 0.0f);
  for (int64_t block = 0; block < matrix.rows; block += kSumRows * kSumRows) {
    const int64_t block_end = std::min(matrix.rows, block + kSumRows * kSumRows);
    std::fill(group, group + cols, 0.0f);
    for (int64_t row = block; row < block_end; row += kSumRows) {
      SumRows<T>(matrix, col, cols, row, std::min(block_end, row + kSumRows), sixteen);
      add(sixteen, group);
    }
    add(group, total);
  }
  add(total, sums);
}

void RunAddColumnSums(const Tensor& matrix, int64_t col, int64_t cols, float* sums) {
  matrix.dtype == DType::kFloat32 ? ColumnSums<float>(matrix, col, cols, sums)
                                  : ColumnSums<BFloat16>(matrix, col, cols, sums);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {

HWY_EXPORT(RunAddColumnSums);

void AddColumnSums(const Tensor& matrix, int64_t col, int64_t cols, float* sums) {
  HWY_DYNAMIC_DISPATCH(RunAddColumnSums)(matrix, col, cols, sums);
}

}  // namespace tranche::cpu
#endif  // HWY_ONCE
