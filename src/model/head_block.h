// The exit of the model: norm and decoder over the rows that are predicted, and no others, in
// chunks of R rows. A chunk goes forward, through the loss and backward before the next begins, so
// that logits [N, V] never exist.
//
//   causal: f = norm?(x)         masked: f = LayerNorm(act(norm?(x)·Dᵀ + b))
//   logits = f·Wᵀ + b?, W the token embedding where tied
#pragma once

#include "model/pass.h"

namespace tranche {

class HeadBlock {
 public:
  HeadBlock(const ModelConfig& config, const std::vector<ParamSpec>& specs,
            const TransformerOptions& options, GroupAccess& groups);

  // Scratch that is alive only within the calls below.
  void Allocate(const TransformerOptions& options, Arena& arena);

  // x [N, H]. Adds the losses of all predicted rows to loss_sum, in row order, and their gradients,
  // times scale, to the parameters' and to d_x [N, H].
  void LossAndGradient(const Pass& pass, Tensor x, float scale, Tensor loss_sum, Tensor d_x) const;
  // row_losses [1, P] fp32 where defined.
  void Loss(const Pass& pass, Tensor x, Tensor loss_sum, Tensor row_losses) const;
  // logits [P, V] fp32.
  void Logits(const Pass& pass, Tensor x, Tensor logits) const;

  int64_t chunk_rows() const { return chunk_rows_; }

 private:
  // What one chunk of rows makes on its way; undefined where the model has no such step.
  struct Chunk {
    Tensor rows;                          // [1, R] int32
    Tensor gathered;                      // [R, H]
    Tensor normed, statistics;            // the final norm
    Tensor pre, activated;                // the masked head's dense layer
    Tensor features, feature_statistics;  // and its norm
    Tensor logits;                        // [R, V]
    Tensor d_features;                    // [R, H]
  };

  Chunk Forward(const Pass& pass, Tensor x, int64_t begin, int64_t count) const;
  // From d logits in chunk.logits to d_x.
  void Backward(const Pass& pass, const Chunk& chunk, Tensor d_x) const;
  Tensor DecoderWeight() const;
  Tensor DecoderGradient() const;
  Tensor TransformInput(const Chunk& chunk) const;
  Tensor Features(const Chunk& chunk) const;

  const ModelConfig& config_;
  const GroupParams params_, embeddings_;
  const NormSpec final_norm_, transform_norm_;
  int64_t chunk_rows_;
  Chunk scratch_;
};

}  // namespace tranche
