#include "model/mlp_block.h"

namespace tranche {
namespace {

constexpr AffineRoles kIn{ParamRole::kMlpInWeight, ParamRole::kMlpInBias};
constexpr AffineRoles kOut{ParamRole::kMlpOutWeight, ParamRole::kMlpOutBias};

}  // namespace

void MlpBlock::AllocateCostly(const std::string& prefix, const TransformerOptions& options,
                              Arena& arena, Saved* saved) const {
  if (!options.training && !config_.gated) return;
  saved->pre = arena.Allocate(prefix + "mlp.pre", MemoryKind::kActivations, options.dtype,
                              options.max_tokens, config_.intermediate_size * (config_.gated + 1));
}

void MlpBlock::AllocateCheap(const std::string& prefix, const TransformerOptions& options,
                             Arena& arena, Saved* saved) const {
  saved->activated = arena.Allocate(prefix + "mlp.activated", MemoryKind::kActivations,
                                    options.dtype, options.max_tokens, config_.intermediate_size);
}

void MlpBlock::AllocateScratch(const std::string& prefix, const TransformerOptions& options,
                               Arena& arena, Scratch* scratch) const {
  const auto matrix = [&](const char* name, int64_t cols) {
    return arena.Allocate(prefix + name, MemoryKind::kActivations, options.dtype,
                          options.max_tokens, cols);
  };
  if (config_.mlp_output_dropout > 0) {
    scratch->d_branch = matrix("d_mlp_branch", config_.hidden_size);
  }
  if (!fused_derivative()) {
    scratch->d_activated = matrix("d_mlp.activated", config_.intermediate_size);
  }
  scratch->d_pre = matrix("d_mlp.pre", config_.intermediate_size * (config_.gated + 1));
}

DropoutArgs MlpBlock::InnerDropout(const Pass& pass) const {
  return pass.Dropout(config_.mlp_inner_dropout, group_, DropoutPlace::kMlpInner);
}

DropoutArgs MlpBlock::OutputDropout(const Pass& pass) const {
  return pass.Dropout(config_.mlp_output_dropout, group_, DropoutPlace::kMlpOutput);
}

void MlpBlock::Forward(const Pass& pass, bool cheap_only, Tensor x, const Saved& saved) const {
  if (!cheap_only) {
    MatMulArgs product{.a = x,
                       .b = params_.weight(kIn.weight),
                       .c = config_.gated ? saved.pre : saved.activated,
                       .transpose_b = true,
                       .bias = params_.weight(kIn.bias)};
    if (!config_.gated) {
      product.activation = config_.activation;
      product.pre_activation = saved.pre;
    }
    pass.backend.MatMul(pass.stream, product);
  }
  if (config_.gated) {
    pass.backend.GatedForward(pass.stream, config_.activation, /*gate_first=*/true, saved.pre,
                              saved.activated);
  } else if (cheap_only) {
    pass.backend.ActivationForward(pass.stream, config_.activation, saved.pre, saved.activated);
  }
  if (const DropoutArgs dropout = InnerDropout(pass); dropout.probability > 0) {
    pass.backend.Dropout(pass.stream, dropout, saved.activated, Tensor(), saved.activated);
  }
}

void MlpBlock::Project(const Pass& pass, const Saved& saved, Tensor residual, Tensor temporary,
                       Tensor out) const {
  AffineDropoutResidual(pass, params_, kOut, OutputDropout(pass), saved.activated, residual,
                        temporary, out);
}

void MlpBlock::Backward(const Pass& pass, Tensor d_out, Tensor x, const Saved& saved,
                        const Scratch& scratch, Tensor residual, Tensor d_x) const {
  const int64_t n = pass.batch.tokens;
  d_out = ProductGradient(pass, OutputDropout(pass), d_out, scratch.d_branch);
  const Tensor d_pre = Rows(scratch.d_pre, n);
  if (fused_derivative()) {
    AffineBackward(pass, params_, kOut, saved.activated, d_out, Tensor(), Tensor());
    pass.backend.MatMul(pass.stream, {.a = d_out,
                                      .b = params_.weight(kOut.weight),
                                      .c = d_pre,
                                      .derivative = config_.activation,
                                      .derivative_input = saved.pre});
  } else {
    const Tensor d_activated = Rows(scratch.d_activated, n);
    AffineBackward(pass, params_, kOut, saved.activated, d_out, Tensor(), d_activated);
    if (const DropoutArgs dropout = InnerDropout(pass); dropout.probability > 0) {
      pass.backend.Dropout(pass.stream, dropout, d_activated, Tensor(), d_activated);
    }
    if (config_.gated) {
      pass.backend.GatedBackward(pass.stream, config_.activation, /*gate_first=*/true, d_activated,
                                 saved.pre, d_pre);
    } else {
      pass.backend.ActivationBackward(pass.stream, config_.activation, d_activated, saved.pre,
                                      d_pre);
    }
  }
  AffineBackward(pass, params_, kIn, x, d_pre, residual, d_x);
}

}  // namespace tranche
