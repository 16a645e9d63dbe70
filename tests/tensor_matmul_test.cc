// The matrix product: right against doubles over odd shapes, layouts and types; every part of its
// epilogue; and the same bits for a row whatever stands beside it and however many threads there
// are.
#include <algorithm>
#include <tuple>
#include <vector>

#include "tensor_test_util.h"

namespace tranche {
namespace {

struct Case {
  int64_t m, n, k;
};

// On both sides of every edge: vectors, panels, tiles, blocks of k, few and many rows, packed once
// and packed per tile.
const Case kShapes[] = {{1, 1, 1},      {1, 17, 3},    {2, 16, 256},   {3, 5, 257},   {5, 33, 31},
                        {6, 16, 512},   {7, 31, 300},  {13, 100, 64},  {15, 64, 1},   {29, 47, 513},
                        {97, 65, 511},  {1, 515, 700}, {64, 1, 130},   {383, 18, 40}, {385, 48, 70},
                        {401, 70, 270}, {777, 530, 9}, {12, 1100, 33}, {450, 3, 259}, {2, 2, 0}};

Matrix Product(const Matrix& a, const Matrix& b, bool transpose_a, bool transpose_b,
               Matrix* magnitude) {
  const int64_t m = transpose_a ? a.cols : a.rows, k = transpose_a ? a.rows : a.cols;
  const int64_t n = transpose_b ? b.rows : b.cols;
  Matrix c(m, n);
  *magnitude = Matrix(m, n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      const double x = transpose_a ? a.at(p, i) : a.at(i, p);
      for (int64_t j = 0; j < n; ++j) {
        const double term = x * (transpose_b ? b.at(j, p) : b.at(p, j));
        c.at(i, j) += term;
        magnitude->at(i, j) += std::abs(term);
      }
    }
  }
  return c;
}

// Rounding of a sum of k products grows with the sum of their magnitudes.
void ExpectProduct(const Matrix& got, const Matrix& want, const Matrix& magnitude, DType dtype,
                   const std::string& what) {
  const double rounding = dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-23;
  for (int64_t i = 0; i < want.rows; ++i) {
    for (int64_t j = 0; j < want.cols; ++j) {
      const double bound = 4e-7 * magnitude.at(i, j) + rounding * std::abs(want.at(i, j)) + 1e-12;
      ASSERT_LE(std::abs(got.at(i, j) - want.at(i, j)), bound)
          << what << " [" << i << ", " << j << "]";
    }
  }
}

class MatMulTest : public testing::TestWithParam<std::tuple<DType, bool, bool>> {
 protected:
  static CpuDevice& device() {
    static CpuDevice* const device = new CpuDevice(2);
    return *device;
  }
  void TearDown() override { device().Clear(); }
};

TEST_P(MatMulTest, AgreesWithDoublesOverOddShapesAndLayouts) {
  const auto [dtype, transpose_a, transpose_b] = GetParam();
  uint64_t key = 1;
  for (const auto& [m, n, k] : kShapes) {
    for (bool strided : {false, true}) {
      device().Clear();
      const Matrix a =
          transpose_a ? Matrix::Random(k, m, dtype, ++key) : Matrix::Random(m, k, dtype, ++key);
      const Matrix b =
          transpose_b ? Matrix::Random(n, k, dtype, ++key) : Matrix::Random(k, n, dtype, ++key);
      const Matrix before = Matrix::Random(m, n, dtype, ++key);
      Matrix magnitude(0, 0);
      const Matrix product = Product(a, b, transpose_a, transpose_b, &magnitude);
      for (DType out : {dtype, DType::kFloat32}) {
        for (bool accumulate : {false, true}) {
          MatMulArgs args;
          args.a = device().Put(a, dtype, strided);
          args.b = device().Put(b, dtype, strided);
          args.c = device().Put(before, out, strided);
          args.transpose_a = transpose_a;
          args.transpose_b = transpose_b;
          args.accumulate = accumulate;
          device().backend().MatMul(device().stream(), args);
          Matrix want = product;
          if (accumulate) {
            for (size_t i = 0; i < want.values.size(); ++i) want.values[i] += before.values[i];
          }
          ExpectProduct(device().Get(args.c), want, magnitude, out,
                        testing::PrintToString(std::vector<int64_t>{m, n, k, strided, accumulate}));
        }
      }
    }
  }
}

// For each activation: bias, kept pre-activation, activation, residual, accumulation; then
// derivative with residual in place.
TEST_P(MatMulTest, EpilogueRunsItsPartsInOrder) {
  const auto [dtype, transpose_a, transpose_b] = GetParam();
  uint64_t key = 1000;
  for (const auto& [m, n, k] : {Case{7, 37, 65}, Case{390, 21, 300}}) {
    const Matrix a =
        transpose_a ? Matrix::Random(k, m, dtype, ++key) : Matrix::Random(m, k, dtype, ++key);
    Matrix b =
        transpose_b ? Matrix::Random(n, k, dtype, ++key) : Matrix::Random(k, n, dtype, ++key);
    for (double& value : b.values) value = Rounded(value / 8, dtype);
    const Matrix bias = Matrix::Random(1, n, dtype, ++key),
                 residual = Matrix::Random(m, n, dtype, ++key);
    const Matrix before = Matrix::Random(m, n, dtype, ++key),
                 input = Matrix::Random(m, n, dtype, ++key);
    Matrix magnitude(0, 0);
    const Matrix product = Product(a, b, transpose_a, transpose_b, &magnitude);
    for (Activation kind : kAllActivations) {
      device().Clear();
      MatMulArgs args;
      args.a = device().Put(a, dtype);
      args.b = device().Put(b, dtype);
      args.c = device().Put(before, dtype, true);
      args.transpose_a = transpose_a;
      args.transpose_b = transpose_b;
      args.bias = device().Put(bias, dtype);
      args.pre_activation = device().Make(m, n, dtype, true);
      args.activation = kind;
      args.residual = device().Put(residual, dtype, true);
      args.accumulate = true;
      device().backend().MatMul(device().stream(), args);
      // The activation is taken of the pre-activation as it was kept, rounded.
      const Matrix kept = device().Get(args.pre_activation);
      Matrix pre(m, n), want(m, n);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          pre.at(i, j) = product.at(i, j) + bias.at(0, j);
          want.at(i, j) =
              before.at(i, j) + ActivationValue(kind, kept.at(i, j)) + residual.at(i, j);
        }
      }
      ExpectNear(kept, pre, 1e-6, 1e-5, dtype, "pre-activation");
      ExpectNear(device().Get(args.c), want, 1e-6, 1e-5, dtype, "forward");

      MatMulArgs backward = args;
      backward.bias = backward.pre_activation = Tensor();
      backward.activation = Activation::kNone;
      backward.accumulate = false;
      backward.c = device().Put(residual, dtype, true);
      backward.residual = backward.c;
      if (kind != Activation::kNone) {
        backward.derivative = kind;
        backward.derivative_input = device().Put(input, dtype, true);
      }
      device().backend().MatMul(device().stream(), backward);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          want.at(i, j) =
              product.at(i, j) * ActivationSlope(kind, input.at(i, j)) + residual.at(i, j);
        }
      }
      ExpectNear(device().Get(backward.c), want, 1e-6, 2e-5, dtype, "backward");
    }
  }
}

