// The transformer: one block, many configurations. Forward and backward by hand over a Backend; no
// tape. It owns its activations (taken from the arena when it is made) and nothing else: weights
// and gradients belong to the GroupAccess.
//
// Tokens of a micro-batch lie flattened, unpadded: N rows of hidden_size. Only rows that are
// predicted go through the head, in chunks, so that logits [N, V] never exist.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/device_batch.h"
#include "model/group_access.h"
#include "model/key_value_cache.h"
#include "model/model_config.h"
#include "model/param_spec.h"
#include "model/transformer_options.h"
#include "tensor/backend.h"

namespace tranche {

class Transformer {
 public:
  virtual ~Transformer() = default;

  // Takes its memory from the arena: what lives through a pass first, then one region that the
  // phases (forward, head, backward) share. `specs` as BuildParamSpecs gives them, in the numbering
  // of `groups`. Backend, arena and groups must outlive it. InvalidArgument where segments of
  // max_length have no learned positions.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(const ModelConfig& config,
                                                             const std::vector<ParamSpec>& specs,
                                                             const TransformerOptions& options,
                                                             Backend& backend, Arena& arena,
                                                             GroupAccess& groups);

  // Adds the micro-batch's summed loss (nats over predicted tokens) to loss_sum [1, 1] fp64 and
  // loss_scale times its gradient to the parameters' gradients. loss_scale is 1 / predicted tokens
  // of the whole global batch. With a next-sentence head, its summed loss and next_sentence_scale
  // (1 / sequences of the global batch) likewise; next_sentence_loss_sum is undefined without that
  // head. dropout_key: of (seed, step). A micro-batch with nothing to predict walks the groups and
  // adds nothing.
  virtual void ForwardBackward(Stream& stream, const DeviceBatch& batch, float loss_scale,
                               float next_sentence_scale, uint64_t dropout_key, Tensor loss_sum,
                               Tensor next_sentence_loss_sum) = 0;

  // Without gradients and dropout. row_losses [1, predicted] fp32 where defined.
  virtual void Evaluate(Stream& stream, const DeviceBatch& batch, Tensor loss_sum,
                        Tensor next_sentence_loss_sum, Tensor row_losses) = 0;

  // The logits [predicted, V] fp32 of the rows in batch.predict_rows, without dropout: for `verify`
  // and `generate`, where all of them are wanted. next_sentence_logits [sequences, 2] fp32, or
  // undefined.
  virtual void Logits(Stream& stream, const DeviceBatch& batch, Tensor logits,
                      Tensor next_sentence_logits) = 0;

  // As Logits, for a causal model whose batch is one segment that continues `cache` (one per
  // layer); the keys and values of its tokens are added behind those that are there. The caller
  // advances length.
  virtual void Decode(Stream& stream, const DeviceBatch& batch, absl::Span<KeyValueCache> cache,
                      Tensor logits) = 0;

  // Largest number of rows whose logits exist at once.
  virtual int64_t head_chunk_rows() const = 0;
};

}  // namespace tranche
