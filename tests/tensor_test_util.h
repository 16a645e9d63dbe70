// What the tests of the tensor floor share: matrices of double as the independent truth, and a CPU
// device that takes them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "gtest/gtest.h"
#include "tensor/backend.h"

namespace tranche {

// What a value becomes in memory of `dtype`.
inline double Rounded(double value, DType dtype) {
  const float narrow = static_cast<float>(value);
  return dtype == DType::kBFloat16 ? static_cast<float>(BFloat16(narrow)) : narrow;
}

struct Matrix {
  Matrix(int64_t rows_in, int64_t cols_in, double value = 0)
      : rows(rows_in), cols(cols_in), values(static_cast<size_t>(rows_in * cols_in), value) {}
  double& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * cols + j)]; }
  double at(int64_t i, int64_t j) const { return values[static_cast<size_t>(i * cols + j)]; }

  // Normal values that `dtype` holds exactly.
  static Matrix Random(int64_t rows, int64_t cols, DType dtype, uint64_t key) {
    Matrix m(rows, cols);
    RandomSequence random(key);
    for (double& value : m.values) value = Rounded(random.Normal(), dtype);
    return m;
  }

  int64_t rows, cols;
  std::vector<double> values;
};

// A CPU backend with one stream and an arena. Tensors may have a stride beyond their columns; what
// lies between rows is filled with a pattern, and Get checks that it is still there.
class CpuDevice {
 public:
  static constexpr int64_t kPadding = 3;

  explicit CpuDevice(int threads)
      : backend_(CreateCpuBackend(threads)), arena_(Arena::OnHost(int64_t{64} << 20).value()) {
    WorkspaceLimits limits;
    limits.max_tokens = 4096;
    limits.max_segments = 16;
    limits.heads = 4;
    limits.head_dim = 64;
    backend_->ReserveWorkspace(limits, arena_);
    start_ = arena_.Mark();
    stream_ = backend_->CreateStream("test");
  }

  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }
  Arena& arena() { return arena_; }
  void Sync() { backend_->Synchronize(*stream_); }
  // Forgets all tensors.
  void Clear() {
    Sync();
    arena_.Rewind(start_);
  }

  Tensor Make(int64_t rows, int64_t cols, DType dtype, bool strided = false) {
    const int64_t stride = cols + (strided ? kPadding : 0);
    Tensor tensor = arena_.Allocate("test", MemoryKind::kActivations, dtype, rows, stride);
    std::memset(tensor.data, kPattern, static_cast<size_t>(rows * stride * SizeOf(dtype)));
    return tensor.SliceCols(0, cols);
  }
  Tensor Put(const Matrix& matrix, DType dtype, bool strided = false) {
    Tensor tensor = Make(matrix.rows, matrix.cols, dtype, strided);
    for (int64_t i = 0; i < matrix.rows; ++i) {
      for (int64_t j = 0; j < matrix.cols; ++j) {
        const double value = matrix.at(i, j);
        if (dtype == DType::kFloat32) tensor.Row<float>(i)[j] = static_cast<float>(value);
        if (dtype == DType::kBFloat16)
          tensor.Row<BFloat16>(i)[j] = BFloat16(static_cast<float>(value));
        if (dtype == DType::kFloat64) tensor.Row<double>(i)[j] = value;
      }
    }
    return tensor;
  }
  Tensor PutIndices(const std::vector<int32_t>& indices) {
    Tensor tensor = Make(1, static_cast<int64_t>(indices.size()), DType::kInt32);
    std::memcpy(tensor.data, indices.data(), indices.size() * sizeof(int32_t));
    return tensor;
  }
  // After all work.
  Matrix Get(const Tensor& tensor) {
    Sync();
    Matrix matrix(tensor.rows, tensor.cols);
    for (int64_t i = 0; i < tensor.rows; ++i) {
      for (int64_t j = 0; j < tensor.cols; ++j) {
        if (tensor.dtype == DType::kFloat32) matrix.at(i, j) = tensor.Row<float>(i)[j];
        if (tensor.dtype == DType::kBFloat16)
          matrix.at(i, j) = static_cast<float>(tensor.Row<BFloat16>(i)[j]);
        if (tensor.dtype == DType::kFloat64) matrix.at(i, j) = tensor.Row<double>(i)[j];
      }
      const int64_t size = SizeOf(tensor.dtype);
      const std::byte* row_end = tensor.data + (i * tensor.stride + tensor.cols) * size;
      for (int64_t k = 0; k < (tensor.stride - tensor.cols) * size; ++k) {
        EXPECT_EQ(row_end[k], std::byte{kPattern}) << "written behind the end of row " << i;
        if (row_end[k] != std::byte{kPattern}) return matrix;
      }
    }
    return matrix;
  }

 private:
  static constexpr int kPattern = 0x5a;

  std::unique_ptr<Backend> backend_;
  Arena arena_;
  int64_t start_ = 0;
  std::unique_ptr<Stream> stream_;
};

// |got − want| <= relative·|want| + absolute for every element, where bf16 results may be off by
// their rounding besides.
inline void ExpectNear(const Matrix& got, const Matrix& want, double relative, double absolute,
                       DType dtype, const std::string& what = "") {
  ASSERT_EQ(got.rows, want.rows);
  ASSERT_EQ(got.cols, want.cols);
  const double rounding = dtype == DType::kBFloat16 ? 0x1p-8 : 0;
  for (int64_t i = 0; i < want.rows; ++i) {
    for (int64_t j = 0; j < want.cols; ++j) {
      const double bound = (relative + rounding) * std::abs(want.at(i, j)) + absolute;
      ASSERT_LE(std::abs(got.at(i, j) - want.at(i, j)), bound)
          << what << " [" << i << ", " << j << "] of [" << want.rows << ", " << want.cols
          << "]: " << got.at(i, j) << " should be " << want.at(i, j);
    }
  }
}

inline const char* NameOf(DType dtype) { return dtype == DType::kFloat32 ? "fp32" : "bf16"; }

// The activations by their definitions, and their derivatives by central differences of those.
inline double ActivationValue(Activation kind, double x) {
  switch (kind) {
    case Activation::kNone:
      return x;
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kQuickGelu:
      return x / (1 + std::exp(-1.702 * x));
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kTanh:
      return std::tanh(x);
  }
  return NAN;
}

inline double ActivationSlope(Activation kind, double x) {
  if (kind == Activation::kRelu) return x > 0 ? 1 : 0;
  const double h = 1e-4;  // fourth-order differences: error about h^4 and 1e-16/h
  return (8 * (ActivationValue(kind, x + h) - ActivationValue(kind, x - h)) -
          (ActivationValue(kind, x + 2 * h) - ActivationValue(kind, x - 2 * h))) /
         (12 * h);
}

inline constexpr Activation kAllActivations[] = {
    Activation::kNone,      Activation::kGelu, Activation::kGeluTanh, Activation::kSilu,
    Activation::kQuickGelu, Activation::kRelu, Activation::kTanh};

}  // namespace tranche
