// The feed-forward half of one layer.
//
//   plain: a = f(x·W_inᵀ + b);  gated: [g | u] = x·W_inᵀ + b, a = f(g)·u
//   out = residual + dropout(dropout(a)·W_outᵀ + b_out)
//
// N tokens, H hidden, I intermediate.
#pragma once

#include <string>

#include "model/pass.h"

namespace tranche {

class MlpBlock {
 public:
  struct Saved {
    Tensor pre;        // costly [N, I] or, gated, [N, 2I]: what the activation is taken of
    Tensor activated;  // cheap [N, I], after the inner dropout
  };
  struct Scratch {
    Tensor d_branch;     // [N, H] where the output has dropout
    Tensor d_activated;  // [N, I] where the derivative does not fuse into the product
    Tensor d_pre;        // as Saved::pre
  };

  MlpBlock(const ModelConfig& config, int layer, const GroupParams& params)
      : config_(config), group_(layer + 1), params_(params) {}

  // Without training, pre exists only where the computation itself needs it.
  void AllocateCostly(const std::string& prefix, const TransformerOptions& options, Arena& arena,
                      Saved* saved) const;
  void AllocateCheap(const std::string& prefix, const TransformerOptions& options, Arena& arena,
                     Saved* saved) const;
  void AllocateScratch(const std::string& prefix, const TransformerOptions& options, Arena& arena,
                       Scratch* scratch) const;

  // As AttentionBlock's, up to saved.activated.
  void Forward(const Pass& pass, bool cheap_only, Tensor x, const Saved& saved) const;
  void Project(const Pass& pass, const Saved& saved, Tensor residual, Tensor temporary,
               Tensor out) const;
  void Backward(const Pass& pass, Tensor d_out, Tensor x, const Saved& saved,
                const Scratch& scratch, Tensor residual, Tensor d_x) const;

 private:
  DropoutArgs InnerDropout(const Pass& pass) const;
  DropoutArgs OutputDropout(const Pass& pass) const;
  bool fused_derivative() const { return !config_.gated && config_.mlp_inner_dropout == 0; }

  const ModelConfig& config_;
  const int group_;
  const GroupParams& params_;
};

}  // namespace tranche
