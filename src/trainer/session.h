// One process's device work: the engine, the transformer, the batch on the device and the scalars
// that come back, over one backend. Making a Session takes every byte of the run from the arena, so
// a Session on a rehearsal arena is the plan of the same Session on a real one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "data/batch.h"
#include "data/loader.h"
#include "model/transformer.h"
#include "tensor/backend.h"
#include "trainer/run_setup.h"
#include "zero/engine.h"

namespace tranche {

// What is divided by and drawn from in one training step.
struct StepScale {
  int64_t predicted_tokens = 0;  // of the whole global batch; >= 1
  int64_t sequences = 0;
  uint64_t dropout_key = 0;
};

// What a step or an evaluation sends back, of all ranks together.
struct Readback {
  EngineTotals totals;                // losses in nats
  std::array<float, 4> control = {};  // see Backend::FinishNorm
};

class Session {
 public:
  // Steps whose results may be outstanding at once.
  static constexpr int kInFlight = 2;

  // Seals the arena. `training` false: weights and evaluation only. `comms`: see Engine::Create.
  static absl::StatusOr<std::unique_ptr<Session>> Create(const RunSetup& setup, bool training,
                                                         Backend& backend, Arena& arena,
                                                         const CommGroups& comms = {});
  ~Session();

  Engine& engine() { return *engine_; }
  Backend& backend() { return backend_; }
  Stream& stream() { return *stream_; }
  Transformer& transformer() { return *transformer_; }

  int rank() const { return comms_.rank(); }
  int ranks() const { return comms_.size(); }
  // Not OK once a collective failed: what the device holds means nothing then.
  absl::Status status() const { return comms_.status(); }
  // Of `slots` micro-batches, dealt out to the ranks in turn, the most that one gets. Every rank
  // makes as many passes, with an empty batch where it has none left.
  int64_t Rounds(int64_t slots) const { return (slots + ranks() - 1) / ranks(); }
  absl::StatusOr<MicroBatch> BatchOf(const Loader& loader, int64_t step, int64_t round) const;

  // A training step of this rank's micro-batches, in this order; everything is only enqueued. A
  // micro-batch is kept alive here for as long as its upload needs it; at most kHostBatches are, so
  // the call may wait for one.
  void BeginStep();
  void ForwardBackward(MicroBatch batch, const StepScale& scale);
  // Update, and the way back of the step's scalars to `slot` in [0, kInFlight).
  void FinishStep(float learning_rate, int64_t step, int slot, const HostCounts& counts = {});
  // Waits for that slot.
  const Readback& Await(int slot);

  // An evaluation: sums over all micro-batches of all ranks between Begin and Finish, as many on
  // every rank. Finish waits.
  void BeginEvaluation();
  void Evaluate(MicroBatch batch);
  const Readback& FinishEvaluation(const HostCounts& counts = {});

 private:
  static constexpr size_t kHostBatches = 3;

  Session(Backend& backend, const CommGroups& comms) : backend_(backend), comms_(comms) {}
  const MicroBatch& Keep(MicroBatch batch);  // uploads it too

  Backend& backend_;
  const CommGroups comms_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DeviceBatch> batch_;
  std::unique_ptr<Transformer> transformer_;
  int64_t micro_batches_ = 0;  // of a step, on this rank
  Tensor next_sentence_loss_sum_;
  std::array<Readback, kInFlight> readbacks_;
  std::array<std::unique_ptr<Event>, kInFlight> read_;
  std::array<MicroBatch, kHostBatches> host_batches_;
  std::array<std::unique_ptr<Event>, kHostBatches> uploaded_;
  size_t next_host_batch_ = 0;
};

// For a rank that has none left: no tokens, a pass without arithmetic.
MicroBatch EmptyBatch();

// A full micro-batch of the run's shape: what a rehearsal runs on. Masked models predict the
// recipe's share of its tokens, causal ones every token. Ids and labels are zeros.
MicroBatch TypicalBatch(const RunSetup& setup);

}  // namespace tranche
