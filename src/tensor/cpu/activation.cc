// Activations alone and gated. Rows pass through fp32 stretches that stay in the first-level cache.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/activation.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "tensor/cpu/activation_rows.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/vector-inl.h"

#ifndef TRANCHE_TENSOR_CPU_ACTIVATION_STRETCH_
#define TRANCHE_TENSOR_CPU_ACTIVATION_STRETCH_
namespace tranche::cpu {
inline constexpr int64_t kStretch = 1024;
}
#endif

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

template <typename To, typename From>
HWY_INLINE void ConvertStretch(To* to, const From* from, int64_t count) {
  ForVectors(count, [&](int64_t i, auto extent) { Store(Load(from + i, extent), to + i, extent); });
}

template <typename To, typename A, typename B>
HWY_INLINE void StoreProduct(To* to, const A* a, const B* b, int64_t count) {
  ForVectors(count, [&](int64_t i, auto extent) {
    Store(hn::Mul(Load(a + i, extent), Load(b + i, extent)), to + i, extent);
  });
}

template <typename T>
void Forward(Activation kind, const T* x, T* y, int64_t count) {
  HWY_ALIGN float buffer[kStretch];
  ConvertStretch(buffer, x, count);
  Activate(kind, buffer, count);
  ConvertStretch(y, buffer, count);
}

template <typename T>
void Backward(Activation kind, const T* d_y, const T* x, T* d_x, int64_t count) {
  HWY_ALIGN float input[kStretch] = {}, gradient[kStretch];
  ConvertStretch(input, x, count);
  ConvertStretch(gradient, d_y, count);
  Differentiate(kind, input, gradient, count);
  ConvertStretch(d_x, gradient, count);
}

template <typename T>
void ForwardGated(Activation kind, const T* gate, const T* up, T* y, int64_t count) {
  HWY_ALIGN float buffer[kStretch];
  ConvertStretch(buffer, gate, count);
  Activate(kind, buffer, count);
  StoreProduct(y, buffer, up, count);
}

template <typename T>
void BackwardGated(Activation kind, const T* d_y, const T* gate, const T* up, T* d_gate, T* d_up,
                   int64_t count) {
  HWY_ALIGN float input[kStretch] = {}, value[kStretch], gradient[kStretch];
  ConvertStretch(input, gate, count);
  ConvertStretch(value, gate, count);
  Activate(kind, value, count);
  ForVectors(count, [&](int64_t i, auto extent) {
    const VF d = Load(d_y + i, extent);
    Store(hn::Mul(d, Load(up + i, extent)), gradient + i, extent);
    Store(hn::Mul(d, Load(value + i, extent)), d_up + i, extent);
  });
  Differentiate(kind, input, gradient, count);
  ConvertStretch(d_gate, gradient, count);
}

void ForwardFloat(Activation kind, const float* x, float* y, int64_t count) {
  Forward(kind, x, y, count);
}
void ForwardBFloat16(Activation kind, const BFloat16* x, BFloat16* y, int64_t count) {
  Forward(kind, x, y, count);
}
void BackwardFloat(Activation kind, const float* d_y, const float* x, float* d_x, int64_t count) {
  Backward(kind, d_y, x, d_x, count);
}
void BackwardBFloat16(Activation kind, const BFloat16* d_y, const BFloat16* x, BFloat16* d_x,
                      int64_t count) {
  Backward(kind, d_y, x, d_x, count);
}
void GatedForwardFloat(Activation kind, const float* gate, const float* up, float* y,
                       int64_t count) {
  ForwardGated(kind, gate, up, y, count);
}
void GatedForwardBFloat16(Activation kind, const BFloat16* gate, const BFloat16* up, BFloat16* y,
                          int64_t count) {
  ForwardGated(kind, gate, up, y, count);
}
void GatedBackwardFloat(Activation kind, const float* d_y, const float* gate, const float* up,
                        float* d_gate, float* d_up, int64_t count) {
  BackwardGated(kind, d_y, gate, up, d_gate, d_up, count);
}
void GatedBackwardBFloat16(Activation kind, const BFloat16* d_y, const BFloat16* gate,
                           const BFloat16* up, BFloat16* d_gate, BFloat16* d_up, int64_t count) {
  BackwardGated(kind, d_y, gate, up, d_gate, d_up, count);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {
namespace {

HWY_EXPORT(ForwardFloat);
HWY_EXPORT(ForwardBFloat16);
HWY_EXPORT(BackwardFloat);
HWY_EXPORT(BackwardBFloat16);
HWY_EXPORT(GatedForwardFloat);
HWY_EXPORT(GatedForwardBFloat16);
HWY_EXPORT(GatedBackwardFloat);
HWY_EXPORT(GatedBackwardBFloat16);

// Calls body(row, first column, columns) for stretches of each row, rows in parallel.
template <typename Body>
void ForStretches(int64_t rows, int64_t cols, int threads, const Body& body) {
  ParallelFor(rows, RowGrain(cols), threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t col = 0; col < cols; col += kStretch)
        body(row, col, std::min(kStretch, cols - col));
    }
  });
}

}  // namespace

