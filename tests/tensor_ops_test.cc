// Moving, embeddings, norms and activations: right against doubles over odd shapes, layouts and
// types, gradients against finite differences of the double reference, and the same bits with any
// number of threads.
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "tensor_test_util.h"

namespace tranche {
namespace {

class OpsTest : public testing::TestWithParam<DType> {
 protected:
  static CpuDevice& device() {
    static CpuDevice* const device = new CpuDevice(2);
    return *device;
  }
  void TearDown() override { device().Clear(); }
};

INSTANTIATE_TEST_SUITE_P(, OpsTest, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& info) { return NameOf(info.param); });

const std::pair<int64_t, int64_t> kShapes[] = {{1, 1},   {1, 40007}, {3, 7},   {5, 16},
                                               {17, 33}, {130, 257}, {9, 1030}};

TEST_P(OpsTest, CopyConvertsAndRoundsToNearestEven) {
  for (const auto& [rows, cols] : kShapes) {
    for (bool strided : {false, true}) {
      device().Clear();
      const Matrix x = Matrix::Random(rows, cols, DType::kFloat32, 3);
      const Tensor from = device().Put(x, DType::kFloat32, strided);
      const Tensor to = device().Make(rows, cols, GetParam(), strided);
      device().backend().Copy(device().stream(), to, from);
      Matrix want = x;
      for (double& value : want.values) value = Rounded(value, GetParam());
      EXPECT_EQ(device().Get(to).values, want.values);
      const Tensor back = device().Make(rows, cols, DType::kFloat32);
      device().backend().Copy(device().stream(), back, to);
      EXPECT_EQ(device().Get(back).values, want.values);
    }
  }
}

TEST(Copy, RoundsTiesInfinitiesAndNanAsTheScalarTypeDoes) {
  CpuDevice device(1);
  std::vector<uint32_t> patterns = {0x00000000, 0x80000000, 0x3f808000, 0x3f818000, 0x3f807fff,
                                    0x3f808001, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7f800001,
                                    0x7fc00000, 0xffffffff, 0x00800000, 0x477f8000};
  RandomSequence random(5);
  while (patterns.size() < 3001) patterns.push_back(random.Next32());
  const Tensor from = device.Make(1, static_cast<int64_t>(patterns.size()), DType::kFloat32);
  const Tensor to = device.Make(1, from.cols, DType::kBFloat16);
  std::memcpy(from.data, patterns.data(), patterns.size() * 4);
  device.backend().Copy(device.stream(), to, from);
  device.Sync();
  for (size_t i = 0; i < patterns.size(); ++i) {
    // Denormals are zero to a stream.
    if ((patterns[i] & 0x7f800000) == 0 && (patterns[i] & 0x7fffff) != 0) continue;
    ASSERT_EQ(to.Row<BFloat16>(0)[i].bits, BFloat16(from.Row<float>(0)[i]).bits)
        << std::hex << patterns[i];
  }
}

TEST_P(OpsTest, AddTakesEveryPairOfTypes) {
  for (DType other : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto& [rows, cols] : kShapes) {
      device().Clear();
      const Matrix a = Matrix::Random(rows, cols, GetParam(), 1),
                   b = Matrix::Random(rows, cols, other, 2);
      const Tensor to = device().Put(a, GetParam(), true);
      device().backend().Add(device().stream(), to, device().Put(b, other));
      Matrix want = a;
      for (size_t i = 0; i < want.values.size(); ++i)
        want.values[i] = Rounded(want.values[i] + b.values[i], GetParam());
      EXPECT_EQ(device().Get(to).values, want.values);
    }
  }
}

TEST_P(OpsTest, FillWritesOnlyTheView) {
  const Tensor to = device().Make(9, 31, GetParam(), true);
  device().backend().Fill(device().stream(), to, 1.5f);
  EXPECT_EQ(device().Get(to).values, Matrix(9, 31, 1.5).values);
  const Tensor sum = device().Make(1, 1, DType::kFloat64);
  device().backend().Fill(device().stream(), sum, 0.25f);
  EXPECT_EQ(device().Get(sum).values, Matrix(1, 1, 0.25).values);
}

