// Rotary position embedding, "rotate half" (Su et al., "RoFormer", 2021), in place.
#include "base/check.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/rotary.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tensor/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

template <typename T>
void RotateRows(const Tensor& x, int64_t heads, const Tensor& positions, const Tensor& cosine,
                const Tensor& sine, bool inverse, int64_t begin, int64_t end) {
  const int64_t head_dim = x.cols / heads, half = cosine.cols;
  for (int64_t row = begin; row < end; ++row) {
    const int32_t position = positions.Row<int32_t>(0)[row];
    TRANCHE_CHECK(position >= 0 && position < cosine.rows) << position << " of " << cosine.rows;
    const float* c = cosine.Row<float>(position);
    const float* s = sine.Row<float>(position);
    for (int64_t head = 0; head < heads; ++head) {
      T* first = x.Row<T>(row) + head * head_dim;
      T* second = first + half;
      ForVectors(half, [&](int64_t i, auto part) HWY_ATTR {
        const VF a = Load(first + i, part), b = Load(second + i, part);
        const VF cos = Load(c + i, part), raw_sin = Load(s + i, part);
        const VF sin = inverse ? hn::Neg(raw_sin) : raw_sin;
        Store(hn::Sub(hn::Mul(a, cos), hn::Mul(b, sin)), first + i, part);
        Store(hn::Add(hn::Mul(b, cos), hn::Mul(a, sin)), second + i, part);
      });
    }
  }
}

void RotateRange(const Tensor& x, int64_t heads, const Tensor& positions, const Tensor& cosine,
                 const Tensor& sine, bool inverse, int64_t begin, int64_t end) {
  if (x.dtype == DType::kFloat32) {
    RotateRows<float>(x, heads, positions, cosine, sine, inverse, begin, end);
  } else {
    RotateRows<BFloat16>(x, heads, positions, cosine, sine, inverse, begin, end);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {

HWY_EXPORT(RotateRange);

void Rotary(Tensor x, int64_t heads, Tensor positions, Tensor cosine, Tensor sine, bool inverse,
            int threads) {
  TRANCHE_CHECK(x.dtype == DType::kFloat32 || x.dtype == DType::kBFloat16);
  TRANCHE_CHECK(heads > 0 && x.cols % heads == 0) << x.cols << " columns, " << heads << " heads";
  TRANCHE_CHECK_LE(2 * cosine.cols, x.cols / heads);
  TRANCHE_CHECK(sine.cols == cosine.cols && sine.rows == cosine.rows);
  TRANCHE_CHECK(positions.dtype == DType::kInt32 && positions.cols >= x.rows);
  const auto range = HWY_DYNAMIC_DISPATCH(RotateRange);
  ParallelFor(x.rows, RowGrain(x.cols), threads, [&](int64_t begin, int64_t end) {
    range(x, heads, positions, cosine, sine, inverse, begin, end);
  });
}

}  // namespace tranche::cpu
#endif  // HWY_ONCE
