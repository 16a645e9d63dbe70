#include "zero/rank_sum.h"

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zero/rank_sum.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tensor/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

template <typename T>
void SumParts(float* HWY_RESTRICT out, const void* const* parts, int64_t count, int64_t n,
              bool accumulate) {
  const auto part = [&](int64_t r) { return static_cast<const T*>(parts[r]); };
  // Four vectors at a time hide the latency of their chains of additions.
  constexpr int64_t kBlock = 4 * kLanes;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    const T* from = part(0) + i;
    VF sum0 = Load(from, Whole());
    VF sum1 = Load(from + kLanes, Whole());
    VF sum2 = Load(from + 2 * kLanes, Whole());
    VF sum3 = Load(from + 3 * kLanes, Whole());
    for (int64_t r = 1; r < count; ++r) {
      from = part(r) + i;
      sum0 = hn::Add(sum0, Load(from, Whole()));
      sum1 = hn::Add(sum1, Load(from + kLanes, Whole()));
      sum2 = hn::Add(sum2, Load(from + 2 * kLanes, Whole()));
      sum3 = hn::Add(sum3, Load(from + 3 * kLanes, Whole()));
    }
    float* to = out + i;
    if (accumulate) {
      sum0 = hn::Add(Load(to, Whole()), sum0);
      sum1 = hn::Add(Load(to + kLanes, Whole()), sum1);
      sum2 = hn::Add(Load(to + 2 * kLanes, Whole()), sum2);
      sum3 = hn::Add(Load(to + 3 * kLanes, Whole()), sum3);
    }
    Store(sum0, to, Whole());
    Store(sum1, to + kLanes, Whole());
    Store(sum2, to + 2 * kLanes, Whole());
    Store(sum3, to + 3 * kLanes, Whole());
  }
  ForVectors(n - i, [&](int64_t at, auto whole_or_part) {
    VF sum = Load(part(0) + i + at, whole_or_part);
    for (int64_t r = 1; r < count; ++r) {
      sum = hn::Add(sum, Load(part(r) + i + at, whole_or_part));
    }
    float* to = out + i + at;
    if (accumulate) sum = hn::Add(Load(to, whole_or_part), sum);
    Store(sum, to, whole_or_part);
  });
}

void SumFloats(float* out, const void* const* parts, int64_t count, int64_t n, bool accumulate) {
  SumParts<float>(out, parts, count, n, accumulate);
}
void SumBFloats(float* out, const void* const* parts, int64_t count, int64_t n, bool accumulate) {
  SumParts<BFloat16>(out, parts, count, n, accumulate);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche {
namespace cpu {

HWY_EXPORT(SumFloats);
HWY_EXPORT(SumBFloats);

void SumRanks(float* out, absl::Span<const void* const> parts, DType dtype, int64_t n,
              bool accumulate) {
  const auto sum =
      dtype == DType::kFloat32 ? HWY_DYNAMIC_DISPATCH(SumFloats) : HWY_DYNAMIC_DISPATCH(SumBFloats);
  sum(out, parts.data(), static_cast<int64_t>(parts.size()), n, accumulate);
}

}  // namespace cpu

void SumInRankOrder(float* out, absl::Span<const void* const> parts, DType dtype, int64_t n,
                    bool accumulate) {
  TRANCHE_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16)
      << "sums of " << DTypeName(dtype);
  cpu::SumRanks(out, parts, dtype, n, accumulate);
}

}  // namespace tranche
#endif  // HWY_ONCE