TEST_P(MatMulTest, RowHasTheSameBitsAloneInAFewAndInAll) {
  const auto [dtype, transpose_a, transpose_b] = GetParam();
  const int64_t m = 500, n = 75, k = 600;
  const Matrix a = transpose_a ? Matrix::Random(k, m, dtype, 1) : Matrix::Random(m, k, dtype, 1);
  const Matrix b = transpose_b ? Matrix::Random(n, k, dtype, 2) : Matrix::Random(k, n, dtype, 2);
  MatMulArgs args;
  args.a = device().Put(a, dtype);
  args.b = device().Put(b, dtype);
  args.c = device().Make(m, n, DType::kFloat32);
  args.transpose_a = transpose_a;
  args.transpose_b = transpose_b;
  args.residual = device().Put(Matrix::Random(m, n, dtype, 3), dtype);
  device().backend().MatMul(device().stream(), args);
  const Matrix all = device().Get(args.c);
  for (const auto& [begin, count] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {499, 1}, {17, 2}, {3, 5}, {101, 7}, {50, 400}}) {
    MatMulArgs some = args;
    some.a = transpose_a ? args.a.SliceCols(begin, count) : args.a.SliceRows(begin, count);
    some.residual = args.residual.SliceRows(begin, count);
    some.c = device().Make(count, n, DType::kFloat32);
    device().backend().MatMul(device().stream(), some);
    const Matrix got = device().Get(some.c);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < n; ++j)
        ASSERT_EQ(got.at(i, j), all.at(begin + i, j)) << count << " rows from " << begin;
    }
  }
  // Columns too: a slice of b is what a shard of it would be.
  for (const auto& [begin, count] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {30, 33}, {74, 1}}) {
    MatMulArgs some = args;
    some.b = transpose_b ? args.b.SliceRows(begin, count) : args.b.SliceCols(begin, count);
    some.residual = args.residual.SliceCols(begin, count);
    some.c = device().Make(m, count, DType::kFloat32);
    device().backend().MatMul(device().stream(), some);
    const Matrix got = device().Get(some.c);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < count; ++j)
        ASSERT_EQ(got.at(i, j), all.at(i, begin + j)) << count << " columns from " << begin;
    }
  }
}

