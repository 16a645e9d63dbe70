// What attention's results may not depend on: threads, the other segments of a batch, later tokens
// of a causal one, the cut between prefill and key/value cache. Gradients against finite
// differences, and what happens at the edges of fp32.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "hwy/targets.h"

#include "attention_reference.h"

namespace tranche {
namespace {

using test::AttentionCase;
using test::AttentionProblem;
using test::AttentionResult;
using test::Matrix;
using test::ReferenceAttention;
using test::RelativeError;
using test::RunAttention;

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

// The rows [begin, begin + b.rows) of a against all of b.
void ExpectSameRows(const Matrix& a, int64_t begin, const Matrix& b) {
  ASSERT_EQ(a.cols, b.cols);
  int64_t different = 0;
  for (int64_t r = 0; r < b.rows; ++r) {
    for (int64_t c = 0; c < b.cols; ++c)
      different += SameBits(a.At(begin + r, c), b.At(r, c)) ? 0 : 1;
  }
  EXPECT_EQ(different, 0) << "of " << b.rows * b.cols;
}

void ExpectSame(const AttentionResult& a, const AttentionResult& b) {
  ExpectSameRows(a.out, 0, b.out);
  ExpectSameRows(a.log_sum_exp, 0, b.log_sum_exp);
  ExpectSameRows(a.d_q, 0, b.d_q);
  ExpectSameRows(a.d_k, 0, b.d_k);
  ExpectSameRows(a.d_v, 0, b.d_v);
}

AttentionCase Shape(std::vector<int32_t> lengths, int64_t heads, int64_t kv_heads,
                    int64_t head_dim) {
  AttentionCase c;
  c.query_lengths = lengths;
  c.key_lengths = lengths;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.causal = true;
  return c;
}

// Copies rows [begin, begin + count) of a matrix.
Matrix Rows(const Matrix& from, int64_t begin, int64_t count) {
  Matrix rows(from.dtype, count, from.cols);
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < from.cols; ++c) rows.Set(r, c, from.At(begin + r, c));
  }
  return rows;
}

TEST(AttentionInvariance, BitsDoNotDependOnThreads) {
  // One head shared by all threads, one head each, and many short segments: the ways of sharing
  // work.
  std::vector<AttentionCase> shapes = {Shape({500}, 1, 1, 40), Shape({300, 20}, 3, 1, 16),
                                       Shape({9, 33, 4, 70, 1, 64, 12, 128}, 2, 2, 8)};
  for (AttentionCase shape : shapes) {
    for (const bool causal : {true, false}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        shape.causal = causal;
        shape.dtype = dtype;
        shape.dropout = causal ? 0.2f : 0.0f;
        AttentionProblem p(shape);
        const AttentionResult one = RunAttention(p, 1);
        for (const int threads : {2, 3, 5}) {
          SCOPED_TRACE(threads);
          ExpectSame(one, RunAttention(p, threads));
        }
      }
    }
  }
}

TEST(AttentionInvariance, ASegmentComputesTheSameBitsAloneAndAmongOthers) {
  for (const int64_t window : {int64_t{20}, std::numeric_limits<int64_t>::max()}) {
    for (const bool causal : {true, false}) {
      AttentionCase shape = Shape({37, 130, 64, 1, 203}, 4, 2, 24);
      shape.causal = causal;
      shape.window = window;
      shape.dropout = 0.3f;
      AttentionProblem batch(shape);
      const AttentionResult together = RunAttention(batch, 3);
      for (size_t s = 0; s < shape.query_lengths.size(); ++s) {
        SCOPED_TRACE(s);
        const int64_t begin = batch.query_offsets[s], count = shape.query_lengths[s];
        AttentionCase single = shape;
        single.query_lengths = single.key_lengths = {shape.query_lengths[s]};
        AttentionProblem alone(single);
        alone.q = Rows(batch.q, begin, count);
        alone.k = Rows(batch.k, begin, count);
        alone.v = Rows(batch.v, begin, count);
        alone.d_out = Rows(batch.d_out, begin, count);
        alone.token_keys.assign(batch.token_keys.begin() + begin,
                                batch.token_keys.begin() + begin + count);
        const AttentionResult got = RunAttention(alone, 2);
        ExpectSameRows(together.out, begin, got.out);
        ExpectSameRows(together.log_sum_exp, begin, got.log_sum_exp);
        ExpectSameRows(together.d_q, begin, got.d_q);
        ExpectSameRows(together.d_k, begin, got.d_k);
        ExpectSameRows(together.d_v, begin, got.d_v);
      }
    }
  }
}

TEST(AttentionInvariance, CausalRowsDoNotDependOnWhatFollows) {
  AttentionProblem whole(Shape({300}, 2, 1, 32));
  const AttentionResult all = RunAttention(whole, 2, false);
  for (const int32_t length : {1, 5, 48, 63, 64, 65, 150, 299}) {
    SCOPED_TRACE(length);
    AttentionProblem prefix(Shape({length}, 2, 1, 32));
    prefix.q = Rows(whole.q, 0, length);
    prefix.k = Rows(whole.k, 0, length);
    prefix.v = Rows(whole.v, 0, length);
    const AttentionResult got = RunAttention(prefix, 3, false);
    ExpectSameRows(Rows(all.out, 0, length), 0, got.out);
    ExpectSameRows(Rows(all.log_sum_exp, 0, length), 0, got.log_sum_exp);
  }
}