TEST_P(OpsTest, RowsAreGatheredAndScattered) {
  for (int64_t cols : {1, 37, 256}) {
    device().Clear();
    const Matrix table = Matrix::Random(50, cols, GetParam(), 1),
                 few = Matrix::Random(4, cols, GetParam(), 2);
    const std::vector<int32_t> rows = {49, 0, 7, 3};
    const Tensor many = device().Put(table, GetParam(), true),
                 picked = device().Make(4, cols, GetParam(), true);
    const Tensor indices = device().PutIndices(rows);
    device().backend().GatherRows(device().stream(), picked, many, indices);
    Matrix want(4, cols), sums = table;
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        want.at(i, j) = table.at(rows[i], j);
        sums.at(rows[i], j) = Rounded(table.at(rows[i], j) + few.at(i, j), GetParam());
      }
    }
    EXPECT_EQ(device().Get(picked).values, want.values);
    device().backend().ScatterAddRows(device().stream(), many, device().Put(few, GetParam()),
                                      indices);
    EXPECT_EQ(device().Get(many).values, sums.values);
  }
}

TEST_P(OpsTest, EmbeddingLooksUpAndItsGradientSumsInTokenOrder) {
  for (int64_t cols : {1, 20, 261}) {
    const int64_t vocabulary = 11, tokens = 300;
    const Matrix table = Matrix::Random(vocabulary, cols, GetParam(), 1),
                 extra = Matrix::Random(tokens, cols, GetParam(), 2);
    std::vector<int32_t> ids;
    RandomSequence random(9);
    for (int64_t i = 0; i < tokens; ++i)
      ids.push_back(static_cast<int32_t>(random.Below(vocabulary)));
    std::vector<double> first;
    for (int threads : {1, 2, 3, 5}) {
      CpuDevice other(threads);
      const Tensor out = other.Put(extra, GetParam(), true), t = other.Put(table, GetParam(), true),
                   i = other.PutIndices(ids);
      other.backend().Embedding(other.stream(), out, t, i, true);
      const Matrix sums = other.Get(out);
      other.backend().Embedding(other.stream(), out, t, i, false);
      const Matrix looked_up = other.Get(out);
      const Tensor gradient = other.Put(Matrix(vocabulary, cols, 2), DType::kFloat32, true);
      other.backend().EmbeddingBackward(other.stream(), gradient, other.Put(extra, GetParam()), i,
                                        4);
      const Matrix got = other.Get(gradient);
      std::vector<float> want(static_cast<size_t>(vocabulary * cols), 2.0f);
      for (int64_t n = 0; n < tokens; ++n) {
        for (int64_t j = 0; j < cols; ++j) {
          ASSERT_EQ(looked_up.at(n, j), table.at(ids[n], j));
          ASSERT_EQ(sums.at(n, j), Rounded(table.at(ids[n], j) + extra.at(n, j), GetParam()));
          if (ids[n] != 4)
            want[static_cast<size_t>(ids[n] * cols + j)] += static_cast<float>(extra.at(n, j));
        }
      }
      EXPECT_EQ(got.values, std::vector<double>(want.begin(), want.end())) << threads << " threads";
    }
  }
}

