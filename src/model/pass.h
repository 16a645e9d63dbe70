// One run of a micro-batch through the model, and the steps that its blocks share: affine maps,
// norms and dropout by parameter role.
#pragma once

#include <cstdint>

#include "model/device_batch.h"
#include "model/group_params.h"
#include "tensor/backend.h"

namespace tranche {

// Which dropout of a block draws: part of the counter, so no two places share random numbers.
enum class DropoutPlace : uint32_t {
  kEmbedding,
  kAttention,
  kAttentionOutput,
  kMlpInner,
  kMlpOutput,
  kCount
};

struct Pass {
  Backend& backend;
  Stream& stream;
  const BatchView& batch;
  bool dropout = false;      // false: evaluation
  uint64_t dropout_key = 0;  // of (seed, step)

  // Probability 0 (nothing to do) when evaluating. `group` as in ParamSpec.
  DropoutArgs Dropout(double probability, int group, DropoutPlace place) const;
};

// Views of the first `rows` rows; undefined stays undefined.
inline Tensor Rows(Tensor tensor, int64_t rows) {
  return tensor.defined() ? tensor.SliceRows(0, rows) : tensor;
}

struct AffineRoles {
  ParamRole weight, bias;
};

// d_input = d_output·W (+ residual, which may be d_input). Skipped where d_input is undefined.
// Weight and bias gradients += from input and d_output.
void AffineBackward(const Pass& pass, const GroupParams& params, AffineRoles roles, Tensor input,
                    Tensor d_output, Tensor residual, Tensor d_input);

// output = dropout(input·Wᵀ + b) + residual. residual may be undefined; where it is output itself
// and dropout draws, `temporary` [rows, cols of output] holds the product.
void AffineDropoutResidual(const Pass& pass, const GroupParams& params, AffineRoles roles,
                           const DropoutArgs& dropout, Tensor input, Tensor residual,
                           Tensor temporary, Tensor output);
// The gradient of that product, given d_output: d_output itself where nothing draws, else
// `temporary` [at least as many rows].
Tensor ProductGradient(const Pass& pass, const DropoutArgs& dropout, Tensor d_output,
                       Tensor temporary);

// A norm of `groups` equal parts of each row; see NormArgs.
struct NormSpec {
  NormKind kind = NormKind::kLayerNorm;
  double eps = 0;
  int64_t groups = 1;
  ParamRole weight, bias;
};
void NormForward(const Pass& pass, const GroupParams& params, const NormSpec& spec, Tensor x,
                 Tensor y, Tensor statistics);
void NormBackward(const Pass& pass, const GroupParams& params, const NormSpec& spec, Tensor d_y,
                  Tensor x, Tensor statistics, Tensor d_x, Tensor residual);

}  // namespace tranche
