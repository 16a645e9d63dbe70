#include "model/initialize.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/hash.h"
#include "base/rng.h"

namespace tranche {
namespace {

// Enough for any cutoff that leaves a distribution; a tiny one ends at its border instead.
constexpr uint64_t kMaxAttempts = 1000;

uint64_t NameKey(const ParamSpec& spec, uint64_t seed) {
  return DeriveKey(seed, std::stoull(Hash128(spec.name).substr(0, 16), nullptr, 16));
}

// The standard normal of an element; each attempt is another draw.
double Normal(uint64_t key, int64_t element, uint64_t attempt) {
  const auto bits = Philox(key, static_cast<uint64_t>(element) / 4, attempt);
  const size_t pair = static_cast<size_t>(element) % 4 / 2 * 2;
  // (0, 1]: the logarithm stays finite.
  const double radius = std::sqrt(-2 * std::log((bits[pair] + 1.0) * 0x1p-32));
  const double angle = 2 * std::numbers::pi * (bits[pair + 1] * 0x1p-32);
  return radius * (element % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace

void InitialValues(const ParamSpec& spec, uint64_t seed, int64_t first, int64_t count, float* out) {
  if (spec.init == InitKind::kZeros || spec.init == InitKind::kOnes) {
    std::fill_n(out, count, spec.init == InitKind::kOnes ? 1.0f : 0.0f);
  } else {
    const uint64_t key = NameKey(spec, seed);
    const bool truncated = spec.init == InitKind::kTruncatedNormal;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; ++i) {
      double value = Normal(key, first + i, 0);
      if (truncated) {
        for (uint64_t n = 1; std::abs(value) > spec.init_cutoff && n < kMaxAttempts; ++n) {
          value = Normal(key, first + i, n);
        }
        value = std::clamp(value, -spec.init_cutoff, spec.init_cutoff);
      }
      out[i] = static_cast<float>(value * spec.init_std);
    }
  }
  if (spec.init_zero_row >= 0) {
    const int64_t begin = std::max(spec.init_zero_row * spec.cols, first);
    const int64_t end = std::min((spec.init_zero_row + 1) * spec.cols, first + count);
    if (begin < end) std::fill_n(out + (begin - first), end - begin, 0.0f);
  }
}

}  // namespace tranche
