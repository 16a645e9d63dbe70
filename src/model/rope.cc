#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.h"

namespace tranche {
namespace {

constexpr double kPi = 3.14159265358979323846;

std::vector<float> Powers(double theta, int64_t dim) {
  std::vector<float> powers(dim / 2);
  for (int64_t i = 0; i < dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    powers[i] = static_cast<float>(
        std::pow(static_cast<double>(static_cast<float>(theta)), static_cast<double>(exponent)));
  }
  return powers;
}

float Llama3Frequency(const RopeConfig& rope, float frequency) {
  const float factor = static_cast<float>(rope.factor);
  const float old = static_cast<float>(rope.original_max_positions);
  const float wavelength = static_cast<float>(2 * kPi) / frequency;
  if (wavelength > static_cast<float>(rope.original_max_positions / rope.low_freq_factor))
    return frequency / factor;
  if (wavelength < static_cast<float>(rope.original_max_positions / rope.high_freq_factor))
    return frequency;
  const float smooth = (old / wavelength - static_cast<float>(rope.low_freq_factor)) /
                       static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

void ApplyYarn(const RopeConfig& rope, const std::vector<float>& powers,
               std::vector<float>& frequencies) {
  const double dim = static_cast<double>(rope.dim);
  const auto correction = [&](double rotations) {
    return dim * std::log(rope.original_max_positions / (rotations * 2 * kPi)) /
           (2 * std::log(rope.theta));
  };
  double low = correction(rope.beta_fast), high = correction(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (int64_t i = 0; i < rope.dim / 2; ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * powers[i]);
    frequencies[i] = interpolated * ramp + frequencies[i] * (1 - ramp);
  }
}

}  // namespace

std::vector<float> InverseFrequencies(const RopeConfig& rope, int64_t sequence_length) {
  TRANCHE_CHECK(rope.dim >= 2 && rope.dim % 2 == 0) << "rotary dimension " << rope.dim;
  double theta = rope.theta;
  if (rope.type == RopeType::kDynamic) {
    const double length = static_cast<double>(std::max(sequence_length, rope.max_positions));
    const double dim = static_cast<double>(rope.dim);
    theta *=
        std::pow(rope.factor * length / static_cast<double>(rope.max_positions) - (rope.factor - 1),
                 dim / (dim - 2));
  }
  const std::vector<float> powers = Powers(theta, rope.dim);
  std::vector<float> frequencies(powers.size());
  for (size_t i = 0; i < powers.size(); ++i) frequencies[i] = 1.0f / powers[i];

  switch (rope.type) {
    case RopeType::kDefault:
    case RopeType::kDynamic:
      break;
    case RopeType::kLinear:
      for (float& frequency : frequencies) frequency /= static_cast<float>(rope.factor);
      break;
    case RopeType::kLlama3:
      for (float& frequency : frequencies) frequency = Llama3Frequency(rope, frequency);
      break;
    case RopeType::kYarn:
      ApplyYarn(rope, powers, frequencies);
      break;
    case RopeType::kLongRope: {
      const auto& factors =
          sequence_length > rope.original_max_positions ? rope.long_factor : rope.short_factor;
      TRANCHE_CHECK_EQ(factors.size(), powers.size());
      for (size_t i = 0; i < powers.size(); ++i)
        frequencies[i] = 1.0f / (static_cast<float>(factors[i]) * powers[i]);
      break;
    }
  }
  return frequencies;
}

std::vector<int64_t> LengthClasses(const ModelConfig& config, int64_t max_length) {
  std::set<int64_t> ends;
  for (const RopeConfig& rope : config.ropes) {
    if (rope.type == RopeType::kLongRope && rope.original_max_positions < max_length)
      ends.insert(rope.original_max_positions);
  }
  return {ends.begin(), ends.end()};
}

}  // namespace tranche
