// Rotary positions against plain double arithmetic.
#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "attention_reference.h"

namespace tranche {
namespace {

using test::Matrix;

struct Tables {
  Matrix cosine, sine;
  std::vector<int32_t> positions;

  Tables(int64_t half, int64_t rows) : cosine(DType::kFloat32, 512, half), sine(cosine) {
    for (int64_t p = 0; p < 512; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(p) *
                             std::pow(1e4, -static_cast<double>(i) / static_cast<double>(half));
        cosine.Set(p, i, static_cast<float>(std::cos(angle)));
        sine.Set(p, i, static_cast<float>(std::sin(angle)));
      }
    }
    RandomSequence random(11);
    for (int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<int32_t>(random.Below(512)));
  }
  void Apply(Matrix& x, int64_t heads, bool inverse, int threads) {
    cpu::Rotary(x.tensor(), heads, MakeTensor(positions.data(), DType::kInt32, 1, x.rows),
                cosine.tensor(), sine.tensor(), inverse, threads);
  }
};

TEST(Rotary, RotatesPairsOfEachHeadAndLeavesTheRestOfItAlone) {
  struct Case {
    int64_t heads, head_dim, half;
  };
  for (const Case& c : {Case{1, 2, 1}, Case{3, 10, 3}, Case{2, 64, 32}, Case{2, 80, 16},
                        Case{5, 7, 2}, Case{1, 128, 64}, Case{2, 50, 25}}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool inverse : {false, true}) {
        Tables tables(c.half, 37);
        Matrix x(dtype, 37, c.heads * c.head_dim, 13);
        x.Randomise(2);
        const Matrix before = x;
        tables.Apply(x, c.heads, inverse, 3);
        const double tolerance = dtype == DType::kFloat32 ? 4e-7 : 1.0 / 256;
        for (int64_t r = 0; r < x.rows; ++r) {
          for (int64_t h = 0; h < c.heads; ++h) {
            for (int64_t i = 0; i < c.head_dim; ++i) {
              const int64_t column = h * c.head_dim + i;
              if (i >= 2 * c.half) {
                EXPECT_EQ(x.At(r, column), before.At(r, column));
                continue;
              }
              const int64_t pair = i % c.half, first = h * c.head_dim + pair;
              const int32_t position = tables.positions[static_cast<size_t>(r)];
              const double cosine = static_cast<double>(tables.cosine.At(position, pair));
              const double sine =
                  static_cast<double>(tables.sine.At(position, pair)) * (inverse ? -1 : 1);
              const double a = static_cast<double>(before.At(r, first));
              const double b = static_cast<double>(before.At(r, first + c.half));
              const double want = i < c.half ? a * cosine - b * sine : b * cosine + a * sine;
              EXPECT_NEAR(static_cast<double>(x.At(r, column)), want,
                          tolerance * (std::abs(a) + std::abs(b)));
            }
          }
        }
      }
    }
  }
}

TEST(Rotary, TheInverseUndoesItAndBitsDoNotDependOnThreads) {
  Tables tables(24, 600);
  Matrix x(DType::kFloat32, 600, 4 * 64);
  x.Randomise(3);
  const Matrix before = x;
  tables.Apply(x, 4, false, 1);
  for (const int threads : {2, 3, 5}) {
    Matrix y = before;
    tables.Apply(y, 4, false, threads);
    EXPECT_EQ(std::memcmp(x.wide.data(), y.wide.data(), x.wide.size() * sizeof(float)), 0);
  }
  tables.Apply(x, 4, true, 2);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) EXPECT_NEAR(x.At(r, c), before.At(r, c), 1e-6);
  }
}

TEST(RotaryDeathTest, APositionBeyondTheTableIsTheProgrammersFault) {
  Tables tables(2, 1);
  Matrix x(DType::kFloat32, 1, 4);
  x.Randomise(3);
  tables.positions[0] = 512;
  EXPECT_DEATH(tables.Apply(x, 1, false, 1), "512 of 512");
}

}  // namespace
}  // namespace tranche
