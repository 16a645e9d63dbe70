// Vectors of fp32 over memory of fp32 or bf16, full or partial. Included once per instruction set
// (Highway's foreach_target). A partial vector is loaded with zeros behind its end and computed
// like a full one, so that tails give the same bits as bodies.

// clang-format off
#if defined(TRANCHE_TENSOR_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRANCHE_TENSOR_CPU_VECTOR_INL_H_
#undef TRANCHE_TENSOR_CPU_VECTOR_INL_H_
#else
#define TRANCHE_TENSOR_CPU_VECTOR_INL_H_
#endif
// clang-format on

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
inline constexpr int64_t kLanes = HWY_LANES(float);

// How much of a vector a load or store touches.
struct Whole {};
struct Part {
  int64_t count;
};

template <class D>
HWY_INLINE hn::Vec<D> LoadAs(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadAs(D d, const BFloat16* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class D>
HWY_INLINE void StoreAs(D d, hn::Vec<D> v, float* to) {
  hn::StoreU(v, d, to);
}
// Rounds to nearest even; NaN stays NaN.
template <class D>
HWY_INLINE void StoreAs(D, hn::Vec<D> v, BFloat16* to) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const hn::Rebind<int32_t, D> i32;
  const auto raw = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(raw), hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(raw, hn::Add(odd, hn::Set(d32, 0x7fffu))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(raw), hn::Set(d32, 0x40u));
  // Highway's Ne is false for NaN; Eq is too.
  const auto number = hn::RebindMask(d32, hn::Eq(v, v));
  const auto bits = hn::BitCast(i32, hn::IfThenElse(number, rounded, quiet));
  hn::StoreU(hn::DemoteTo(d16, bits), d16, reinterpret_cast<uint16_t*>(to));
}

template <typename T>
HWY_INLINE VF Load(const T* from, Whole) {
  return LoadAs(DF(), from);
}
template <typename T>
HWY_INLINE VF Load(const T* from, Part part) {
  HWY_ALIGN T buffer[kLanes] = {};
  std::memcpy(buffer, from, static_cast<size_t>(part.count) * sizeof(T));
  return LoadAs(DF(), buffer);
}
template <typename T>
HWY_INLINE void Store(VF v, T* to, Whole) {
  StoreAs(DF(), v, to);
}
template <typename T>
HWY_INLINE void Store(VF v, T* to, Part part) {
  HWY_ALIGN T buffer[kLanes];
  StoreAs(DF(), v, buffer);
  std::memcpy(to, buffer, static_cast<size_t>(part.count) * sizeof(T));
}

// Rounds to T and back.
template <typename T>
HWY_INLINE VF RoundTo(VF v) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return v;
  } else {
    HWY_ALIGN T buffer[kLanes];
    StoreAs(DF(), v, buffer);
    return LoadAs(DF(), buffer);
  }
}

// Calls body(i, Whole) for each full vector of [0, n) and body(i, Part) for the rest.
template <class Body>
HWY_INLINE void ForVectors(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Whole());
  if (i < n) body(i, Part{n - i});
}

// Sum of the lanes in an order that is the same on every call.
HWY_INLINE float SumLanes(VF v) { return hn::GetLane(hn::SumOfLanes(DF(), v)); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#endif  // TRANCHE_TENSOR_CPU_VECTOR_INL_H_
