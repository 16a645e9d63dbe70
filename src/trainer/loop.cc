#include "trainer/loop.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/units.h"
#include "trainer/nonfinite.h"
#include "trainer/signals.h"
#include "trainer/weights.h"

namespace tranche {
namespace {

constexpr uint64_t kDropoutPurpose = 0x64726f70;  // "drop"

double SecondsIn(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

bool StopAsked() { return StopSignal() != nullptr; }

}  // namespace

uint64_t DropoutKey(int64_t seed, int64_t step) {
  return DeriveKey(DeriveKey(static_cast<uint64_t>(seed), kDropoutPurpose),
                   static_cast<uint64_t>(step));
}

TrainLoop::TrainLoop(const LoopParts& parts, CheckpointManifest start)
    : parts_(parts),
      recipe_(parts.setup.recipe),
      state_(std::move(start)),
      enqueued_step_(state_.step),
      saved_step_(state_.step > 0 ? state_.step : -1),
      bar_("training", state_.schedule.total_steps) {}

absl::StatusOr<TrainLoop::End> TrainLoop::Run() {
  const int64_t total = state_.schedule.total_steps;
  const CheckpointRecipe& checkpoint = recipe_.checkpoint;
  const std::string trigger = checkpoint.trigger_file.empty()
                                  ? ""
                                  : JoinPath(parts_.directory.path, checkpoint.trigger_file);
  const int64_t evaluation_interval = recipe_.validation.interval.value_or(0);
  step_begin_ = last_save_ = Clock::now();
  while (enqueued_step_ < total) {
    if (StopAsked()) return Stop(absl::StrCat(StopSignal(), " came"));
    if (OutOfTime()) return Stop("training.max_time is nearly over");
    const int64_t step = enqueued_step_ + 1;
    TRANCHE_RETURN_IF_ERROR(EnqueueStep(step));
    if (TooManyNonFinite()) break;

    const bool evaluate = evaluation_interval > 0 && step % evaluation_interval == 0 &&
                          step < total && !parts_.validation.empty();
    const bool triggered = !trigger.empty() && FileExists(trigger) && !IsDirectory(trigger);
    const bool save = (step < total && SaveIsDue(step)) || triggered;
    if (!evaluate && !save) continue;
    TRANCHE_RETURN_IF_ERROR(Drain());
    if (TooManyNonFinite()) break;
    if (evaluate) TRANCHE_RETURN_IF_ERROR(EvaluateAll());
    if (save && !StopAsked()) TRANCHE_RETURN_IF_ERROR(Save());
    if (saved_step_ == state_.step && checkpoint.export_hf == "every" && step < total) {
      TRANCHE_RETURN_IF_ERROR(ExportStep());
    }
    if (triggered) TRANCHE_RETURN_IF_ERROR(parts_.fs.RemoveAll(trigger));
    step_begin_ = Clock::now();
  }
  TRANCHE_RETURN_IF_ERROR(Drain());
  bar_.Clear();
  if (TooManyNonFinite()) return End::kNonFinite;
  TRANCHE_RETURN_IF_ERROR(EvaluateAll());
  if (saved_step_ != state_.step) TRANCHE_RETURN_IF_ERROR(Save());
  return End::kFinished;
}

bool TrainLoop::SaveIsDue(int64_t step) const {
  const CheckpointRecipe& checkpoint = recipe_.checkpoint;
  if (checkpoint.interval > 0 && step % checkpoint.interval == 0) return true;
  if (checkpoint.save_first_step && step == 1) return true;
  return checkpoint.interval_minutes &&
         SecondsIn(Clock::now() - last_save_) >= 60 * *checkpoint.interval_minutes;
}

absl::StatusOr<TrainLoop::End> TrainLoop::Stop(const std::string& why) {
  TRANCHE_RETURN_IF_ERROR(Drain());
  bar_.Clear();
  if (TooManyNonFinite()) return End::kNonFinite;
  LogNote(absl::StrCat(why, ": stopping after step ", state_.step));
  if (saved_step_ != state_.step && state_.step > 0) TRANCHE_RETURN_IF_ERROR(Save());
  return End::kStopped;
}

absl::Status TrainLoop::EnqueueStep(int64_t step) {
  Pending next;
  StepReport& report = next.report;
  report.step = step;
  report.total_steps = state_.schedule.total_steps;
  report.learning_rate = state_.schedule.At(step);
  report.peak_flops = parts_.peak_flops;
  report.memory_bytes = parts_.arena_bytes;
  next.slot = static_cast<int>(step % Session::kInFlight);
  next.scale.dropout_key = DropoutKey(recipe_.run.seed, step);
  next.scale.sequences = recipe_.training.global_batch_size;

  double data_seconds = 0;
  const auto timed = [&](const auto& get) {
    const Clock::time_point begin = Clock::now();
    auto result = get();
    data_seconds += SecondsIn(Clock::now() - begin);
    return result;
  };
  TRANCHE_ASSIGN_OR_RETURN(next.scale.predicted_tokens,
                           timed([&] { return parts_.train.PredictedTokens(step - 1); }));
  report.step_predicted = next.scale.predicted_tokens;
  enqueued_step_ = step;
  if (next.scale.predicted_tokens == 0) {
    TRANCHE_RETURN_IF_ERROR(Drain());
    report.outcome = StepReport::Outcome::kNoTargets;
    ++state_.no_target_steps;
    Report(std::move(report));
    return absl::OkStatus();
  }
  parts_.session.BeginStep();
  for (int64_t slot = 0; slot < parts_.train.slots(); ++slot) {
    TRANCHE_ASSIGN_OR_RETURN(MicroBatch batch,
                             timed([&] { return parts_.train.Get(step - 1, slot); }));
    report.step_tokens += batch.num_tokens();
    report.model_flops += parts_.flops.Count(batch);
    parts_.session.ForwardBackward(std::move(batch), next.scale);
  }
  parts_.session.FinishStep(static_cast<float>(report.learning_rate), step, next.slot);
  report.data_seconds = data_seconds;
  TRANCHE_RETURN_IF_ERROR(Drain());
  pending_ = std::move(next);
  return absl::OkStatus();
}

absl::Status TrainLoop::Drain() {
  // The step in flight when the run gives up says nothing new.
  if (TooManyNonFinite()) pending_.reset();
  if (!pending_) return absl::OkStatus();
  Pending pending = *std::exchange(pending_, std::nullopt);
  const Readback& read = parts_.session.Await(pending.slot);
  StepReport& report = pending.report;
  report.loss = read.loss_sum / static_cast<double>(pending.scale.predicted_tokens);
  if (parts_.setup.config.next_sentence_head) {
    report.next_sentence_loss =
        read.next_sentence_loss_sum / static_cast<double>(pending.scale.sequences);
  }
  report.grad_norm = static_cast<double>(read.control[0]);
  const bool skipped = read.control[2] == 0;
  if (skipped) {
    report.outcome = StepReport::Outcome::kNonFinite;
    ++state_.nonfinite_steps;
  }
  Report(report);
  return skipped ? NoteNonFinite(pending) : absl::OkStatus();
}

void TrainLoop::Report(StepReport report) {
  const Clock::time_point now = Clock::now();
  report.seconds = SecondsIn(now - step_begin_);
  step_begin_ = now;
  last_step_seconds_ = report.seconds;
  seconds_ += report.seconds;
  state_.seconds += report.seconds;
  model_flops_ += report.model_flops;
  tokens_ += report.step_tokens;
  ++steps_;
  state_.total_tokens += report.step_tokens;
  state_.step = report.step;
  report.total_tokens = state_.total_tokens;
  report.skipped_steps = state_.nonfinite_steps + state_.no_target_steps;
  report.eta_seconds = static_cast<double>(report.total_steps - report.step) * seconds_ /
                       static_cast<double>(steps_);
  if (!said_too_fast_ && report.peak_flops > 0 &&
      report.model_flops > report.seconds * report.peak_flops) {
    said_too_fast_ = true;
    bar_.Clear();
    LogNote(absl::StrCat(
        "step ", report.step, " was faster than ", FormatFlops(report.peak_flops), "/s, ",
        recipe_.metrics.peak_tflops > 0
            ? "which metrics.peak_tflops gives"
            : "which matrix products reached before the run: something else had the cores then",
        "; mfu is too high in these lines"));
  }
  if (parts_.metrics != nullptr) parts_.metrics->Append(StepJson(report));
  const bool line = report.step % recipe_.metrics.log_interval == 0 ||
                    report.step == report.total_steps ||
                    report.outcome != StepReport::Outcome::kUpdated;
  if (line) {
    bar_.Clear();
    std::printf("%s\n", StepLine(report).c_str());
    std::fflush(stdout);
  }
  bar_.Update(report.step,
              absl::StrFormat("step %d/%d | loss %.4f | eta %s", report.step, report.total_steps,
                              report.loss, FormatSeconds(report.eta_seconds)));
}

bool TrainLoop::TooManyNonFinite() const {
  return state_.nonfinite_steps > recipe_.fault_tolerance.max_skipped_steps;
}

// The search repeats the step, so only the first is searched, and the one that ends the run.
absl::Status TrainLoop::NoteNonFinite(const Pending& pending) {
  if (state_.nonfinite_steps > 1 && !TooManyNonFinite()) return absl::OkStatus();
  TRANCHE_ASSIGN_OR_RETURN(
      const std::string origin,
      FindNonFinite(parts_.session, parts_.train, pending.report.step, pending.scale));
  bar_.Clear();
  LogWarning(absl::StrCat("step ", pending.report.step,
                          ": the loss or a gradient is not finite, the update was skipped; the "
                          "first that is not finite: ",
                          origin));
  if (TooManyNonFinite()) {
    LogError(absl::StrCat(
        state_.nonfinite_steps, " steps were not finite, more than ",
        "fault_tolerance.max_skipped_steps = ", recipe_.fault_tolerance.max_skipped_steps,
        ": the run stops. Earlier checkpoints are untouched; a lower optimizer.lr "
        "or a look at the data named above may help"));
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::EvaluateAll() {
  for (const ValidationLoader& set : parts_.validation) {
    const absl::StatusOr<EvaluationResult> result =
        EvaluateSet(parts_.session, set.name, *set.loader, recipe_.validation.steps, StopAsked);
    if (absl::IsCancelled(result.status())) {
      bar_.Clear();
      LogNote(absl::StrCat("the evaluation after step ", state_.step, " was broken off"));
      return absl::OkStatus();
    }
    TRANCHE_RETURN_IF_ERROR(result.status());
    bar_.Clear();
    std::printf("evaluation after step %d: %s\n", static_cast<int>(state_.step),
                EvaluationLine(*result).c_str());
    std::fflush(stdout);
    if (parts_.metrics != nullptr) parts_.metrics->Append(EvaluationJson(*result, state_.step));
  }
  return absl::OkStatus();
}

// Where the recipe does not say else, a full disk does not end a run that has good checkpoints and
// may find space again; it is an error at the end, where there is no later try.
absl::Status TrainLoop::Save() {
  const CheckpointRecipe& checkpoint = recipe_.checkpoint;
  const std::string& directory = parts_.directory.checkpoints;
  const int64_t keep_every = checkpoint.keep_every.value_or(0);
  last_save_ = Clock::now();
  CheckpointContents contents;
  contents.manifest = state_;
  contents.recipe = PrintRecipe(recipe_);
  contents.config = ConfigText(parts_.setup.config_json);
  const auto save = [&] {
    return SaveCheckpoint(parts_.fs, directory, contents, parts_.session.engine(),
                          parts_.session.backend(), parts_.session.stream());
  };
  bar_.Clear();
  absl::StatusOr<std::string> path = save();
  while (absl::IsResourceExhausted(path.status()) &&
         checkpoint.on_disk_full == "prune_then_continue") {
    TRANCHE_ASSIGN_OR_RETURN(const std::optional<int64_t> removed,
                             RemoveOldestCheckpoint(parts_.fs, directory, keep_every));
    if (!removed) break;
    LogWarning(absl::StrCat("the disk is full: ", CheckpointPath(directory, *removed),
                            " was removed to make room for step ", state_.step));
    path = save();
  }
  if (absl::IsResourceExhausted(path.status()) && checkpoint.on_disk_full == "error") {
    return path.status();
  }
  if (!path.ok()) {
    save_failure_ = std::string(path.status().message());
    LogWarning(save_failure_);
    return absl::OkStatus();
  }
  save_failure_.clear();
  saved_step_ = state_.step;
  last_save_seconds_ = SecondsIn(Clock::now() - last_save_);
  LogNote(absl::StrCat("checkpoint ", *path, " written in ", FormatSeconds(last_save_seconds_)));
  if (parts_.metrics != nullptr) {
    parts_.metrics->Append(absl::StrFormat(R"({"event":"checkpoint","step":%d,"seconds":%.3f})",
                                           state_.step, last_save_seconds_));
  }
  return PruneCheckpoints(parts_.fs, directory, checkpoint.keep_latest_k, keep_every);
}

// Without it the run is no worse: what goes wrong is said and the training goes on.
absl::Status TrainLoop::ExportStep() {
  const std::string& directory = parts_.directory.exports;
  const std::string path = CheckpointPath(directory, state_.step);
  const absl::Status status = ReplaceFolder(parts_.fs, path, [&](const std::string& folder) {
    return ExportModel(parts_.fs, parts_.setup, parts_.session.engine(), parts_.session.backend(),
                       parts_.session.stream(), folder);
  });
  if (!status.ok()) {
    LogWarning(absl::StrCat("no export of step ", state_.step, ": ", status.message()));
    return absl::OkStatus();
  }
  LogNote(absl::StrCat("model written to ", path));
  return PruneCheckpoints(parts_.fs, directory, recipe_.checkpoint.keep_latest_k,
                          recipe_.checkpoint.keep_every.value_or(0));
}

// Leaves room for the step in flight, one more, and the checkpoint.
bool TrainLoop::OutOfTime() const {
  if (!recipe_.training.max_time) return false;
  const double elapsed = SecondsIn(Clock::now() - parts_.process_start);
  return elapsed + 2 * last_step_seconds_ + 2 * last_save_seconds_ >=
         recipe_.training.max_time->value;
}

}  // namespace tranche
