// Conversions between the float types of tensor files, against independent arithmetic.
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "gtest/gtest.h"
#include "model/safetensors.h"

namespace tranche {
namespace {

double HalfValue(uint16_t half) {
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  const double sign = half & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? std::nan("") : sign * INFINITY;
  return sign *
         (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

TEST(Convert, EveryHalfReadsAsItsValueAndWritesBack) {
  std::vector<uint16_t> halves(65536);
  for (int i = 0; i < 65536; ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> floats(65536);
  ConvertElements(halves.data(), TensorType::kF16, floats.data(), TensorType::kF32, 65536);
  std::vector<uint16_t> back(65536);
  ConvertElements(floats.data(), TensorType::kF32, back.data(), TensorType::kF16, 65536);
  for (int i = 0; i < 65536; ++i) {
    const double value = HalfValue(halves[i]);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(floats[i]) && std::isnan(HalfValue(back[i]))) << i;
    } else {
      ASSERT_EQ(static_cast<double>(floats[i]), value) << i;
      ASSERT_EQ(std::signbit(floats[i]), (i & 0x8000) != 0) << i;
      ASSERT_EQ(back[i], halves[i]);
    }
  }
}

// Nearest of the two neighbours, ties to the even one, found by search among all values of the
// type.
uint16_t NearestHalf(float value) {
  const double magnitude = std::fabs(static_cast<double>(value));
  uint16_t low = 0, high = 0x7c00;
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (HalfValue(middle) <= magnitude ? low : high) = middle;
  }
  const double below = HalfValue(low), above = high == 0x7c00 ? 65536.0 : HalfValue(high);
  const bool up = magnitude - below > above - magnitude ||
                  (magnitude - below == above - magnitude && low % 2 == 1);
  return static_cast<uint16_t>((up ? high : low) | (std::signbit(value) ? 0x8000 : 0));
}

TEST(Convert, FloatsRoundToTheNearestHalfAndTiesToEven) {
  RandomSequence random(7);
  std::vector<float> floats = {
      0.0f,         -0.0f,        65504.0f,       65519.99f,      65520.0f,        1e30f,
      -65520.0f,    0x1p-24f,     0x1p-25f,       0x1.8p-25f,     0x1.000002p-25f, 0x1p-14f,
      0x1.ffcp-15f, 0x1.ffep-15f, 1.00048828125f, 1.00146484375f, 1e-40f};
  while (floats.size() < 60000) {
    // Exponents of halves and a little beyond; a quarter of them exact ties.
    uint32_t bits = random.Next32();
    bits = (bits & 0x807fffffu) | (static_cast<uint32_t>(95 + random.Below(52)) << 23);
    if (random.Below(4) == 0) bits = (bits & ~0x1fffu) | 0x1000u;
    floats.push_back(std::bit_cast<float>(bits));
  }
  std::vector<uint16_t> halves(floats.size());
  ConvertElements(floats.data(), TensorType::kF32, halves.data(), TensorType::kF16,
                  static_cast<int64_t>(floats.size()));
  for (size_t i = 0; i < floats.size(); ++i)
    ASSERT_EQ(halves[i], NearestHalf(floats[i])) << floats[i];
  const float inf = INFINITY;
  ConvertElements(&inf, TensorType::kF32, halves.data(), TensorType::kF16, 1);
  EXPECT_EQ(halves[0], 0x7c00);
}

TEST(Convert, EqualTypesAreCopiedBitByBitAndWideningIsExact) {
  RandomSequence random(9);
  std::vector<uint16_t> bits(3000), copy(3000);
  for (uint16_t& each : bits) each = static_cast<uint16_t>(random.Next32());
  ConvertElements(bits.data(), TensorType::kBF16, copy.data(), TensorType::kBF16, 3000);
  EXPECT_EQ(bits, copy);
  std::vector<float> floats(3000);
  std::vector<double> doubles(3000);
  ConvertElements(bits.data(), TensorType::kBF16, floats.data(), TensorType::kF32, 3000);
  ConvertElements(bits.data(), TensorType::kBF16, doubles.data(), TensorType::kF64, 3000);
  for (size_t i = 0; i < bits.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(floats[i]), static_cast<uint32_t>(bits[i]) << 16);
    EXPECT_TRUE(std::isnan(floats[i]) ? std::isnan(doubles[i])
                                      : doubles[i] == static_cast<double>(floats[i]))
        << i;
  }
}

TEST(Convert, NeedsNoAlignment) {
  std::string in(1 + 3 * 2, '\0'), out(1 + 3 * 4, '\0');
  const uint16_t halves[3] = {0x3c00, 0xc000, 0x3555};
  std::memcpy(in.data() + 1, halves, sizeof halves);
  ConvertElements(in.data() + 1, TensorType::kF16, out.data() + 1, TensorType::kF32, 3);
  float floats[3];
  std::memcpy(floats, out.data() + 1, sizeof floats);
  EXPECT_EQ(floats[0], 1.0f);
  EXPECT_EQ(floats[1], -2.0f);
  EXPECT_EQ(floats[2], static_cast<float>(HalfValue(0x3555)));
}

}  // namespace
}  // namespace tranche
