// Packing for products: parts of matrices to panels [k][kWidth] of fp32, kDepth·kWidth floats
// apart, the last padded with zeros. Compiled once per instruction set.

// clang-format off
#if defined(TRANCHE_TENSOR_CPU_GEMM_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRANCHE_TENSOR_CPU_GEMM_PACK_INL_H_
#undef TRANCHE_TENSOR_CPU_GEMM_PACK_INL_H_
#else
#define TRANCHE_TENSOR_CPU_GEMM_PACK_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

inline constexpr int64_t kLineFloats = 16;  // of a cache line
HWY_INLINE void Prefetch(const void* at) { __builtin_prefetch(at); }
// Into the second-level cache.
HWY_INLINE void PrefetchFar(const void* at) { __builtin_prefetch(at, 0, 2); }

// Panels [depth][kWidth] of columns of a matrix [depth, cols] whose rows are contiguous: a few rows
// at a time, because a panel by itself would visit a cache line for a few of its elements, and a
// row by itself all panels, whose like places fall into the same sets of the cache.
template <int64_t kWidth, typename T>
void PackColumns(const T* from, int64_t stride, int64_t cols, int64_t depth, float* to) {
  constexpr int64_t kCovered = (kWidth + kLanes - 1) / kLanes * kLanes;
  constexpr int64_t kRows = 4, kAhead = 2 * kRows;
  for (int64_t first = 0; first < depth; first += kRows) {
    const int64_t end = std::min(depth, first + kRows);
    float* panel = to;
    for (int64_t col = 0; col < cols; col += kWidth, panel += kWidth * kDepth) {
      for (int64_t k = first; k < end; ++k) {
        const T* source = from + k * stride + col;
        float* target = panel + k * kWidth;
        if (k + kAhead < depth) Prefetch(source + kAhead * stride);
        // Whole vectors may run over into the panel's next k, which comes next. Behind the last k
        // lies another panel.
        if (col + kCovered <= cols && (kCovered == kWidth || k + 1 < depth)) {
          for (int64_t i = 0; i < kCovered; i += kLanes) {
            Store(Load(source + i, Whole()), target + i, Whole());
          }
        } else {
          for (int64_t i = 0; i < kWidth; ++i) {
            target[i] = col + i < cols ? static_cast<float>(source[i]) : 0.0f;
          }
        }
      }
    }
  }
}

// Packs four rows as columns j … j + 3 of a panel [depth][kWidth], transposed in 4×4 blocks.
// Returns the k reached.
template <int64_t kWidth, typename T>
HWY_INLINE int64_t PackFourRows([[maybe_unused]] const T* row, [[maybe_unused]] int64_t stride,
                                [[maybe_unused]] int64_t depth, [[maybe_unused]] float* target) {
  int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR  // which has no vectors to interleave
  const hn::CappedTag<float, 4> d;
  const hn::Repartition<uint64_t, decltype(d)> pairs;
  const auto pair = [&](auto v) { return hn::BitCast(pairs, v); };
  for (; k + 4 <= depth; k += 4, target += 4 * kWidth) {
    const auto r0 = LoadAs(d, row + k), r1 = LoadAs(d, row + stride + k);
    const auto r2 = LoadAs(d, row + 2 * stride + k), r3 = LoadAs(d, row + 3 * stride + k);
    const auto low01 = pair(hn::InterleaveLower(d, r0, r1)),
               low23 = pair(hn::InterleaveLower(d, r2, r3));
    const auto high01 = pair(hn::InterleaveUpper(d, r0, r1)),
               high23 = pair(hn::InterleaveUpper(d, r2, r3));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, target);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, target + kWidth);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, target + 2 * kWidth);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, target + 3 * kWidth);
  }
#endif
  return k;
}

// Panels [depth][kWidth] of rows of a matrix [cols, depth] whose rows are contiguous.
template <int64_t kWidth, typename T>
void PackTransposed(const T* from, int64_t stride, int64_t cols, int64_t depth, float* to) {
  for (int64_t col = 0; col < cols; col += kWidth, to += kWidth * kDepth) {
    const int64_t width = std::min(kWidth, cols - col);
    if (width < kWidth) std::memset(to, 0, static_cast<size_t>(depth * kWidth) * sizeof(float));
    for (int64_t j = 0; j < width; j += 4) {
      // Where fours do not make up the width, the last of them overlaps its neighbour.
      const int64_t first = width == kWidth ? std::min(j, kWidth - 4) : j;
      const T* row = from + (col + first) * stride;
      const int64_t count = std::min<int64_t>(4, width - first);
      const int64_t done = count == 4 ? PackFourRows<kWidth>(row, stride, depth, to + first) : 0;
      for (int64_t k = done; k < depth; ++k) {
        for (int64_t i = 0; i < count; ++i)
          to[k * kWidth + first + i] = static_cast<float>(row[i * stride + k]);
      }
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#endif  // TRANCHE_TENSOR_CPU_GEMM_PACK_INL_H_
