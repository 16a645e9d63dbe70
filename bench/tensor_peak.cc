#include "tensor_peak.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor_peak.cc"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tranche {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains hide the latency of two units of up to six cycles. Returns a value so that nothing
// is left out.
float RunChains(int64_t rounds) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999f), addend = hn::Set(d, 0.001f);
  // Each chain has a value of its own, or the compiler would keep one for all.
  auto a = hn::Set(d, 1.0f), b = hn::Set(d, 1.0625f), c = hn::Set(d, 1.125f);
  auto e = hn::Set(d, 1.1875f), f = hn::Set(d, 1.25f), g = hn::Set(d, 1.3125f);
  auto h = hn::Set(d, 1.375f), i = hn::Set(d, 1.4375f), j = hn::Set(d, 1.5f);
  auto k = hn::Set(d, 1.5625f), l = hn::Set(d, 1.625f), m = hn::Set(d, 1.6875f);
  for (int64_t round = 0; round < rounds; ++round) {
    a = hn::MulAdd(a, factor, addend), b = hn::MulAdd(b, factor, addend),
    c = hn::MulAdd(c, factor, addend);
    e = hn::MulAdd(e, factor, addend), f = hn::MulAdd(f, factor, addend),
    g = hn::MulAdd(g, factor, addend);
    h = hn::MulAdd(h, factor, addend), i = hn::MulAdd(i, factor, addend),
    j = hn::MulAdd(j, factor, addend);
    k = hn::MulAdd(k, factor, addend), l = hn::MulAdd(l, factor, addend),
    m = hn::MulAdd(m, factor, addend);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(h, i))),
              hn::Add(hn::Add(j, k), hn::Add(l, m)));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

int64_t FlopsPerRound() {
  return 12 * 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche {

HWY_EXPORT(RunChains);
HWY_EXPORT(FlopsPerRound);

double MeasurePeakFlops(int threads) {
  constexpr int64_t kRounds = 4'000'000;
  double best = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    float sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += HWY_DYNAMIC_DISPATCH(RunChains)(kRounds);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (sum > 0) {
      best = std::max(best, static_cast<double>(kRounds * HWY_DYNAMIC_DISPATCH(FlopsPerRound)()) *
                                threads / seconds.count());
    }
  }
  return best;
}

}  // namespace tranche
#endif  // HWY_ONCE
