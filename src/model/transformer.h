// The transformer: one block, many configurations. Forward and backward by hand over a Backend; no tape. It owns its activations
// (taken from the arena when it is made) and nothing else: weights and gradients belong to the GroupAccess.
//
// Tokens of a micro-batch lie flattened, unpadded: N rows of hidden_size. Only rows that are predicted go through the head, in chunks,
// so that logits [N, V] never exist.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/batch.h"
#include "model/group_access.h"
#include "model/model_config.h"
#include "model/param_spec.h"
#include "tensor/backend.h"

namespace tranche {

// What the backward finds saved and what it computes again by running Forward.
//   none: everything saved;  selective: cheap, large activations again (norm outputs, activation functions, …), the rest saved;
//   full: only each block's input saved.
enum class Recompute : uint8_t { kNone, kSelective, kFull };
absl::StatusOr<Recompute> ParseRecompute(absl::string_view name);

struct TransformerOptions {
  DType dtype = DType::kFloat32;  // of weights and activations
  Recompute recompute = Recompute::kNone;
  bool training = true;           // false: no memory for backward
  int64_t max_tokens = 0;         // of one micro-batch
  int64_t max_segments = 0;
  int64_t max_predicted = 0;
  int64_t max_length = 0;         // of a segment: decides tables of positions and which longrope factors apply
};

// A micro-batch on the device; buffers of the largest size, views of the actual one.
class DeviceBatch {
 public:
  DeviceBatch(const ModelConfig& config, const TransformerOptions& options, Backend& backend, Arena& arena);
  // `batch` must stay alive until the stream has passed this point.
  void Upload(Stream& stream, const MicroBatch& batch);

 private:
  friend class Transformer;
  Backend& backend_;
  int64_t tokens_ = 0, segments_ = 0, predicted_ = 0, sequences_ = 0, max_length_ = 0;
  std::vector<int32_t> offsets_;  // host copy of the segments' borders, for counting work
  Tensor ids_, positions_, token_types_, segment_offsets_, predict_rows_, labels_, token_keys_;
  Tensor first_rows_, next_sentence_labels_;  // with a next-sentence head
};

class Transformer {
 public:
  virtual ~Transformer() = default;

  static absl::StatusOr<std::unique_ptr<Transformer>> Create(const ModelConfig& config, const std::vector<ParamSpec>& specs,
                                                             const TransformerOptions& options, Backend& backend, Arena& arena,
                                                             GroupAccess& groups);

  // Adds the micro-batch's summed loss (nats over predicted tokens; plus the next-sentence losses, summed, scaled likewise) to loss_sum
  // [1, 1] fp64 and loss_scale times its gradient to the parameters' gradients. loss_scale is 1 / predicted tokens of the whole
  // global batch; next_sentence_scale 1 / its sequences. dropout_key: of (seed, step). nsp_loss_sum as loss_sum; undefined without
  // that head.
  virtual void ForwardBackward(Stream& stream, const DeviceBatch& batch, float loss_scale, float next_sentence_scale,
                               uint64_t dropout_key, Tensor loss_sum, Tensor next_sentence_loss_sum) = 0;

  // Without gradients and dropout. row_losses [1, predicted] fp32 where defined.
  virtual void Evaluate(Stream& stream, const DeviceBatch& batch, Tensor loss_sum, Tensor next_sentence_loss_sum,
                        Tensor row_losses) = 0;

  // The logits [predicted, V] fp32 of the rows in batch.predict_rows, without dropout: for `verify` and `generate`, where all of
  // them are wanted.
  virtual void Logits(Stream& stream, const DeviceBatch& batch, Tensor logits, Tensor next_sentence_logits) = 0;

  // Largest number of rows whose logits exist at once.
  virtual int64_t head_chunk_rows() const = 0;
};

}  // namespace tranche