// As products of their own, to the bit: what one matrix of several gives does not depend on those
// that lie beside it.
TEST_P(MatMulTest, SeamsSumEachMatrixAloneAndAddFromTheLast) {
  const auto [dtype, transpose_a, transpose_b] = GetParam();
  constexpr int64_t kDepth = 1000, kFirst = 300, kSecond = 617;
  for (const int64_t m : {2, 40}) {
    device().Clear();
    const Matrix a =
        transpose_a ? Matrix::Random(kDepth, m, dtype, 1) : Matrix::Random(m, kDepth, dtype, 1);
    const Matrix b =
        transpose_b ? Matrix::Random(50, kDepth, dtype, 2) : Matrix::Random(kDepth, 50, dtype, 2);
    MatMulArgs args;
    args.a = device().Put(a, dtype);
    args.b = device().Put(b, dtype);
    args.c = device().Make(m, 50, DType::kFloat32);
    args.transpose_a = transpose_a;
    args.transpose_b = transpose_b;
    args.seams = {kFirst, kSecond};
    device().backend().MatMul(device().stream(), args);
    MatMulArgs part = args;
    part.c = device().Put(Matrix(m, 50), DType::kFloat32);
    part.accumulate = true;
    part.seams = {0, 0};
    const int64_t ends[] = {0, kFirst, kSecond, kDepth};
    for (int i = 2; i >= 0; --i) {
      const int64_t begin = ends[i], count = ends[i + 1] - begin;
      part.a = transpose_a ? args.a.SliceRows(begin, count) : args.a.SliceCols(begin, count);
      part.b = transpose_b ? args.b.SliceCols(begin, count) : args.b.SliceRows(begin, count);
      device().backend().MatMul(device().stream(), part);
    }
    EXPECT_EQ(device().Get(args.c).values, device().Get(part.c).values) << m << " rows";
  }
}

TEST_P(MatMulTest, ThreadsDoNotChangeABit) {
  const auto [dtype, transpose_a, transpose_b] = GetParam();
  std::vector<double> first;
  for (int threads : {1, 2, 3, 5}) {
    CpuDevice other(threads);
    std::vector<double> all;
    for (const auto& [m, n, k] : {Case{1, 300, 300}, Case{411, 130, 520}, Case{90, 700, 33}}) {
      MatMulArgs args;
      args.a = other.Put(
          transpose_a ? Matrix::Random(k, m, dtype, 1) : Matrix::Random(m, k, dtype, 1), dtype);
      args.b = other.Put(
          transpose_b ? Matrix::Random(n, k, dtype, 2) : Matrix::Random(k, n, dtype, 2), dtype);
      args.c = other.Put(Matrix(m, n, 0.5), DType::kFloat32);
      args.transpose_a = transpose_a;
      args.transpose_b = transpose_b;
      args.accumulate = true;
      other.backend().MatMul(other.stream(), args);
      const Matrix got = other.Get(args.c);
      all.insert(all.end(), got.values.begin(), got.values.end());
    }
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(, MatMulTest,
                         testing::Combine(testing::Values(DType::kFloat32, DType::kBFloat16),
                                          testing::Bool(), testing::Bool()),
                         [](const auto& info) {
                           return std::string(NameOf(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "T" : "N") +
                                  (std::get<2>(info.param) ? "T" : "N");
                         });

// b too large to be packed as a whole, and k of a vocabulary.
TEST(MatMul, LargeFactorsAreCutWithoutChangingResults) {
  CpuDevice device(2);
  for (const auto& [m, n, k] : {Case{386, 40, 9000}, Case{400, 1500, 4200}}) {
    device.Clear();
    const Matrix a = Matrix::Random(m, k, DType::kFloat32, 1),
                 b = Matrix::Random(n, k, DType::kFloat32, 2);
    MatMulArgs args;
    args.a = device.Put(a, DType::kFloat32);
    args.b = device.Put(b, DType::kFloat32);
    args.c = device.Make(m, n, DType::kFloat32);
    args.transpose_b = true;
    device.backend().MatMul(device.stream(), args);
    const Matrix got = device.Get(args.c);
    for (int64_t i = 0; i < m; i += 5) {
      for (int64_t j = 0; j < n; j += 7) {
        double want = 0, magnitude = 0;
        for (int64_t p = 0; p < k; ++p) {
          want += a.at(i, p) * b.at(j, p);
          magnitude += std::abs(a.at(i, p) * b.at(j, p));
        }
        ASSERT_LE(std::abs(got.at(i, j) - want), 4e-7 * magnitude) << i << ' ' << j;
      }
    }
  }
}

TEST(BiasBackward, AddsColumnSumsThatDoNotDependOnThreads) {
  std::vector<double> first;
  for (int threads : {1, 2, 3}) {
    CpuDevice device(threads);
    std::vector<double> all;
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const auto& [rows, cols] :
           {std::pair<int64_t, int64_t>{1, 5}, {63, 32}, {200, 33}, {1029, 70}}) {
        device.Clear();
        const Matrix d_out = Matrix::Random(rows, cols, dtype, 7);
        const Matrix before = Matrix::Random(1, cols, DType::kFloat32, 8);
        const Tensor sums = device.Put(before, DType::kFloat32);
        device.backend().BiasBackward(device.stream(), sums, device.Put(d_out, dtype, true));
        const Matrix got = device.Get(sums);
        Matrix want = before;
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < cols; ++j) want.at(0, j) += d_out.at(i, j);
        }
        ExpectNear(got, want, 1e-6, 1e-5, DType::kFloat32);
        all.insert(all.end(), got.values.begin(), got.values.end());
      }
    }
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << threads << " threads";
  }
}

}  // namespace
}  // namespace tranche
