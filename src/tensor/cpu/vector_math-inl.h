// The exponential on vectors, compiled once per instruction set.
#if defined(TRANCHE_TENSOR_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRANCHE_TENSOR_CPU_VECTOR_MATH_INL_H_
#undef TRANCHE_TENSOR_CPU_VECTOR_MATH_INL_H_
#else
#define TRANCHE_TENSOR_CPU_VECTOR_MATH_INL_H_
#endif

#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x for x in [-87.33, 88.72], else anything but for NaN, which stays NaN until the exponent.
// x = n·ln2 + r with |r| <= ln2/2, ln2 in two parts; e^r from an interpolation of (e^r − 1 − r)/r²
// at six Chebyshev nodes (relative error of e^r: 3e-10, so that what remains is rounding).
template <class D>
HWY_INLINE hn::Vec<D> ExpUnchecked(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5·2^23 rounds to an integer and leaves it in the low bits of the mantissa.
  const auto magic = hn::Set(d, 12582912.0f);
  const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const auto n = hn::Sub(shifted, magic);
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693145752f), x);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6f), r);
  auto p = hn::MulAdd(hn::Set(d, 1.98527618e-4f), r, hn::Set(d, 1.39304355e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.33336078e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.16664854e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166666672f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(hn::Mul(r, r), p, r);
  p = hn::Add(p, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
}

// e^x for x <= 0 to about 1 ulp; 0 where the result would not be a normal number; NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> ExpNonPositive(D d, hn::Vec<D> x) {
  // -87.33654 is ln of the smallest normal number.
  const auto result = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.33654f)), ExpUnchecked(d, x));
  return hn::IfThenElse(hn::Eq(x, x), result, x);
}

// The same for any x; infinity where the result would be too large.
template <class D>
HWY_INLINE hn::Vec<D> ExpOfAny(D d, hn::Vec<D> x) {
  const auto infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.72283f)), infinity, ExpNonPositive(d, x));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#endif  // TRANCHE_TENSOR_CPU_VECTOR_MATH_INL_H_