TEST_P(OpsTest, ActivationsAndTheirDerivativesAgreeWithTheirDefinitions) {
  Matrix x(3, 2051);
  for (int64_t j = 0; j < x.cols; ++j) {
    x.at(0, j) = Rounded(-16 + 32.0 * j / x.cols, GetParam());
    x.at(1, j) = Rounded(-1e-3 + 2e-3 * j / x.cols, GetParam());
    x.at(2, j) = Rounded(std::exp2(-30 + 50.0 * j / x.cols) * (j % 2 ? -1 : 1), GetParam());
  }
  const Matrix d_y = Matrix::Random(3, x.cols, GetParam(), 4);
  for (Activation kind : kAllActivations) {
    device().Clear();
    const Tensor in = device().Put(x, GetParam(), true);
    const Tensor y = device().Make(3, x.cols, GetParam(), true),
                 d_x = device().Put(d_y, GetParam(), true);
    device().backend().ActivationForward(device().stream(), kind, in, y);
    device().backend().ActivationBackward(device().stream(), kind, d_x, in, d_x);  // in place
    Matrix value(3, x.cols), slope(3, x.cols);
    for (size_t i = 0; i < x.values.size(); ++i) {
      value.values[i] = ActivationValue(kind, x.values[i]);
      slope.values[i] = ActivationSlope(kind, x.values[i]) * d_y.values[i];
    }
    const std::string what = "activation " + std::to_string(static_cast<int>(kind));
    ExpectNear(device().Get(y), value, 1e-6, 1e-9, GetParam(), what);
    ExpectNear(device().Get(d_x), slope, 2e-6, 1e-6, GetParam(), what + " backward");
  }
}

TEST(Activations, KeepNanAndTakeInfinities) {
  CpuDevice device(1);
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (Activation kind : kAllActivations) {
    Matrix x(1, 3), ones(1, 3, 1);
    x.values = {nan, infinity, 3e38};
    const Tensor in = device.Put(x, DType::kFloat32), y = device.Make(1, 3, DType::kFloat32);
    const Tensor d_x = device.Put(ones, DType::kFloat32);
    device.backend().ActivationForward(device.stream(), kind, in, y);
    device.backend().ActivationBackward(device.stream(), kind, d_x, in, d_x);
    const Matrix value = device.Get(y), slope = device.Get(d_x);
    EXPECT_TRUE(std::isnan(value.at(0, 0))) << static_cast<int>(kind);
    EXPECT_EQ(value.at(0, 1), kind == Activation::kTanh ? 1 : infinity) << static_cast<int>(kind);
    EXPECT_EQ(slope.at(0, 2), kind == Activation::kTanh ? 0 : 1) << static_cast<int>(kind);
  }
}

TEST_P(OpsTest, GatedUnitsMultiplyTheActivatedGate) {
  for (bool gate_first : {false, true}) {
    for (Activation kind : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
      for (int64_t width : {1, 19, 1100}) {
        device().Clear();
        const Matrix x = Matrix::Random(5, 2 * width, GetParam(), 1),
                     d_y = Matrix::Random(5, width, GetParam(), 2);
        const Tensor in = device().Put(x, GetParam(), true),
                     y = device().Make(5, width, GetParam(), true);
        const Tensor d_x = device().Make(5, 2 * width, GetParam(), true);
        device().backend().GatedForward(device().stream(), kind, gate_first, in, y);
        device().backend().GatedBackward(device().stream(), kind, gate_first,
                                         device().Put(d_y, GetParam()), in, d_x);
        Matrix want(5, width), want_d(5, 2 * width);
        for (int64_t i = 0; i < 5; ++i) {
          for (int64_t j = 0; j < width; ++j) {
            const int64_t g = gate_first ? j : width + j, u = gate_first ? width + j : j;
            want.at(i, j) = ActivationValue(kind, x.at(i, g)) * x.at(i, u);
            want_d.at(i, g) = d_y.at(i, j) * x.at(i, u) * ActivationSlope(kind, x.at(i, g));
            want_d.at(i, u) = d_y.at(i, j) * ActivationValue(kind, x.at(i, g));
          }
        }
        ExpectNear(device().Get(y), want, 1e-6, 1e-9, GetParam());
        ExpectNear(device().Get(d_x), want_d, 2e-6, 2e-6, GetParam());
      }
    }
  }
}

