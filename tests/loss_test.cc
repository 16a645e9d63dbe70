// Cross entropy against plain double arithmetic.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "attention_reference.h"

namespace tranche {
namespace {

using test::Matrix;

struct Result {
  Matrix logits;  // after the call
  double loss = 0;
  std::vector<float> rows;
};

Result RunLoss(Matrix logits, std::vector<int32_t> labels, bool gradient, float scale, int threads,
               double start = 0) {
  Result r{std::move(logits), start, {}};
  r.rows.assign(static_cast<size_t>(r.logits.rows), -1.0f);
  WorkspaceLimits limits;
  limits.max_tokens = r.logits.rows;
  std::vector<std::byte> scratch(static_cast<size_t>(cpu::CrossEntropyScratchBytes(limits)));
  cpu::CrossEntropy(r.logits.tensor(), MakeTensor(labels.data(), DType::kInt32, 1, r.logits.rows),
                    gradient, scale, MakeTensor(&r.loss, DType::kFloat64, 1, 1),
                    MakeTensor(r.rows.data(), DType::kFloat32, 1, r.logits.rows), scratch.data(),
                    threads);
  return r;
}

std::vector<int32_t> Labels(int64_t rows, int64_t vocabulary) {
  RandomSequence random(4);
  std::vector<int32_t> labels;
  for (int64_t r = 0; r < rows; ++r) {
    labels.push_back(static_cast<int32_t>(random.Below(static_cast<uint64_t>(vocabulary))));
  }
  return labels;
}

TEST(CrossEntropy, LossAndGradientEqualPlainDoubleArithmetic) {
  for (const int64_t vocabulary : {1, 2, 3, 7, 8, 9, 31, 33, 64, 1000, 1025, 4096, 50257, 200000}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const int64_t rows = vocabulary > 10000 ? 2 : 7;
      Matrix logits(dtype, rows, vocabulary, 5);
      logits.Randomise(static_cast<uint64_t>(vocabulary), 4);
      const std::vector<int32_t> labels = Labels(rows, vocabulary);
      const Result got = RunLoss(logits, labels, true, 0.125f, 2, 3.0);
      double total = 3;
      for (int64_t r = 0; r < rows; ++r) {
        double max = -1e300, sum = 0;
        for (int64_t c = 0; c < vocabulary; ++c) max = std::max(max, double{logits.At(r, c)});
        for (int64_t c = 0; c < vocabulary; ++c) sum += std::exp(double{logits.At(r, c)} - max);
        const int32_t label = labels[static_cast<size_t>(r)];
        const double loss = max + std::log(sum) - double{logits.At(r, label)};
        total += loss;
        EXPECT_NEAR(double{got.rows[static_cast<size_t>(r)]}, loss, 2e-7 * (1 + loss));
        for (int64_t c = 0; c < vocabulary; ++c) {
          const double want =
              (std::exp(double{logits.At(r, c)} - max) / sum - (c == label ? 1 : 0)) * 0.125;
          const double unit = dtype == DType::kFloat32 ? 5e-7 : 1.0 / 256;
          ASSERT_NEAR(double{got.logits.At(r, c)}, want, unit * std::abs(want) + 2e-8)
              << vocabulary << ", " << c;
        }
      }
      EXPECT_NEAR(got.loss, total, 2e-7 * total);
    }
  }
}

TEST(CrossEntropy, WithoutGradientLeavesTheLogitsAndGivesTheSameLoss) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Matrix logits(dtype, 5, 777);
    logits.Randomise(1);
    const std::vector<int32_t> labels = Labels(5, 777);
    const Result with = RunLoss(logits, labels, true, 1, 1),
                 without = RunLoss(logits, labels, false, 1, 1);
    EXPECT_EQ(with.loss, without.loss);
    EXPECT_EQ(with.rows, without.rows);
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t c = 0; c < 777; ++c) ASSERT_EQ(without.logits.At(r, c), logits.At(r, c));
    }
  }
}

