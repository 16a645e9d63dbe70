#include "model/device_batch.h"

#include <algorithm>

#include "model/rope.h"

namespace tranche {

DeviceBatch::DeviceBatch(const ModelConfig& config, const TransformerOptions& options,
                         Backend& backend, Arena& arena)
    : config_(config),
      length_classes_(LengthClasses(config, options.max_length)),
      backend_(backend),
      uploaded_(backend.CreateEvent()) {
  const auto vector = [&](const char* name, DType dtype, int64_t size) {
    return arena.Allocate(name, MemoryKind::kActivations, dtype, 1, size);
  };
  const int64_t tokens = options.max_tokens;
  buffers_.tokens = tokens;
  buffers_.segments = options.max_segments;
  buffers_.predicted = options.max_predicted;
  buffers_.max_length = options.max_length;
  buffers_.ids = vector("batch.ids", DType::kInt32, tokens);
  buffers_.positions = vector("batch.positions", DType::kInt32, tokens);
  if (config.num_token_types > 0) {
    buffers_.token_types = vector("batch.token_types", DType::kInt32, tokens);
  }
  buffers_.segment_offsets =
      vector("batch.segment_offsets", DType::kInt32, options.max_segments + 1);
  buffers_.predict_rows = vector("batch.predict_rows", DType::kInt32, options.max_predicted);
  buffers_.labels = vector("batch.labels", DType::kInt32, options.max_predicted);
  buffers_.token_keys = vector("batch.token_keys", DType::kUInt64, tokens);
  if (config.next_sentence_head) {
    buffers_.sequences = options.max_segments;
    buffers_.first_rows = vector("batch.first_rows", DType::kInt32, options.max_segments);
    buffers_.next_sentence_labels =
        vector("batch.next_sentence", DType::kInt32, options.max_segments);
  }
  positions_.reserve(static_cast<size_t>(tokens));
}

void DeviceBatch::MapRotaryPositions(const MicroBatch& batch, int64_t rotary_length) {
  positions_ = batch.positions;
  for (size_t segment = 0; segment + 1 < batch.cu_seqlens.size(); ++segment) {
    const int32_t begin = batch.cu_seqlens[segment], end = batch.cu_seqlens[segment + 1];
    const int64_t length = rotary_length > 0 ? rotary_length : end - begin;
    int64_t part = 0;
    for (const int64_t longest : length_classes_) part += longest < length ? longest : 0;
    for (int32_t row = begin; row < end; ++row) {
      positions_[static_cast<size_t>(row)] += static_cast<int32_t>(part);
    }
  }
}

void DeviceBatch::MapLearnedPositions(const MicroBatch& batch) {
  positions_ = batch.positions;
  for (int32_t& position : positions_) {
    position += static_cast<int32_t>(config_.position_offset);
  }
  if (!config_.positions_skip_pad) return;
  const int32_t pad = static_cast<int32_t>(config_.pad_token_id);
  for (size_t segment = 0; segment + 1 < batch.cu_seqlens.size(); ++segment) {
    int32_t skipped = 0;
    for (int32_t row = batch.cu_seqlens[segment]; row < batch.cu_seqlens[segment + 1]; ++row) {
      const size_t i = static_cast<size_t>(row);
      if (batch.input_ids[i] == pad) {
        positions_[i] = pad;
        ++skipped;
      } else {
        positions_[i] -= skipped;
      }
    }
  }
}

void DeviceBatch::Upload(Stream& stream, const MicroBatch& batch, int64_t rotary_length) {
  TRANCHE_CHECK_LE(batch.num_tokens(), buffers_.tokens);
  TRANCHE_CHECK_LE(batch.num_segments(), buffers_.segments);
  TRANCHE_CHECK_LE(batch.num_predicted(), buffers_.predicted);
  BatchView& view = view_;
  view.tokens = batch.num_tokens();
  view.segments = batch.num_segments();
  view.predicted = batch.num_predicted();
  view.offsets = batch.cu_seqlens;
  view.max_length = 0;
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    view.max_length =
        std::max<int64_t>(view.max_length, batch.cu_seqlens[s + 1] - batch.cu_seqlens[s]);
  }
  TRANCHE_CHECK_LE(view.max_length, buffers_.max_length);

  const auto upload = [&](Tensor buffer, int64_t size, const void* from) {
    Tensor to = buffer.SliceCols(0, size);
    if (size > 0) backend_.CopyToDevice(stream, to, from);
    return to;
  };
  view.ids = upload(buffers_.ids, view.tokens, batch.input_ids.data());
  const void* positions = batch.positions.data();
  const bool learned = config_.position_kind == PositionKind::kLearned;
  if (learned || !length_classes_.empty()) {
    backend_.Synchronize(*uploaded_);
    learned ? MapLearnedPositions(batch) : MapRotaryPositions(batch, rotary_length);
    positions = positions_.data();
  }
  view.positions = upload(buffers_.positions, view.tokens, positions);
  if (buffers_.token_types.defined()) {
    view.token_types = upload(buffers_.token_types, view.tokens, batch.token_types.data());
  }
  view.segment_offsets =
      upload(buffers_.segment_offsets, view.segments + 1, batch.cu_seqlens.data());
  view.predict_rows = upload(buffers_.predict_rows, view.predicted, batch.predict_rows.data());
  view.labels = upload(buffers_.labels, view.predicted, batch.labels.data());
  view.token_keys = upload(buffers_.token_keys, view.tokens, batch.token_keys.data());
  view.sequences = 0;
  if (config_.next_sentence_head) {
    view.sequences = static_cast<int64_t>(batch.next_sentence.size());
    TRANCHE_CHECK_LE(view.sequences, buffers_.sequences);
    TRANCHE_CHECK_LE(view.sequences, batch.num_sequences());
    view.first_rows = upload(buffers_.first_rows, view.sequences, batch.cu_sequences.data());
    view.next_sentence_labels =
        upload(buffers_.next_sentence_labels, view.sequences, batch.next_sentence.data());
  }
  backend_.Record(stream, *uploaded_);
}

}  // namespace tranche