// y of one group of D values.
std::vector<double> NormReference(NormKind kind, double eps, const std::vector<double>& x,
                                  const double* weight, const double* bias) {
  const double n = static_cast<double>(x.size());
  double mean = 0, square = 0;
  for (double value : x) mean += kind == NormKind::kLayerNorm ? value / n : 0;
  for (double value : x) square += (value - mean) * (value - mean) / n;
  std::vector<double> y(x.size());
  for (size_t j = 0; j < x.size(); ++j) {
    y[j] = (x[j] - mean) / std::sqrt(square + eps) * weight[j] + (bias != nullptr ? bias[j] : 0);
  }
  return y;
}

struct NormCase {
  int64_t rows, width, groups;
  bool bias;
};

TEST_P(OpsTest, NormsAgreeWithDoublesAndTheirGradientsWithFiniteDifferences) {
  const double h = 1e-5;
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const auto& [rows, width, groups, has_bias] : {NormCase{1, 1, 1, true},
                                                        {3, 5, 1, false},
                                                        {4, 16, 3, true},
                                                        {200, 33, 1, true},
                                                        {7, 20, 4, false},
                                                        {2, 270, 1, true}}) {
      device().Clear();
      const DType dtype = GetParam();
      const int64_t cols = width * groups;
      Matrix x = Matrix::Random(rows, cols, dtype, 1);
      for (double& value : x.values) value = Rounded(value + 2, dtype);
      const Matrix d_y = Matrix::Random(rows, cols, dtype, 2),
                   past = Matrix::Random(rows, cols, dtype, 3);
      const Matrix weight = Matrix::Random(1, width, dtype, 4),
                   bias = Matrix::Random(1, width, dtype, 5);
      const Matrix before = Matrix::Random(1, width, DType::kFloat32, 6);
      NormArgs args;
      args.kind = kind;
      args.eps = 1e-3f;
      args.groups = groups;
      args.weight = device().Put(weight, dtype);
      if (has_bias) args.bias = device().Put(bias, dtype);
      const Tensor in = device().Put(x, dtype, true), y = device().Make(rows, cols, dtype, true);
      const Tensor statistics = device().Make(rows, 2 * groups, DType::kFloat32),
                   d_x = device().Put(past, dtype, true);
      const Tensor d_weight = device().Put(before, DType::kFloat32);
      const Tensor d_bias = has_bias ? device().Put(before, DType::kFloat32) : Tensor();
      device().backend().Norm(device().stream(), args, in, y, statistics);
      device().backend().NormBackward(device().stream(), args, device().Put(d_y, dtype, true), in,
                                      statistics, d_x, d_x, d_weight, d_bias);
      Matrix want(rows, cols), want_d = past, want_weight = before, want_bias = before;
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t g = 0; g < groups; ++g) {
          const double* b = has_bias ? bias.values.data() : nullptr;
          std::vector<double> group(&x.values[i * cols + g * width],
                                    &x.values[i * cols + g * width] + width);
          const double* gradient = &d_y.values[i * cols + g * width];
          const auto loss = [&](const std::vector<double>& at) {
            const std::vector<double> out =
                NormReference(kind, args.eps, at, weight.values.data(), b);
            double sum = 0;
            for (int64_t j = 0; j < width; ++j) sum += out[j] * gradient[j];
            return sum;
          };
          const std::vector<double> out =
              NormReference(kind, args.eps, group, weight.values.data(), b);
          const std::vector<double> ones(static_cast<size_t>(width), 1.0);
          const std::vector<double> hat =
              NormReference(kind, args.eps, group, ones.data(), nullptr);
          for (int64_t j = 0; j < width; ++j) {
            want.at(i, g * width + j) = out[j];
            want_weight.at(0, j) += gradient[j] * hat[j];
            want_bias.at(0, j) += gradient[j];
            std::vector<double> up = group, down = group;
            up[j] += h, down[j] -= h;
            want_d.at(i, g * width + j) += (loss(up) - loss(down)) / (2 * h);
          }
        }
      }
      // RMS norm in bf16 rounds before the weight, up to 2^-8 of a product that the bias may
      // cancel.
      const double absolute = dtype == DType::kBFloat16 ? 0x1p-8 * 12 : 2e-6;
      ExpectNear(device().Get(y), want, 1e-6, absolute, dtype, "norm");
      ExpectNear(device().Get(d_x), want_d, 1e-6, 1e-4, dtype, "d_x");
      ExpectNear(device().Get(d_weight), want_weight, 1e-5, 5e-5, DType::kFloat32, "d_weight");
      if (has_bias)
        ExpectNear(device().Get(d_bias), want_bias, 1e-5, 5e-5, DType::kFloat32, "d_bias");
    }
  }
}

