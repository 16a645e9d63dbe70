#include "trainer/session.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status.h"

namespace tranche {

absl::StatusOr<std::unique_ptr<Session>> Session::Create(const RunSetup& setup, bool training,
                                                         Backend& backend, Arena& arena,
                                                         const CommGroups& comms) {
  std::unique_ptr<Session> session(new Session(backend, comms));
  EngineOptions engine_options = setup.engine;
  engine_options.training = training;
  TransformerOptions options = setup.transformer;
  options.training = training;

  session->stream_ = backend.CreateStream("compute");
  session->engine_ = Engine::Create(setup.specs, engine_options, backend, arena, comms);
  session->micro_batches_ = session->Rounds(setup.micro_batches());
  if (setup.config.next_sentence_head) {
    session->next_sentence_loss_sum_ = session->engine_->loss_sum(1);
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

absl::StatusOr<MicroBatch> Session::BatchOf(const Loader& loader, int64_t step,
                                            int64_t round) const {
  const int64_t slot = round * ranks() + rank();
  if (slot >= loader.slots()) return EmptyBatch();
  return loader.Get(step, slot);
}

void Session::BeginStep() { engine_->BeginStep(*stream_, micro_batches_); }

void Session::ForwardBackward(MicroBatch batch, const StepScale& scale) {
  Keep(std::move(batch));
  const float loss_scale = static_cast<float>(1.0 / static_cast<double>(scale.predicted_tokens));
  const float next_sentence_scale =
      scale.sequences > 0 ? static_cast<float>(1.0 / static_cast<double>(scale.sequences)) : 0;
  transformer_->ForwardBackward(*stream_, *batch_, loss_scale, next_sentence_scale,
                                scale.dropout_key, engine_->loss_sum(0), next_sentence_loss_sum_);
}

void Session::FinishStep(float learning_rate, int64_t step, int slot, const HostCounts& counts) {
  engine_->Step(*stream_, learning_rate, step, counts);
  Readback& readback = readbacks_[static_cast<size_t>(slot)];
  backend_.CopyToHost(*stream_, &readback.totals, engine_->totals());
  backend_.CopyToHost(*stream_, readback.control.data(), engine_->control());
  backend_.Record(*stream_, *read_[static_cast<size_t>(slot)]);
}

const Readback& Session::Await(int slot) {
  backend_.Synchronize(*read_[static_cast<size_t>(slot)]);
  return readbacks_[static_cast<size_t>(slot)];
}

void Session::BeginEvaluation() { engine_->ClearSums(*stream_); }

void Session::Evaluate(MicroBatch batch) {
  Keep(std::move(batch));
  transformer_->Evaluate(*stream_, *batch_, engine_->loss_sum(0), next_sentence_loss_sum_,
                         Tensor());
}

const Readback& Session::FinishEvaluation(const HostCounts& counts) {
  engine_->SumOverRanks(*stream_, counts);
  Readback& readback = readbacks_[0];
  backend_.CopyToHost(*stream_, &readback.totals, engine_->totals());
  backend_.Synchronize(*stream_);
  return readback;
}

MicroBatch EmptyBatch() {
  MicroBatch batch;
  batch.cu_seqlens = batch.cu_sequences = {0};
  return batch;
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