void ActivationForward(Activation kind, Tensor x, Tensor y, int threads) {
  ForStretches(x.rows, x.cols, threads, [&](int64_t row, int64_t col, int64_t count) {
    if (x.dtype == DType::kFloat32) {
      HWY_DYNAMIC_DISPATCH(ForwardFloat)
      (kind, x.Row<float>(row) + col, y.Row<float>(row) + col, count);
    } else {
      HWY_DYNAMIC_DISPATCH(ForwardBFloat16)
      (kind, x.Row<BFloat16>(row) + col, y.Row<BFloat16>(row) + col, count);
    }
  });
}

void ActivationBackward(Activation kind, Tensor d_y, Tensor x, Tensor d_x, int threads) {
  ForStretches(x.rows, x.cols, threads, [&](int64_t row, int64_t col, int64_t count) {
    if (x.dtype == DType::kFloat32) {
      HWY_DYNAMIC_DISPATCH(BackwardFloat)
      (kind, d_y.Row<float>(row) + col, x.Row<float>(row) + col, d_x.Row<float>(row) + col, count);
    } else {
      HWY_DYNAMIC_DISPATCH(BackwardBFloat16)
      (kind, d_y.Row<BFloat16>(row) + col, x.Row<BFloat16>(row) + col, d_x.Row<BFloat16>(row) + col,
       count);
    }
  });
}

void GatedForward(Activation kind, bool gate_first, Tensor x, Tensor y, int threads) {
  const Tensor gate = x.SliceCols(gate_first ? 0 : y.cols, y.cols);
  const Tensor up = x.SliceCols(gate_first ? y.cols : 0, y.cols);
  ForStretches(y.rows, y.cols, threads, [&](int64_t row, int64_t col, int64_t count) {
    if (x.dtype == DType::kFloat32) {
      HWY_DYNAMIC_DISPATCH(GatedForwardFloat)
      (kind, gate.Row<float>(row) + col, up.Row<float>(row) + col, y.Row<float>(row) + col, count);
    } else {
      HWY_DYNAMIC_DISPATCH(GatedForwardBFloat16)
      (kind, gate.Row<BFloat16>(row) + col, up.Row<BFloat16>(row) + col, y.Row<BFloat16>(row) + col,
       count);
    }
  });
}

void GatedBackward(Activation kind, bool gate_first, Tensor d_y, Tensor x, Tensor d_x,
                   int threads) {
  const int64_t gate_at = gate_first ? 0 : d_y.cols, up_at = gate_first ? d_y.cols : 0;
  const Tensor gate = x.SliceCols(gate_at, d_y.cols), up = x.SliceCols(up_at, d_y.cols);
  const Tensor d_gate = d_x.SliceCols(gate_at, d_y.cols), d_up = d_x.SliceCols(up_at, d_y.cols);
  ForStretches(d_y.rows, d_y.cols, threads, [&](int64_t row, int64_t col, int64_t count) {
    if (x.dtype == DType::kFloat32) {
      HWY_DYNAMIC_DISPATCH(GatedBackwardFloat)
      (kind, d_y.Row<float>(row) + col, gate.Row<float>(row) + col, up.Row<float>(row) + col,
       d_gate.Row<float>(row) + col, d_up.Row<float>(row) + col, count);
    } else {
      HWY_DYNAMIC_DISPATCH(GatedBackwardBFloat16)
      (kind, d_y.Row<BFloat16>(row) + col, gate.Row<BFloat16>(row) + col,
       up.Row<BFloat16>(row) + col, d_gate.Row<BFloat16>(row) + col, d_up.Row<BFloat16>(row) + col,
       count);
    }
  });
}

}  // namespace tranche::cpu
#endif  // HWY_ONCE
