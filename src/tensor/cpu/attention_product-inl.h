// The small products of attention, compiled once per instruction set:
//   c[m, n] = start(c) + Σ_k a(m, k)·b[k, n]   over the k that a group of rows asks for,
// with c in registers (6 rows × 2 vectors). Each element is one chain of fused multiply-adds in the
// order of k that starts from c, so cutting the k range over several calls, or skipping zero terms,
// changes no bit.
#if defined(TRANCHE_TENSOR_CPU_ATTENTION_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRANCHE_TENSOR_CPU_ATTENTION_PRODUCT_INL_H_
#undef TRANCHE_TENSOR_CPU_ATTENTION_PRODUCT_INL_H_
#else
#define TRANCHE_TENSOR_CPU_ATTENTION_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "tensor/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

enum class Start { kZero, kAdd, kScale };  // kScale: c times a factor of its row

inline constexpr int64_t kBlockRows = 6;

struct Range {
  int64_t begin, end;
};

struct ProductArgs {
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  const float* row_factors;  // for Start::kScale
};

// R rows at m, V vectors at n. kTransposed: a(m, k) = a[k·stride + m], otherwise a[m·stride + k].
template <Start kStart, bool kTransposed, int R, int V>
HWY_INLINE void ProductBlock(const ProductArgs& p, int64_t m, int64_t n, Range k) {
  const DF d;
  VF acc[R][V];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      if constexpr (kStart == Start::kZero) {
        acc[r][v] = hn::Zero(d);
      } else {
        acc[r][v] = hn::LoadU(d, p.c + (m + r) * p.c_stride + n + v * kLanes);
        if constexpr (kStart == Start::kScale) {
          acc[r][v] = hn::Mul(acc[r][v], hn::Set(d, p.row_factors[m + r]));
        }
      }
    }
  }
  const int64_t row_step = kTransposed ? 1 : p.a_stride;
  const int64_t k_step = kTransposed ? p.a_stride : 1;
  const float* a = p.a + m * row_step + k.begin * k_step;
  const float* b = p.b + n + k.begin * p.b_stride;
  for (int64_t i = k.begin; i < k.end; ++i) {
    VF x[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) x[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const VF y = hn::Set(d, a[r * row_step]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[r][v] = hn::MulAdd(y, x[v], acc[r][v]);
    }
    a += k_step;
    b += p.b_stride;
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      hn::StoreU(acc[r][v], d, p.c + (m + r) * p.c_stride + n + v * kLanes);
    }
  }
}

// Not inlined: every caller's copy would cost compile time and no call is worth saving.
template <Start kStart, bool kTransposed, int V>
HWY_NOINLINE void ProductRows(const ProductArgs& p, int64_t rows, int64_t m, int64_t n, Range k) {
  switch (rows) {
    case 1:
      return ProductBlock<kStart, kTransposed, 1, V>(p, m, n, k);
    case 2:
      return ProductBlock<kStart, kTransposed, 2, V>(p, m, n, k);
    case 3:
      return ProductBlock<kStart, kTransposed, 3, V>(p, m, n, k);
    case 4:
      return ProductBlock<kStart, kTransposed, 4, V>(p, m, n, k);
    case 5:
      return ProductBlock<kStart, kTransposed, 5, V>(p, m, n, k);
    default:
      return ProductBlock<kStart, kTransposed, 6, V>(p, m, n, k);
  }
}

// c is [m_count, n_count rounded up to vectors]. range(m, m_end, n, n_end) gives the k of a block;
// an empty one leaves c alone.
template <Start kStart, bool kTransposed, class RangeOf>
HWY_INLINE void Product(const ProductArgs& p, int64_t m_count, int64_t n_count,
                        const RangeOf& range_of) {
  for (int64_t n = 0; n < n_count; n += 2 * kLanes) {
    const bool wide = n + kLanes < n_count;
    const int64_t n_end = std::min(n_count, n + 2 * kLanes);
    for (int64_t m = 0; m < m_count; m += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, m_count - m);
      const Range k = range_of(m, m + rows, n, n_end);
      if (k.begin >= k.end) continue;
      if (wide) {
        ProductRows<kStart, kTransposed, 2>(p, rows, m, n, k);
      } else {
        ProductRows<kStart, kTransposed, 1>(p, rows, m, n, k);
      }
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#endif  // TRANCHE_TENSOR_CPU_ATTENTION_PRODUCT_INL_H_
