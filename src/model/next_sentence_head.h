// BERT's second head: does sentence B follow A? Over the first token of each of the Q sequences:
//   pooled = tanh(x·Pᵀ + b);  logits2 = pooled·Nᵀ + b
#pragma once

#include "model/pass.h"

namespace tranche {

class NextSentenceHead {
 public:
  NextSentenceHead(const ModelConfig& config, const std::vector<ParamSpec>& specs,
                   GroupAccess& groups)
      : config_(config), params_(specs, static_cast<int>(config.num_layers) + 1, groups) {}

  // Scratch that is alive only within the calls below.
  void Allocate(const TransformerOptions& options, Arena& arena);

  // As HeadBlock's.
  void LossAndGradient(const Pass& pass, Tensor x, float scale, Tensor loss_sum, Tensor d_x) const;
  void Loss(const Pass& pass, Tensor x, Tensor loss_sum) const;
  void Logits(const Pass& pass, Tensor x, Tensor logits) const;  // [Q, 2] fp32

 private:
  void Forward(const Pass& pass, Tensor x) const;

  const ModelConfig& config_;
  const GroupParams params_;
  Tensor first_, pre_, pooled_, logits_, d_pooled_;
};

}  // namespace tranche
