// The global norm and AdamW against plain arithmetic.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "base/rng.h"
#include "tensor/cpu/kernels.h"

namespace tranche {
namespace {

Tensor Flat(std::vector<float>& v) {
  return MakeTensor(v.data(), DType::kFloat32, 1, static_cast<int64_t>(v.size()));
}

std::vector<float> Random(size_t n, uint64_t key, double deviation) {
  RandomSequence random(key);
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(deviation * random.Normal());
  return v;
}

struct NormState {
  uint64_t words[4] = {};
  bool operator==(const NormState& other) const {
    return std::memcmp(words, other.words, sizeof(words)) == 0;
  }
  void Add(std::vector<float>& v, int64_t begin, int64_t count, int threads) {
    cpu::SquaredNorm(Flat(v).SliceCols(begin, count), MakeTensor(words, DType::kUInt64, 1, 4),
                     threads);
  }
  std::vector<float> Finish(float max_norm, double loss = 1) {
    std::vector<float> control(4, -1.0f);
    cpu::FinishNorm(MakeTensor(words, DType::kUInt64, 1, 4),
                    MakeTensor(&loss, DType::kFloat64, 1, 1), max_norm, Flat(control));
    return control;
  }
};

TEST(SquaredNorm, EqualsTheSumInLongDouble) {
  for (const size_t n : {1u, 5u, 63u, 64u, 65u, 1000u, 100001u}) {
    for (const double deviation : {1e-7, 1e-3, 1.0, 1e3}) {
      std::vector<float> v = Random(n, n, deviation);
      long double sum = 0;
      for (const float x : v) sum += static_cast<long double>(x) * static_cast<long double>(x);
      NormState state;
      state.Add(v, 0, static_cast<int64_t>(n), 2);
      const double norm = std::sqrt(static_cast<double>(sum));
      // Each line drops less than 2^-72.
      const double lost = std::ldexp(static_cast<double>(n / 64 + 1), -72) / (2 * norm);
      EXPECT_NEAR(double{state.Finish(0)[0]}, norm, 6e-8 * norm + lost);
    }
  }
}

TEST(SquaredNorm, DependsOnNeitherCutsNorOrderNorThreads) {
  constexpr int64_t kSize = 64 * 3000 + 17;
  std::vector<float> v = Random(kSize, 5, 0.01);
  NormState whole;
  whole.Add(v, 0, kSize, 1);
  for (const int threads : {2, 3, 5}) {
    NormState state;
    state.Add(v, 0, kSize, threads);
    EXPECT_EQ(state, whole) << threads;
  }
  for (const int64_t lines : {1, 7, 256, 1111}) {
    NormState forward, backward;
    std::vector<int64_t> begins;
    for (int64_t begin = 0; begin < kSize; begin += 64 * lines) begins.push_back(begin);
    for (const int64_t b : begins) forward.Add(v, b, std::min(64 * lines, kSize - b), 2);
    std::reverse(begins.begin(), begins.end());
    for (const int64_t b : begins) backward.Add(v, b, std::min(64 * lines, kSize - b), 1);
    EXPECT_EQ(forward, whole) << lines;
    EXPECT_EQ(backward, whole) << lines;
  }
}

TEST(SquaredNorm, SumsALineInTheOrderThatIsDocumentedWhateverTheVectorLength) {
  std::vector<float> v = Random(64, 8, 1);
  double sums[8] = {};
  for (size_t i = 0; i < 64; ++i) sums[i % 8] += double{v[i]} * double{v[i]};
  const double want =
      ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
  NormState state;
  state.Add(v, 0, 64, 1);
  EXPECT_EQ(std::ldexp(static_cast<double>(state.words[1]), -8) +
                std::ldexp(static_cast<double>(state.words[0]), -72),
            want);
}

TEST(SquaredNorm, CountsNonFiniteElementsAndSumsThatDoNotFit) {
  std::vector<float> v = Random(1000, 1, 1);
  v[3] = std::nanf("");
  v[4] = std::numeric_limits<float>::infinity();
  v[999] = -std::numeric_limits<float>::infinity();
  NormState state;
  state.Add(v, 0, 1000, 2);
  EXPECT_EQ(state.words[2], 3u);
  EXPECT_TRUE(std::isnan(state.Finish(1)[0]));
  EXPECT_EQ(state.Finish(1)[2], 0.0f);

  // One line beyond 2^56, and many lines that pass it together: never a small norm by wrapping
  // round.
  NormState line;
  std::vector<float> large(64, 1e30f);
  line.Add(large, 0, 64, 1);
  EXPECT_EQ(line.Finish(1)[2], 0.0f);
  std::vector<float> many(64 * 64, 0x1p23f);  // 2^46 each, 2^52 a line, 2^58 in all
  NormState together;
  together.Add(many, 0, 64 * 64, 2);
  EXPECT_EQ(together.Finish(1)[2], 0.0f);
  NormState pieces;
  for (int64_t b = 0; b < 64 * 64; b += 640)
    pieces.Add(many, b, std::min<int64_t>(640, 4096 - b), 1);
  EXPECT_EQ(pieces, together);
  NormState below;
  below.Add(many, 0, 64 * 15, 1);
  EXPECT_EQ(below.Finish(0)[0], static_cast<float>(std::sqrt(15 * 0x1p52)));
}

TEST(FinishNorm, ClipsAsTorchDoesAndSkipsWhereTheLossIsNotFinite) {
  std::vector<float> v = {3, 4};
  NormState state;
  state.Add(v, 0, 2, 1);
  EXPECT_EQ(state.Finish(0), (std::vector<float>{5, 1, 1, 0}));
  EXPECT_EQ(state.Finish(10), (std::vector<float>{5, 1, 1, 0}));
  EXPECT_EQ(state.Finish(1), (std::vector<float>{5, static_cast<float>(1 / (5 + 1e-6)), 1, 0}));
  EXPECT_EQ(NormState().Finish(1), (std::vector<float>{0, 1, 1, 0}));
  for (const double loss : {std::nan(""), HUGE_VAL}) {
    const std::vector<float> control = state.Finish(1, loss);
    EXPECT_TRUE(std::isnan(control[0]));
    EXPECT_EQ(control[2], 0.0f);
  }
}

struct Optimizer {
  std::vector<float> master, gradients, m, v, control{0, 1, 1, 0};
  std::vector<BFloat16> weights;
  AdamWArgs args;

