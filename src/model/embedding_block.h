// The entrance of the model: x = dropout(norm?(token[ids] + position[p]? + token_type[t]?)), [N,
// H].
#pragma once

#include "model/pass.h"

namespace tranche {

class EmbeddingBlock {
 public:
  struct Saved {
    Tensor sum;         // [N, H], with a norm: what the norm reads
    Tensor statistics;  // [N, 2] fp32, with a norm
  };

  EmbeddingBlock(const ModelConfig& config, const std::vector<ParamSpec>& specs,
                 GroupAccess& groups);

  void Allocate(const TransformerOptions& options, Arena& arena, Saved* saved) const;

  void Forward(const Pass& pass, const Saved& saved, Tensor out) const;
  // d [N, H]: the gradient of out; used up.
  void Backward(const Pass& pass, const Saved& saved, Tensor d) const;

  bool has_norm() const { return config_.embedding_norm; }

 private:
  void Sum(const Pass& pass, Tensor out) const;

  const ModelConfig& config_;
  const GroupParams params_;
  const NormSpec norm_;
};

}  // namespace tranche