// The reference models multiply by the weight after rounding to bf16: one double rounding, to the
// bit.
TEST(Norm, RmsNormRoundsBeforeTheWeight) {
  CpuDevice device(1);
  const Matrix x = Matrix::Random(40, 64, DType::kBFloat16, 1),
               weight = Matrix::Random(1, 64, DType::kBFloat16, 2);
  NormArgs args;
  args.kind = NormKind::kRmsNorm;
  args.weight = device.Put(weight, DType::kBFloat16);
  const Tensor y = device.Make(40, 64, DType::kBFloat16),
               statistics = device.Make(40, 2, DType::kFloat32);
  device.backend().Norm(device.stream(), args, device.Put(x, DType::kBFloat16), y, statistics);
  const Matrix got = device.Get(y), kept = device.Get(statistics);
  int differs_from_single_rounding = 0;
  for (int64_t i = 0; i < 40; ++i) {
    EXPECT_EQ(kept.at(i, 0), 0);
    for (int64_t j = 0; j < 64; ++j) {
      const double hat = static_cast<float>(x.at(i, j)) * static_cast<float>(kept.at(i, 1));
      ASSERT_EQ(got.at(i, j),
                Rounded(Rounded(hat, DType::kBFloat16) * weight.at(0, j), DType::kBFloat16));
      differs_from_single_rounding +=
          got.at(i, j) != Rounded(hat * weight.at(0, j), DType::kBFloat16);
    }
  }
  EXPECT_GT(differs_from_single_rounding, 0);
}

TEST(Norm, NeitherThreadsNorOtherRowsChangeABit) {
  const Matrix x = Matrix::Random(700, 100, DType::kFloat32, 1),
               d_y = Matrix::Random(700, 100, DType::kFloat32, 2);
  std::vector<double> first;
  for (int threads : {1, 2, 3, 5}) {
    CpuDevice device(threads);
    NormArgs args;
    args.weight = device.Put(Matrix::Random(1, 100, DType::kFloat32, 3), DType::kFloat32);
    args.bias = device.Put(Matrix::Random(1, 100, DType::kFloat32, 4), DType::kFloat32);
    const Tensor in = device.Put(x, DType::kFloat32), gradient = device.Put(d_y, DType::kFloat32);
    const Tensor y = device.Make(700, 100, DType::kFloat32),
                 statistics = device.Make(700, 2, DType::kFloat32);
    const Tensor d_weight = device.Put(Matrix(1, 100), DType::kFloat32),
                 d_bias = device.Put(Matrix(1, 100), DType::kFloat32);
    device.backend().Norm(device.stream(), args, in, y, statistics);
    device.backend().NormBackward(device.stream(), args, gradient, in, statistics, gradient,
                                  Tensor(), d_weight, d_bias);
    std::vector<double> all;
    for (const Tensor& t : {y, gradient, d_weight, d_bias}) {
      const Matrix got = device.Get(t);
      all.insert(all.end(), got.values.begin(), got.values.end());
    }
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << threads << " threads";
    const Tensor alone = device.Make(1, 100, DType::kFloat32);
    device.backend().Norm(device.stream(), args, in.SliceRows(345, 1), alone,
                          statistics.SliceRows(0, 1));
    const Matrix got = device.Get(alone), of_all = device.Get(y);
    for (int64_t j = 0; j < 100; ++j) ASSERT_EQ(got.at(0, j), of_all.at(345, j));
  }
}

}  // namespace
}  // namespace tranche
