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

// Rows are summed by fours into chunks and chunks in order, for accuracy; row by row, because a
// column by itself would visit a cache line per element.
template <typename T>
void ColumnSums(const Tensor& matrix, int64_t col, int64_t cols, float* sums) {
  constexpr int64_t kChunk = 64;
  HWY_ALIGN float chunk[kMaxSumCols];
  for (int64_t row = 0; row < matrix.rows; row += kChunk) {
    const int64_t end = std::min(matrix.rows, row + kChunk);
    std::fill(chunk, chunk + cols, 0.0f);
    int64_t i = row;
    for (; i + 4 <= end; i += 4) {
      const T* from = matrix.Row<T>(i) + col;
      ForVectors(cols, [&](int64_t j, auto extent) {
        const T* at = from + j;
        const VF first = hn::Add(Load(at, extent), Load(at + matrix.stride, extent));
        const VF second =
            hn::Add(Load(at + 2 * matrix.stride, extent), Load(at + 3 * matrix.stride, extent));
        Store(hn::Add(Load(chunk + j, extent), hn::Add(first, second)), chunk + j, extent);
      });
    }
    for (; i < end; ++i) {
      const T* from = matrix.Row<T>(i) + col;
      ForVectors(cols, [&](int64_t j, auto extent) {
        Store(hn::Add(Load(chunk + j, extent), Load(from + j, extent)), chunk + j, extent);
      });
    }
    ForVectors(cols, [&](int64_t j, auto extent) {
      Store(hn::Add(Load(sums + j, extent), Load(chunk + j, extent)), sums + j, extent);
    });
  }
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
