// Dropout: its masks are those of DropoutBits, whatever the layout, and look random.
#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "attention_reference.h"

namespace tranche {
namespace {

using test::Matrix;

struct Case {
  Matrix x, residual;
  std::vector<uint64_t> token_keys;
  DropoutArgs args;

  Case(DType dtype, int64_t rows, int64_t cols, float probability, int64_t extra_stride = 0)
      : x(dtype, rows, cols, extra_stride), residual(dtype, rows, cols, 2 * extra_stride) {
    x.Randomise(1);
    residual.Randomise(2);
    RandomSequence random(3);
    for (int64_t r = 0; r < rows; ++r) token_keys.push_back(random.Next64());
    args.probability = probability;
    args.key = 0xfedcba9876543210u;
    args.site = 0x80000005u;
    args.token_keys = MakeTensor(token_keys.data(), DType::kUInt64, 1, rows);
  }
  bool Kept(int64_t row, int64_t column) const {
    return UniformFloat(DropoutBits(args.key, args.site, token_keys[static_cast<size_t>(row)],
                                    static_cast<uint64_t>(column))) >= args.probability;
  }
};

TEST(Dropout, KeepsExactlyTheElementsOfTheMaskAndScalesThem) {
  for (const int64_t cols : {1, 7, 8, 15, 16, 17, 63, 64, 65, 100, 257}) {
    for (const float probability : {0.0f, 0.1f, 0.5f, 0.999f}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        for (const bool with_residual : {false, true}) {
          Case c(dtype, 5, cols, probability, 3);
          Matrix y(dtype, 5, cols, 1);
          cpu::Dropout(c.args, c.x.tensor(), with_residual ? c.residual.tensor() : Tensor{},
                       y.tensor(), 2);
          const float scale = 1.0f / (1.0f - probability);
          for (int64_t row = 0; row < 5; ++row) {
            for (int64_t col = 0; col < cols; ++col) {
              const float x = c.Kept(row, col) ? c.x.At(row, col) * scale : c.x.At(row, col) * 0.0f;
              const float sum = with_residual ? x + c.residual.At(row, col) : x;
              const float want = dtype == DType::kFloat32 ? sum : static_cast<float>(BFloat16(sum));
              ASSERT_EQ(y.At(row, col), want) << row << ", " << col;
            }
          }
        }
      }
    }
  }
}

TEST(Dropout, InPlaceOnItsInputOrItsResidualGivesTheSame) {
  Case c(DType::kFloat32, 4, 70, 0.3f);
  Matrix y(DType::kFloat32, 4, 70);
  cpu::Dropout(c.args, c.x.tensor(), c.residual.tensor(), y.tensor(), 1);
  Matrix over_x = c.x, over_residual = c.residual;
  cpu::Dropout(c.args, over_x.tensor(), c.residual.tensor(), over_x.tensor(), 1);
  cpu::Dropout(c.args, c.x.tensor(), over_residual.tensor(), over_residual.tensor(), 1);
  EXPECT_EQ(over_x.wide, y.wide);
  EXPECT_EQ(over_residual.wide, y.wide);
}

TEST(Dropout, DependsOnNeitherThreadsNorTheRowsOfACall) {
  Case c(DType::kFloat32, 700, 130, 0.2f);
  Matrix one(DType::kFloat32, 700, 130);
  cpu::Dropout(c.args, c.x.tensor(), {}, one.tensor(), 1);
  for (const int threads : {2, 3, 5}) {
    Matrix y(DType::kFloat32, 700, 130);
    cpu::Dropout(c.args, c.x.tensor(), {}, y.tensor(), threads);
    EXPECT_EQ(one.wide, y.wide);
  }
  Matrix part(DType::kFloat32, 9, 130);
  DropoutArgs args = c.args;
  args.token_keys = c.args.token_keys.SliceCols(321, 9);
  cpu::Dropout(args, c.x.tensor().SliceRows(321, 9), {}, part.tensor(), 2);
  EXPECT_EQ(std::memcmp(part.wide.data(), one.wide.data() + 321 * 130, 9 * 130 * sizeof(float)), 0);
}

// Differences of the kept fraction from its expectation, in standard deviations.
double Deviations(int64_t kept, int64_t count, double keep) {
  const double n = static_cast<double>(count);
  return (static_cast<double>(kept) - n * keep) / std::sqrt(n * keep * (1 - keep));
}

TEST(Dropout, KeepsTheExpectedShareAndDrawsSitesKeysTokensAndColumnsIndependently) {
  constexpr int64_t kRows = 400, kCols = 1000;
  const auto mask = [](const DropoutArgs& args) {
    Matrix ones(DType::kFloat32, kRows, kCols);
    std::fill(ones.wide.begin(), ones.wide.end(), 1.0f);
    cpu::Dropout(args, ones.tensor(), {}, ones.tensor(), 2);
    return ones.wide;
  };
  const Case c(DType::kFloat32, kRows, kCols, 0.25f);
  const std::vector<float> base = mask(c.args);
  int64_t kept = 0;
  for (const float v : base) kept += v != 0 ? 1 : 0;
  EXPECT_LT(std::abs(Deviations(kept, kRows * kCols, 0.75)), 4.5);
  // Two independent masks agree with probability 0.75² + 0.25².
  const auto agreement = [&](const std::vector<float>& other, int64_t shift) {
    int64_t same = 0;
    const int64_t count = kRows * kCols - shift;
    for (int64_t i = 0; i < count; ++i) {
      same += (base[static_cast<size_t>(i)] != 0) == (other[static_cast<size_t>(i + shift)] != 0);
    }
    return std::abs(Deviations(same, count, 0.625));
  };
  DropoutArgs other = c.args;
  other.site += 1;
  EXPECT_LT(agreement(mask(other), 0), 4.5);
  other = c.args;
  other.key += 1;
  EXPECT_LT(agreement(mask(other), 0), 4.5);
  for (const int64_t shift : {1, 8, 16, 64, 1000}) EXPECT_LT(agreement(base, shift), 6);
}

TEST(DropoutBits, AttentionAndColumnsNumberTheirElementsWithoutOverlap) {
  EXPECT_EQ(AttentionDropoutElement(0, 5), 5u);
  EXPECT_NE(AttentionDropoutElement(1, 0), AttentionDropoutElement(0, (1 << 22) - 1));
  EXPECT_LT(AttentionDropoutElement(4095, (1 << 22) - 1), uint64_t{kDropoutMaxElements});
  // Distinct elements read distinct words.
  std::vector<uint32_t> words;
  for (uint64_t e = 0; e < 256; ++e) words.push_back(DropoutBits(1, 2, 3, e));
  std::sort(words.begin(), words.end());
  EXPECT_EQ(std::unique(words.begin(), words.end()), words.end());
}

}  // namespace
}  // namespace tranche
