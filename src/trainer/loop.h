// The training loop: from one step to the last, with its reports, evaluations, checkpoints and the
// ways it can end. The host runs one step ahead of the device: the numbers of step k are read while
// step k + 1 is enqueued, and whether an update applies is decided on the device.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/progress.h"
#include "data/loader.h"
#include "trainer/checkpoint.h"
#include "trainer/evaluate.h"
#include "trainer/metrics.h"
#include "trainer/rehearsal.h"
#include "trainer/run_directory.h"
#include "trainer/session.h"
#include "trainer/step_line.h"
#include "trainer/trace.h"
#include "trainer/world.h"

namespace tranche {

struct ValidationLoader {
  std::string name;
  std::unique_ptr<Loader> loader;
};

// What a loop works with; nothing is owned.
struct LoopParts {
  World& world;
  const RunSetup& setup;
  Session& session;
  const Loader& train;
  const std::vector<ValidationLoader>& validation;
  FlopCounter& flops;
  FileSystem& fs;
  MetricsLog* metrics;  // null: no metrics.jsonl
  StepTrace* trace;     // null: none is asked for
  const RunDirectory& directory;
  double peak_flops = 0;  // per second: what mfu is a share of
  int64_t arena_bytes = 0;
  std::chrono::steady_clock::time_point process_start;
};

class TrainLoop {
 public:
  enum class End { kFinished, kStopped, kNonFinite };

  // `start`: the manifest of the checkpoint that was loaded, or that of a run at step 0.
  TrainLoop(const LoopParts& parts, CheckpointManifest start);

  absl::StatusOr<End> Run();

  const CheckpointManifest& state() const { return state_; }
  double trained_seconds() const { return seconds_; }  // of this attempt, in steps
  int64_t trained_tokens() const { return tokens_; }
  double model_flops() const { return model_flops_; }
  // "" or why the last checkpoint could not be written.
  const std::string& save_failure() const { return save_failure_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Pending {
    StepReport report;
    StepScale scale;
    int slot = 0;
  };

  absl::Status EnqueueStep(int64_t step);
  // What this rank asks all of them for, to be counted with the next step's sums.
  uint64_t Requests() const;
  // Why the run must stop now, the same on every rank, or "".
  std::string ReasonToStop() const;
  std::string TriggerPath() const;  // "" where the recipe has none
  bool TriggerIsThere() const;
  bool MinutesAreOver() const;
  // Reads the step in flight, if any, and reports it.
  absl::Status Drain();
  void Report(StepReport report);
  absl::Status NoteNonFinite(const Pending& pending);
  absl::Status EvaluateAll();
  bool SaveIsDue(int64_t step) const;
  absl::Status Save();
  absl::Status ExportStep();
  bool OutOfTime() const;
  bool TooManyNonFinite() const;
  absl::StatusOr<End> Stop(const std::string& why);

  const LoopParts parts_;
  const Recipe& recipe_;
  CheckpointManifest state_;  // of the last step that was read
  int64_t enqueued_step_;
  int64_t saved_step_;
  std::optional<Pending> pending_;
  uint64_t requests_ = 0;  // of all ranks, with the last step that was read
  Clock::time_point step_begin_, last_save_;
  double seconds_ = 0, model_flops_ = 0, last_step_seconds_ = 0, last_save_seconds_ = 0;
  int64_t tokens_ = 0, steps_ = 0;
  std::string save_failure_;
  bool said_too_fast_ = false;
  ProgressBar bar_;
};

// Of (seed, step): what dropout draws from.
uint64_t DropoutKey(int64_t seed, int64_t step);

}  // namespace tranche
