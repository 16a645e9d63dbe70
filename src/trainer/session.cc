#include "trainer/session.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status.h"

namespace tranche {

absl::StatusOr<std::unique_ptr<Session>> Session::Create(const RunSetup& setup, bool training,
                                                         Backend& backend, Arena& arena) {
  std::unique_ptr<Session> session(new Session(backend));
  EngineOptions engine_options = setup.engine;
  engine_options.training = training;
  TransformerOptions options = setup.transformer;
  options.training = training;

  session->stream_ = backend.CreateStream("compute");
  session->engine_ = Engine::Create(setup.specs, engine_options, backend, arena);
  session->loss_sum_ = arena.Allocate("loss sum", MemoryKind::kWorkspace, DType::kFloat64, 1, 1);
  if (setup.config.next_sentence_head) {
    session->next_sentence_loss_sum_ =
        arena.Allocate("next-sentence loss sum", MemoryKind::kWorkspace, DType::kFloat64, 1, 1);
  }
  backend.ReserveWorkspace({.dtype = options.dtype,
                            .max_tokens = options.max_tokens,
                            .max_segments = options.max_segments,
                            .heads = setup.config.num_heads,
                            .head_dim = setup.config.head_dim},
                           arena);
  session->batch_ = std::make_unique<DeviceBatch>(setup.config, options, backend, arena);
  TRANCHE_ASSIGN_OR_RETURN(
      session->transformer_,
      Transformer::Create(setup.config, setup.specs, options, backend, arena, *session->engine_));
  for (auto& event : session->read_) event = backend.CreateEvent();
  for (auto& event : session->uploaded_) event = backend.CreateEvent();
  arena.Seal();
  return session;
}

// Work in flight reads the batches that are kept here.
Session::~Session() {
  if (stream_ != nullptr) backend_.Synchronize(*stream_);
}

const MicroBatch& Session::Keep(MicroBatch batch) {
  const size_t index = next_host_batch_;
  next_host_batch_ = (index + 1) % kHostBatches;
  backend_.Synchronize(*uploaded_[index]);
  host_batches_[index] = std::move(batch);
  batch_->Upload(*stream_, host_batches_[index]);
  backend_.Record(*stream_, *uploaded_[index]);
  return host_batches_[index];
}

void Session::BeginStep() {
  engine_->BeginStep(*stream_);
  BeginEvaluation();
}

void Session::ForwardBackward(MicroBatch batch, const StepScale& scale) {
  Keep(std::move(batch));
  const float loss_scale = static_cast<float>(1.0 / static_cast<double>(scale.predicted_tokens));
  const float next_sentence_scale =
      scale.sequences > 0 ? static_cast<float>(1.0 / static_cast<double>(scale.sequences)) : 0;
  transformer_->ForwardBackward(*stream_, *batch_, loss_scale, next_sentence_scale,
                                scale.dropout_key, loss_sum_, next_sentence_loss_sum_);
}

void Session::FinishStep(float learning_rate, int64_t step, int slot) {
  engine_->Step(*stream_, learning_rate, step, loss_sum_);
  Readback& readback = readbacks_[static_cast<size_t>(slot)];
  backend_.CopyToHost(*stream_, &readback.loss_sum, loss_sum_);
  if (next_sentence_loss_sum_.defined()) {
    backend_.CopyToHost(*stream_, &readback.next_sentence_loss_sum, next_sentence_loss_sum_);
  }
  backend_.CopyToHost(*stream_, readback.control.data(), engine_->control());
  backend_.Record(*stream_, *read_[static_cast<size_t>(slot)]);
}

const Readback& Session::Await(int slot) {
  backend_.Synchronize(*read_[static_cast<size_t>(slot)]);
  return readbacks_[static_cast<size_t>(slot)];
}

void Session::BeginEvaluation() {
  backend_.Fill(*stream_, loss_sum_, 0);
  if (next_sentence_loss_sum_.defined()) backend_.Fill(*stream_, next_sentence_loss_sum_, 0);
}

void Session::Evaluate(MicroBatch batch) {
  Keep(std::move(batch));
  transformer_->Evaluate(*stream_, *batch_, loss_sum_, next_sentence_loss_sum_, Tensor());
}

const Readback& Session::FinishEvaluation() {
  Readback& readback = readbacks_[0];
  backend_.CopyToHost(*stream_, &readback.loss_sum, loss_sum_);
  if (next_sentence_loss_sum_.defined()) {
    backend_.CopyToHost(*stream_, &readback.next_sentence_loss_sum, next_sentence_loss_sum_);
  }
  backend_.Synchronize(*stream_);
  return readback;
}

MicroBatch TypicalBatch(const RunSetup& setup) {
  const int64_t sequences = setup.recipe.training.micro_batch_size;
  const int64_t length = setup.recipe.data.sequence_length;
  const bool masked = setup.config.head == HeadKind::kMasked;
  MicroBatch batch;
  batch.cu_seqlens = batch.cu_sequences = {0};
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t i = 0; i < length; ++i) {
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.token_keys.push_back(static_cast<uint64_t>(s) << 20 | static_cast<uint64_t>(i));
    }
    const auto end = static_cast<int32_t>((s + 1) * length);
    batch.cu_seqlens.push_back(end);
    batch.cu_sequences.push_back(end);
    if (setup.config.next_sentence_head) batch.next_sentence.push_back(0);
  }
  const int64_t tokens = sequences * length;
  batch.input_ids.resize(static_cast<size_t>(tokens));
  batch.token_types.resize(static_cast<size_t>(tokens));
  const double share = masked ? setup.recipe.data.mlm_probability : 1;
  const int64_t predicted =
      std::clamp<int64_t>(std::llround(share * static_cast<double>(tokens)), 1,
                          std::min(tokens, setup.transformer.max_predicted));
  for (int64_t i = 0; i < predicted; ++i) {
    batch.predict_rows.push_back(static_cast<int32_t>(i * tokens / predicted));
  }
  batch.labels.resize(static_cast<size_t>(predicted));
  return batch;
}

}  // namespace tranche
