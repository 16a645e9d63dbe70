#include "trainer/loop.h"

#include <algorithm>
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
#include "trainer/saved_model.h"
#include "trainer/signals.h"
#include "trainer/weights.h"

namespace tranche {
namespace {

constexpr uint64_t kDropoutPurpose = 0x64726f70;  // "drop"

double SecondsIn(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

bool StopAsked() { return StopSignal() != nullptr; }

// Of the number that ranks add up: how many want to stop, and from here on to save.
constexpr uint64_t kStopRequest = 1, kSaveRequest = uint64_t{1} << 32;

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
  const int64_t evaluation_interval = recipe_.validation.interval.value_or(0);
  step_begin_ = last_save_ = Clock::now();
  while (enqueued_step_ < total) {
    const std::string reason = ReasonToStop();
    if (!reason.empty()) return Stop(reason);
    const int64_t step = enqueued_step_ + 1;
    TRANCHE_RETURN_IF_ERROR(EnqueueStep(step));
    if (TooManyNonFinite()) break;
    if (parts_.trace != nullptr && parts_.trace->EndsWith(step)) {
      TRANCHE_RETURN_IF_ERROR(Drain());
      TRANCHE_RETURN_IF_ERROR(parts_.trace->Finish());
      step_begin_ = Clock::now();
    }

    const bool evaluate = evaluation_interval > 0 && step % evaluation_interval == 0 &&
                          step < total && !parts_.validation.empty();
    const bool triggered = parts_.world.size() == 1 ? TriggerIsThere() : requests_ >= kSaveRequest;
    const bool save = (step < total && SaveIsDue(step)) || triggered;
    if (!evaluate && !save) continue;
    TRANCHE_RETURN_IF_ERROR(Drain());
    if (TooManyNonFinite()) break;
    if (evaluate) TRANCHE_RETURN_IF_ERROR(EvaluateAll());
    if (save && (parts_.world.size() > 1 || !StopAsked())) TRANCHE_RETURN_IF_ERROR(Save());
    if (saved_step_ == state_.step && checkpoint.export_hf == "every" && step < total) {
      TRANCHE_RETURN_IF_ERROR(ExportStep());
    }
    if (parts_.world.first() && TriggerIsThere()) {
      TRANCHE_RETURN_IF_ERROR(parts_.fs.RemoveAll(TriggerPath()));
    }
    requests_ %= kSaveRequest;
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
  return parts_.world.size() == 1 && MinutesAreOver();  // of several, the first asks for it
}

bool TrainLoop::MinutesAreOver() const {
  const std::optional<double>& minutes = recipe_.checkpoint.interval_minutes;
  return minutes && SecondsIn(Clock::now() - last_save_) >= 60 * *minutes;
}

std::string TrainLoop::TriggerPath() const {
  const std::string& name = recipe_.checkpoint.trigger_file;
  return name.empty() ? "" : JoinPath(parts_.directory.path, name);
}

bool TrainLoop::TriggerIsThere() const {
  const std::string path = TriggerPath();
  return !path.empty() && FileExists(path) && !IsDirectory(path);
}

// Signals come to one rank earlier than to another, and clocks differ: what is asked for is done by
// all after the step in whose sums it was counted.
uint64_t TrainLoop::Requests() const {
  uint64_t requests = StopAsked() ? kStopRequest : 0;
  if (parts_.world.first()) {
    if (OutOfTime()) requests += kStopRequest;
    if (TriggerIsThere() || MinutesAreOver()) requests += kSaveRequest;
  }
  return requests;
}

std::string TrainLoop::ReasonToStop() const {
  if (parts_.world.size() > 1 && requests_ % kSaveRequest == 0) return "";
  if (StopAsked()) return absl::StrCat(StopSignal(), " came");
  if (OutOfTime()) return "training.max_time is nearly over";
  return parts_.world.size() > 1 ? "another rank was asked to stop" : "";
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
  parts_.world.SetPhase(absl::StrCat("step ", step));
  if (next.scale.predicted_tokens == 0) {
    TRANCHE_RETURN_IF_ERROR(Drain());
    report.outcome = StepReport::Outcome::kNoTargets;
    ++state_.no_target_steps;
    Report(report);
    return absl::OkStatus();
  }
  if (parts_.trace != nullptr) parts_.trace->Begin(step);
  parts_.session.BeginStep();
  HostCounts counts;
  counts.requests = parts_.world.size() > 1 ? Requests() : 0;
  auto& [tokens, flops, unused, unused_too] = counts.numbers;
  for (int64_t round = 0; round < parts_.session.Rounds(parts_.train.slots()); ++round) {
    TRANCHE_ASSIGN_OR_RETURN(MicroBatch batch, timed([&] {
                               return parts_.session.BatchOf(parts_.train, step - 1, round);
                             }));
    tokens += static_cast<double>(batch.num_tokens());
    if (batch.num_tokens() > 0) flops += parts_.flops.Count(batch);
    parts_.session.ForwardBackward(std::move(batch), next.scale);
  }
  parts_.session.FinishStep(static_cast<float>(report.learning_rate), step, next.slot, counts);
  if (parts_.trace != nullptr) parts_.trace->End(step);
  report.data_seconds = data_seconds;
  TRANCHE_RETURN_IF_ERROR(Drain());
  pending_ = next;
  return absl::OkStatus();
}

absl::Status TrainLoop::Drain() {
  // The step in flight when the run gives up says nothing new.
  if (TooManyNonFinite()) pending_.reset();
  if (!pending_) return absl::OkStatus();
  Pending pending = *std::exchange(pending_, std::nullopt);
  const Readback& read = parts_.session.Await(pending.slot);
  TRANCHE_RETURN_IF_ERROR(parts_.session.status());
  requests_ = read.totals.requests;
  StepReport& report = pending.report;
  report.step_tokens = static_cast<int64_t>(read.totals.numbers[0]);
  report.model_flops = read.totals.numbers[1];
  report.loss = read.totals.loss_sum / static_cast<double>(pending.scale.predicted_tokens);
  if (parts_.setup.config.next_sentence_head) {
    report.next_sentence_loss =
        read.totals.next_sentence_loss_sum / static_cast<double>(pending.scale.sequences);
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
      const std::string mine,
      FindNonFinite(parts_.session, parts_.train, pending.report.step, pending.scale));
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                           parts_.world.Exchange("nonfinite", mine));
  const auto first =
      std::find_if(found.begin(), found.end(), [](const std::string& at) { return !at.empty(); });
  const std::string origin =
      first != found.end() ? *first : "no tensor at the weights after the next update";
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
  parts_.world.SetPhase("evaluation");
  for (const ValidationLoader& set : parts_.validation) {
    const absl::StatusOr<EvaluationResult> result =
        EvaluateSet(parts_.session, set.name, *set.loader, recipe_.validation.steps,
                    // Several ranks must end it together.
                    [this] { return parts_.world.size() == 1 && StopAsked(); });
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
  parts_.world.SetPhase(absl::StrCat("checkpoint of step ", state_.step));
  CheckpointContents contents;
  contents.manifest = state_;
  contents.recipe = PrintRecipe(recipe_);
  contents.config = ConfigText(parts_.setup.config_json);
  const auto save = [&] {
    return SaveCheckpoint(parts_.fs, directory, contents, parts_.session.engine(),
                          parts_.session.backend(), parts_.session.stream(), parts_.world);
  };
  bar_.Clear();
  absl::StatusOr<std::string> path = save();
  while (absl::IsResourceExhausted(path.status()) &&
         checkpoint.on_disk_full == "prune_then_continue") {
    const auto remove = [&]() -> absl::StatusOr<std::string> {
      TRANCHE_ASSIGN_OR_RETURN(const std::optional<int64_t> removed,
                               RemoveOldestCheckpoint(parts_.fs, directory, keep_every));
      return removed ? CheckpointPath(directory, *removed) : std::string();
    };
    TRANCHE_ASSIGN_OR_RETURN(const std::string removed,
                             parts_.world.FromFirst("checkpoint.removed", remove));
    if (removed.empty()) break;
    LogWarning(absl::StrCat("the disk is full: ", removed, " was removed to make room for step ",
                            state_.step));
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
  if (!parts_.world.first()) return absl::OkStatus();
  return PruneCheckpoints(parts_.fs, directory, checkpoint.keep_latest_k, keep_every);
}

// Without it the run is no worse: what goes wrong is said and the training goes on.
absl::Status TrainLoop::ExportStep() {
  if (!parts_.world.first()) return absl::OkStatus();
  const std::string& directory = parts_.directory.exports;
  const std::string path = CheckpointPath(directory, state_.step);
  const absl::Status status = ReplaceFolder(parts_.fs, path, [&](const std::string& folder) {
    if (parts_.world.size() > 1) {
      const SavedModel saved{CheckpointPath(parts_.directory.checkpoints, state_.step), recipe_};
      return ExportCheckpoint(parts_.fs, saved, folder);
    }
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