  explicit Optimizer(size_t n) : master(Random(n, 1, 1)), gradients(n), m(n), v(n), weights(n) {
    args.learning_rate = 3e-3;
    args.weight_decay = 0.1;
  }
  void Step(int64_t step, int threads, bool narrow = false) {
    args.step = step;
    args.master = Flat(master);
    args.gradients = Flat(gradients);
    args.m = Flat(m);
    args.v = Flat(v);
    args.control = Flat(control);
    args.weights = {};
    if (narrow) args.weights = MakeTensor(weights.data(), DType::kBFloat16, 1, args.master.cols);
    cpu::AdamW(args, threads);
  }
};

TEST(AdamW, EqualsItsFormulaInDoubleOverTenSteps) {
  for (const size_t n : {1u, 7u, 8u, 9u, 1000u, 40003u}) {
    Optimizer o(n);
    o.control[1] = 0.75f;
    std::vector<double> p(o.master.begin(), o.master.end()), m(n), v(n);
    for (int64_t step = 1; step <= 10; ++step) {
      o.gradients = Random(n, static_cast<uint64_t>(step), 0.01);
      o.Step(step, 2, true);
      for (size_t i = 0; i < n; ++i) {
        const double g = 0.75 * double{o.gradients[i]};
        p[i] *= 1 - 3e-3 * 0.1;
        m[i] = 0.9 * m[i] + (1 - 0.9) * g;
        v[i] = 0.999 * v[i] + (1 - 0.999) * g * g;
        const double t = static_cast<double>(step);
        p[i] -= 3e-3 / (1 - std::pow(0.9, t)) * m[i] /
                (std::sqrt(v[i]) / std::sqrt(1 - std::pow(0.999, t)) + 1e-8);
      }
    }
    for (size_t i = 0; i < n; ++i) {
      // Ten steps of three roundings of p (its decay factor, the product, the difference), and of
      // updates that come to at most 0.03 each.
      ASSERT_NEAR(double{o.master[i]}, p[i], 30 * 0x1p-24 * std::abs(p[i]) + 1e-7) << i;
      ASSERT_NEAR(double{o.m[i]}, m[i], 1e-6 * std::abs(m[i]) + 1e-9);
      ASSERT_NEAR(double{o.v[i]}, v[i], 1e-6 * v[i]);
      ASSERT_EQ(o.weights[i].bits, BFloat16(o.master[i]).bits);
    }
  }
}

TEST(AdamW, BitsDependOnNeitherThreadsNorWhereSlicesAreCut) {
  constexpr size_t kSize = 50000 + 11;
  Optimizer one(kSize);
  one.gradients = Random(kSize, 6, 0.1);
  one.Step(1, 1);
  for (const int threads : {2, 3, 5}) {
    Optimizer o(kSize);
    o.gradients = one.gradients;
    o.Step(1, threads);
    EXPECT_EQ(o.master, one.master);
    EXPECT_EQ(o.v, one.v);
  }
  Optimizer cut(kSize);
  cut.gradients = one.gradients;
  for (int64_t begin = 0; begin < static_cast<int64_t>(kSize); begin += 6464 + 3) {
    const int64_t count = std::min<int64_t>(6467, static_cast<int64_t>(kSize) - begin);
    AdamWArgs args = cut.args;
    args.step = 1;
    args.master = Flat(cut.master).SliceCols(begin, count);
    args.gradients = Flat(cut.gradients).SliceCols(begin, count);
    args.m = Flat(cut.m).SliceCols(begin, count);
    args.v = Flat(cut.v).SliceCols(begin, count);
    args.control = Flat(cut.control);
    cpu::AdamW(args, 2);
  }
  EXPECT_EQ(cut.master, one.master);
  EXPECT_EQ(cut.m, one.m);
}

TEST(AdamW, ChangesNothingWhereTheControlSaysSkip) {
  Optimizer o(100);
  o.gradients = Random(100, 3, 1);
  o.control = {std::nanf(""), 1, 0, 0};
  const std::vector<float> before = o.master;
  o.Step(1, 1);
  EXPECT_EQ(o.master, before);
  EXPECT_EQ(o.m, std::vector<float>(100, 0.0f));
  EXPECT_EQ(o.v, std::vector<float>(100, 0.0f));
}

}  // namespace
}  // namespace tranche
