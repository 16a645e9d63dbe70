// Who holds the parameters, their gradients and their optimizer state, and when they move: flat
// padded buffers, one per group (zero/group_layout.h), in the arena, whole or sharded over the
// ranks as zero/placement.h says. docs/zero.md walks through a step.
//
// A stage, a bucket or overlap changes memory and time, never numbers: gradients are summed over
// ranks in rank order, and what is summed over shards does not depend on where they are cut.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/timeline.h"
#include "model/group_access.h"
#include "model/param_spec.h"
#include "optim/update_rule.h"
#include "tensor/backend.h"
#include "zero/comm.h"
#include "zero/stream_meter.h"

namespace tranche {

struct EngineOptions {
  DType dtype = DType::kFloat32;  // of the weights the model sees
  bool training = true;           // false: weights only, on one rank
  UpdateOptions update;
  int zero_stage = 0;  // with one rank it makes no difference
  // Of a bucket's fp32 gradients; it holds at least 64 elements for each rank.
  int64_t bucket_bytes = std::numeric_limits<int64_t>::max();
  bool overlap = true;  // false: the compute stream waits for every collective
  // Layers whose gathered weights have a place at once, >= 2, where weights are sharded.
  int layer_slots = 2;
  bool tied_embeddings = false;  // the head reads and trains the embeddings' group
};

// What the hosts of all ranks add up beside the device's numbers.
struct HostCounts {
  uint64_t requests = 0;
  std::array<double, 4> numbers = {};
};

// The sums over ranks of a step or an evaluation, as they lie in Engine::totals.
struct EngineTotals {
  std::array<uint64_t, 3> norm = {};  // see Backend::SquaredNorm
  uint64_t requests = 0;
  double loss_sum = 0, next_sentence_loss_sum = 0;
  std::array<double, 4> numbers = {};
};

class Engine : public GroupAccess {
 public:
  static constexpr int64_t kRecordWords = sizeof(EngineTotals) / sizeof(uint64_t);

  // Takes all of its memory from the arena. Weights, gradients and optimizer state start as zeros.
  // `comms`: of all ranks that train together, and of this rank's groups. Not owned.
  static std::unique_ptr<Engine> Create(std::vector<ParamSpec> specs, const EngineOptions& options,
                                        Backend& backend, Arena& arena,
                                        const CommGroups& comms = {});

  virtual const std::vector<ParamSpec>& specs() const = 0;
  virtual const EngineOptions& options() const = 0;

  // Clears gradients and sums before the first of the step's micro-batches, as many on every rank.
  virtual void BeginStep(Stream& stream, int64_t micro_batches) = 0;
  // Where this rank adds up its losses, [1, 1] fp64: 0 the model's, 1 the next-sentence head's.
  virtual Tensor loss_sum(int which) const = 0;
  // After the last micro-batch: sums over ranks, norm, clipping, update of every group in forward
  // order, each bucket gathered as soon as it is updated. Where a gradient or loss is not finite
  // the update is skipped, decided on the device. `step` counts from 1 (skipped ones too: the bias
  // corrections are those of the step's number). control() and totals() hold the outcome
  // afterwards.
  virtual void Step(Stream& stream, float learning_rate, int64_t step,
                    const HostCounts& counts) = 0;
  virtual Tensor control() const = 0;  // see Backend::FinishNorm

  // An EngineTotals, [1, kRecordWords] uint64. Step fills it, or SumOverRanks after an evaluation
  // that began with ClearSums.
  virtual Tensor totals() const = 0;
  virtual void ClearSums(Stream& stream) = 0;
  virtual void SumOverRanks(Stream& stream, const HostCounts& counts) = 0;

  // The arrays of state of a parameter, by name: "master" (fp32 weights; with fp32 the weights
  // themselves), then those of the update rule ("m", "v"). For loading, saving and export. Without
  // training: "master" in fp32, nothing in bf16, where Weight is all there is.
  virtual std::vector<std::string> state_names() const = 0;
  // Elements [begin, begin + values.cols) of a parameter, row-major.
  struct Stretch {
    int64_t begin = 0;
    Tensor values;  // [1, n]
  };
  // What must be loaded here of it: all that lies here. Where there are no master weights (bf16
  // without training) "master" is the weights themselves, which take rounded values.
  virtual std::vector<Stretch> Loadable(int param, absl::string_view name) const = 0;
  // What this rank owns of it; every element has one owner. "gradients" is a name too.
  virtual std::vector<Stretch> Owned(int param, absl::string_view name) const = 0;
  virtual DType StateType(absl::string_view name) const = 0;
  // All of it, [rows, cols], where one rank holds everything.
  Tensor State(int param, absl::string_view name) const;
  // After "master" was written: refreshes the weights the model sees, on every rank.
  virtual void MasterChanged(Stream& stream) = 0;
  // Work enqueued on `stream` from here on finds every collective done.
  virtual void AwaitCommunication(Stream& stream) = 0;

  // Since the last call, of work that is done.
  virtual ExposedSeconds TakeExposedSeconds() = 0;
  // Where passes, updates, collectives and waits are written down, by group; before the first step.
  // Not owned.
  virtual void SetTimeline(Timeline* timeline) = 0;
  // What is enqueued from here on, on every stream, is written down, or not.
  virtual void RecordTimeline(Stream& stream, bool on) = 0;
};

}  // namespace tranche