TEST(AttentionInvariance, DecodingWithAKeyValueCacheGivesTheBitsOfTheWholeSequence) {
  for (const int64_t window : {int64_t{30}, std::numeric_limits<int64_t>::max()}) {
    AttentionCase shape = Shape({140}, 4, 2, 16);
    shape.window = window;
    AttentionProblem whole(shape);
    const AttentionResult all = RunAttention(whole, 2, false);
    for (const int32_t chunk : {1, 7, 64}) {
      for (int32_t begin = 0; begin + chunk <= 140; begin += chunk) {
        AttentionCase cached = shape;
        cached.query_lengths = {chunk};
        cached.key_lengths = {begin + chunk};
        AttentionProblem step(cached);
        step.q = Rows(whole.q, begin, chunk);
        step.k = Rows(whole.k, 0, begin + chunk);
        step.v = Rows(whole.v, 0, begin + chunk);
        ExpectSameRows(all.out, begin, RunAttention(step, 2, false).out);
      }
    }
  }
}

TEST(AttentionInvariance, NotANumberStaysInItsSegmentAndReachesItsReaders) {
  AttentionProblem p(Shape({40, 40}, 1, 1, 8));
  const AttentionResult clean = RunAttention(p, 2, false);
  p.k.Set(40 + 10, 3, std::nanf(""));
  const AttentionResult got = RunAttention(p, 2, false);
  ExpectSameRows(got.out, 0, Rows(clean.out, 0, 40));
  for (int64_t r = 50; r < 80; ++r) EXPECT_TRUE(std::isnan(got.out.At(r, 0))) << r;
}

TEST(AttentionInvariance, LargeScoresNeitherOverflowNorLoseTheWinner) {
  AttentionProblem p(Shape({90}, 2, 2, 16));
  p.q.Randomise(5, 300);
  p.k.Randomise(6, 300);
  const AttentionResult got = RunAttention(p, 2);
  const auto want = ReferenceAttention(p);
  // Scores reach 1e6, where a unit in the last place is 0.06.
  EXPECT_LT(RelativeError(got.out, want.out), 0.1);
  for (int64_t r = 0; r < got.d_q.rows; ++r) EXPECT_TRUE(std::isfinite(got.d_q.At(r, 0)));
}

TEST(AttentionInvariance, EveryInstructionSetThatThisMachineHasComputesTheSameUpToRounding) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    AttentionCase shape = Shape({75, 9}, 4, 2, 20);
    shape.window = 50;
    shape.dropout = 0.2f;
    shape.dtype = dtype;
    AttentionProblem p(shape);
    const auto want = ReferenceAttention(p);
    const double tolerance = dtype == DType::kFloat32 ? 3e-6 : 6e-3;
    for (const int64_t target : {HWY_SCALAR, HWY_AVX2, HWY_AVX3}) {
      if (target != HWY_SCALAR && (hwy::SupportedTargets() & target) == 0) continue;
      SCOPED_TRACE(hwy::TargetName(target));
      hwy::GetChosenTarget().Update(target);
      const AttentionResult got = RunAttention(p, 2);
      hwy::GetChosenTarget().DeInit();
      EXPECT_LT(RelativeError(got.out, want.out), tolerance);
      EXPECT_LT(RelativeError(got.d_q, want.d_q), tolerance);
      EXPECT_LT(RelativeError(got.d_k, want.d_k), tolerance);
      EXPECT_LT(RelativeError(got.d_v, want.d_v), tolerance);
    }
  }
}

// Σ out·d_out, whose gradients are d_q, d_k and d_v.
double Objective(AttentionProblem& p) {
  const AttentionResult r = RunAttention(p, 2, false);
  double sum = 0;
  for (int64_t i = 0; i < r.out.rows; ++i) {
    for (int64_t c = 0; c < r.out.cols; ++c) {
      sum += static_cast<double>(r.out.At(i, c)) * static_cast<double>(p.d_out.At(i, c));
    }
  }
  return sum;
}

TEST(AttentionGradient, EqualsFiniteDifferencesWithWindowGroupsAndDropout) {
  AttentionCase shape = Shape({19, 80}, 4, 2, 12);
  shape.window = 33;
  shape.dropout = 0.5f;
  for (const bool causal : {true, false}) {
    shape.causal = causal;
    AttentionProblem p(shape);
    const AttentionResult r = RunAttention(p, 2);
    RandomSequence random(3);
    struct Input {
      Matrix* values;
      const Matrix* gradient;
    };
    for (const Input& input : {Input{&p.q, &r.d_q}, Input{&p.k, &r.d_k}, Input{&p.v, &r.d_v}}) {
      for (int n = 0; n < 25; ++n) {
        const int64_t row = static_cast<int64_t>(random.Below(static_cast<uint64_t>(p.q.rows)));
        const int64_t col =
            static_cast<int64_t>(random.Below(static_cast<uint64_t>(input.values->cols)));
        const float old = input.values->At(row, col), step = 0.015625f;
        input.values->Set(row, col, old + step);
        const double above = Objective(p);
        input.values->Set(row, col, old - step);
        const double below = Objective(p);
        input.values->Set(row, col, old);
        const double slope = (above - below) / (2 * static_cast<double>(step));
        EXPECT_NEAR(static_cast<double>(input.gradient->At(row, col)), slope,
                    2e-3 * (1 + std::abs(slope)));
      }
    }
  }
}

}  // namespace
}  // namespace tranche
