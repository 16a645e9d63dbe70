// A micro-batch on the device: buffers of the largest size, views of the actual one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/batch.h"
#include "model/model_config.h"
#include "model/transformer_options.h"
#include "tensor/backend.h"

namespace tranche {

// N tokens, S segments, P predicted rows, Q sequences (with next-sentence labels, else 0).
struct BatchView {
  int64_t tokens = 0, segments = 0, predicted = 0, sequences = 0;
  int64_t max_length = 0;        // of its segments
  std::vector<int32_t> offsets;  // host copy of the segments' borders, for counting work
  Tensor ids;                    // [1, N] int32
  Tensor positions;              // [1, N] int32: rows of the position table or of cos and sin
  Tensor token_types;            // [1, N] int32; undefined where the model has none
  Tensor segment_offsets;        // [1, S + 1] int32
  Tensor predict_rows;           // [1, P] int32
  Tensor labels;                 // [1, P] int32
  Tensor token_keys;             // [1, N] uint64
  Tensor first_rows;             // [1, Q] int32: the first token of each sequence
  Tensor next_sentence_labels;   // [1, Q] int32
};

class DeviceBatch {
 public:
  DeviceBatch(const ModelConfig& config, const TransformerOptions& options, Backend& backend,
              Arena& arena);
  // `batch` must stay alive until the stream has passed this point, and fit the options.
  // rotary_length decides rotations that depend on length (longrope); 0: each segment's own length
  // does, so that a token's result depends on its document alone and not on its neighbours. That
  // equals transformers, which goes by the longest position of the batch, for a document by itself
  // and for batches whose segments are of one length.
  void Upload(Stream& stream, const MicroBatch& batch, int64_t rotary_length = 0);

  const BatchView& view() const { return view_; }

 private:
  // Learned positions count from ModelConfig::position_offset and may leave out padding.
  void MapLearnedPositions(const MicroBatch& batch);
  void MapRotaryPositions(const MicroBatch& batch, int64_t rotary_length);

  const ModelConfig config_;
  const std::vector<int64_t> length_classes_;
  Backend& backend_;
  BatchView buffers_, view_;
  std::unique_ptr<Event> uploaded_;  // the host copies below are free again
  std::vector<int32_t> positions_;
};

}  // namespace tranche