TEST(CrossEntropy, BitsDependOnNeitherThreadsNorHowRowsAreCutIntoCalls) {
  Matrix logits(DType::kFloat32, 60, 1111);
  logits.Randomise(2, 3);
  const std::vector<int32_t> labels = Labels(60, 1111);
  const Result one = RunLoss(logits, labels, true, 0.3f, 1);
  for (const int threads : {2, 3, 5}) {
    const Result got = RunLoss(logits, labels, true, 0.3f, threads);
    EXPECT_EQ(got.loss, one.loss);
    EXPECT_EQ(got.logits.wide, one.logits.wide);
  }
  double loss = 0;
  for (int64_t begin = 0; begin < 60; begin += 13) {
    const int64_t count = std::min<int64_t>(13, 60 - begin);
    Matrix part(DType::kFloat32, count, 1111);
    std::memcpy(part.wide.data(), logits.wide.data() + begin * 1111,
                part.wide.size() * sizeof(float));
    const Result got = RunLoss(part, {labels.begin() + begin, labels.begin() + begin + count}, true,
                               0.3f, 2, loss);
    loss = got.loss;
    EXPECT_EQ(std::memcmp(got.logits.wide.data(), one.logits.wide.data() + begin * 1111,
                          part.wide.size() * sizeof(float)),
              0);
  }
  EXPECT_EQ(loss, one.loss);
}

TEST(CrossEntropy, GradientEqualsFiniteDifferencesOfTheLoss) {
  Matrix logits(DType::kFloat32, 3, 50);
  logits.Randomise(8);
  const std::vector<int32_t> labels = Labels(3, 50);
  const Result got = RunLoss(logits, labels, true, 1, 1);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 50; ++c) {
      Matrix above = logits, below = logits;
      above.Set(r, c, logits.At(r, c) + 0.0078125f);
      below.Set(r, c, logits.At(r, c) - 0.0078125f);
      const double rise = double{above.At(r, c)} - double{below.At(r, c)};
      const double slope =
          (RunLoss(above, labels, false, 1, 1).loss - RunLoss(below, labels, false, 1, 1).loss) /
          rise;
      EXPECT_NEAR(double{got.logits.At(r, c)}, slope, 1e-4);
    }
  }
}

TEST(CrossEntropy, ExtremeLogitsStayExact) {
  Matrix logits(DType::kFloat32, 3, 20);
  std::fill(logits.wide.begin(), logits.wide.end(), -std::numeric_limits<float>::infinity());
  logits.Set(0, 3, 1e30f);  // certain and right
  logits.Set(1, 4, 3e4f);   // certain and wrong
  logits.Set(1, 5, -3e4f);
  logits.Set(2, 1, -1e38f);  // two equal ones far down
  logits.Set(2, 2, -1e38f);
  const Result got = RunLoss(logits, {3, 5, 2}, true, 2, 1);
  EXPECT_EQ(got.rows[0], 0.0f);
  EXPECT_EQ(got.rows[1], 6e4f);
  EXPECT_FLOAT_EQ(got.rows[2], static_cast<float>(std::log(2.0)));
  EXPECT_EQ(got.logits.At(0, 3), 0.0f);
  EXPECT_EQ(got.logits.At(1, 4), 2.0f);
  EXPECT_EQ(got.logits.At(1, 5), -2.0f);
  EXPECT_EQ(got.logits.At(2, 1), 1.0f);
  EXPECT_EQ(got.logits.At(2, 0), 0.0f);
}

TEST(CrossEntropy, ANonFiniteLogitMakesTheSumNonFinite) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (const int64_t column : {0, 5, 40, 98}) {
      Matrix logits(DType::kFloat32, 4, 99);
      logits.Randomise(1);
      logits.Set(2, column, bad);
      const Result got = RunLoss(logits, {0, 1, 2, 3}, true, 1, 2);
      EXPECT_FALSE(std::isfinite(got.loss)) << column;
      EXPECT_TRUE(std::isfinite(got.rows[1]));
    }
  }
}

TEST(CrossEntropyDeathTest, ALabelOutsideTheVocabularyIsTheProgrammersFault) {
  Matrix logits(DType::kFloat32, 1, 10);
  logits.Randomise(1);
  EXPECT_DEATH(RunLoss(logits, {10}, true, 1, 1), "10 of 10");
  EXPECT_DEATH(RunLoss(logits, {-100}, true, 1, 1), "-100 of 10");
}

}  // namespace
}  // namespace tranche
