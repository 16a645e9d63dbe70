#include "trainer/run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "trainer/checkpoint.h"
#include "trainer/loop.h"
#include "trainer/matmul_peak.h"
#include "trainer/memory_use.h"
#include "trainer/run_directory.h"
#include "trainer/run_lock.h"
#include "trainer/run_plan.h"
#include "trainer/saved_model.h"
#include "trainer/settle_sharding.h"
#include "trainer/signals.h"
#include "trainer/start.h"
#include "trainer/version.h"
#include "trainer/weights.h"
#include "trainer/world.h"
#include "zero/group_layout.h"

namespace tranche {
namespace {

using Clock = std::chrono::steady_clock;

struct Loaders {
  std::unique_ptr<Loader> train;
  std::vector<ValidationLoader> validation;
};

absl::StatusOr<Loaders> OpenLoaders(const RunSetup& setup) {
  Loaders loaders;
  TRANCHE_ASSIGN_OR_RETURN(loaders.train, Loader::Create(setup.train));
  for (const NamedLoader& set : setup.validation) {
    TRANCHE_ASSIGN_OR_RETURN(std::unique_ptr<Loader> loader, Loader::Create(set.options));
    loaders.validation.push_back({set.name, std::move(loader)});
  }
  return loaders;
}

void PrintData(const Loaders& loaders) {
  const auto print = [](const std::string& name, const Loader& loader) {
    for (const Loader::SourceReport& source : loader.report()) {
      std::printf("data         %s: %s, %s tokens in %s documents, %s samples an epoch",
                  name.c_str(), source.path.c_str(), FormatInteger(source.tokens).c_str(),
                  FormatInteger(source.documents).c_str(), FormatInteger(source.samples).c_str());
      if (loader.report().size() > 1) std::printf(", %.1f%% of the samples", 100 * source.share);
      if (source.unused_tokens > 0) {
        std::printf("; %s tokens unused: %s", FormatInteger(source.unused_tokens).c_str(),
                    source.unused_reason.c_str());
      }
      std::printf("\n");
    }
  };
  print("training", *loaders.train);
  for (const ValidationLoader& set : loaders.validation) print(set.name, *set.loader);
}

absl::Status RemoveEarlierRun(FileSystem& fs, const RunDirectory& directory) {
  for (const std::string& path : {directory.checkpoints, directory.metrics, directory.resolved,
                                  directory.exported, directory.exports, directory.trace}) {
    if (FileExists(path)) LogNote(absl::StrCat("--overwrite: removing ", path));
    TRANCHE_RETURN_IF_ERROR(fs.RemoveAll(path));
  }
  return absl::OkStatus();
}

// A run whose last step was already taken: at most its export is missing.
absl::StatusOr<ExitCode> FinishedRun(FileSystem& fs, const RunSetup& setup, const StartPoint& start,
                                     const RunDirectory& directory) {
  std::printf("already complete: %s is of step %d of %d\n", start.checkpoint.c_str(),
              static_cast<int>(start.manifest.step),
              static_cast<int>(start.manifest.schedule.total_steps));
  if (setup.recipe.checkpoint.export_hf != "never" && !FileExists(directory.exported)) {
    const SavedModel model{start.checkpoint, setup.recipe};
    TRANCHE_RETURN_IF_ERROR(ExportCheckpoint(fs, model, directory.exported));
  }
  return kExitDone;
}

// What the run's arithmetic is a share of, and who says so.
struct Yardstick {
  double flops = 0;  // per second
  std::string source;
};

absl::StatusOr<Yardstick> TakeYardstick(const RunSetup& setup, int threads) {
  const double given = setup.recipe.metrics.peak_tflops;
  if (given > 0) return Yardstick{given * 1e12, "of metrics.peak_tflops"};
  Yardstick yardstick{0, "that matrix products reached here before the run"};
  TRANCHE_ASSIGN_OR_RETURN(yardstick.flops, MeasureMatMulPeak(setup.engine.dtype, threads));
  return yardstick;
}

// Before the run another process may have had the cores: what is measured again after it counts
// where it is more.
absl::Status TakeYardstickAgain(const RunSetup& setup, int threads, Yardstick* yardstick) {
  if (setup.recipe.metrics.peak_tflops > 0) return absl::OkStatus();
  TRANCHE_ASSIGN_OR_RETURN(const double now, MeasureMatMulPeak(setup.engine.dtype, threads));
  if (now <= yardstick->flops) return absl::OkStatus();
  *yardstick = {now, absl::StrCat("that matrix products reached here after the run (before it ",
                                  FormatFlops(yardstick->flops), "/s)")};
  return absl::OkStatus();
}

void PrintSummary(const TrainLoop& loop, const Rehearsal& plan, const Arena& arena,
                  const Yardstick& yardstick, int64_t resident_beyond) {
  const CheckpointManifest& state = loop.state();
  const double seconds = loop.trained_seconds();
  std::printf("\nsteps        %d of %d; skipped: %d not finite, %d without a target\n",
              static_cast<int>(state.step), static_cast<int>(state.schedule.total_steps),
              static_cast<int>(state.nonfinite_steps), static_cast<int>(state.no_target_steps));
  if (seconds > 0) {
    const double rate = loop.model_flops() / seconds;
    std::printf("speed        %s tokens in %s: %s tokens/s, %s/s",
                FormatInteger(loop.trained_tokens()).c_str(), FormatSeconds(seconds).c_str(),
                FormatCount(static_cast<double>(loop.trained_tokens()) / seconds).c_str(),
                FormatFlops(rate).c_str());
    const std::string share = rate > yardstick.flops
                                  ? "more than 100%"
                                  : absl::StrFormat("%.0f%%", 100 * rate / yardstick.flops);
    std::printf(", %s of the %s/s %s\n", share.c_str(), FormatFlops(yardstick.flops).c_str(),
                yardstick.source.c_str());
  }
  std::printf("memory       planned %s bytes, used %s; %s resident beyond them\n",
              FormatInteger(plan.peak_bytes).c_str(), FormatInteger(arena.peak()).c_str(),
              FormatBytes(resident_beyond).c_str());
  std::fflush(stdout);
}

// Hours before the first checkpoint is the time to hear that it will not fit.
void WarnOfFullDisk(FileSystem& fs, const RunSetup& setup, const RunDirectory& directory) {
  const absl::StatusOr<int64_t> available = fs.FreeBytes(directory.path);
  const int64_t needed =
      CheckpointBytes(setup.specs, *CreateAdamW(setup.engine.update), CheckpointContents());
  if (!available.ok() || *available >= needed) return;
  LogWarning(absl::StrCat(directory.path, ": a checkpoint needs ", FormatBytes(needed),
                          ", the volume has ", FormatBytes(*available), " free"));
}

// Of this program's file.
std::string ProgramHash() {
  const absl::StatusOr<MappedFile> program = MappedFile::Open("/proc/self/exe");
  return program.ok() ? Hash128(program->data()) : VersionText();
}

// A rank that no launcher gave a log of its own.
absl::Status RedirectOutput(FileSystem& fs, const RunDirectory& directory, int rank) {
  const std::string logs = JoinPath(directory.path, "logs");
  TRANCHE_RETURN_IF_ERROR(fs.MakeDirs(logs));
  const std::string path = JoinPath(logs, absl::StrCat("rank-", rank, ".log"));
  for (std::FILE* stream : {stdout, stderr}) {
    if (std::freopen(path.c_str(), "a", stream) == nullptr) {
      return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
    }
  }
  return absl::OkStatus();
}

// The first rank locks the directory, clears it of what must go and finds the start; the others
// follow it.
absl::StatusOr<StartPoint> TakeDirectory(FileSystem& fs, const Recipe& recipe,
                                         const TrainOptions& options, const RunDirectory& directory,
                                         World& world, std::optional<RunLock>* lock) {
  StartPoint start;
  const auto take = [&]() -> absl::StatusOr<std::string> {
    TRANCHE_RETURN_IF_ERROR(fs.MakeDirs(directory.path));
    TRANCHE_ASSIGN_OR_RETURN(RunLock acquired, RunLock::Acquire(directory.path));
    lock->emplace(std::move(acquired));
    if (options.overwrite) TRANCHE_RETURN_IF_ERROR(RemoveEarlierRun(fs, directory));
    for (const std::string& folder : {directory.checkpoints, directory.exports}) {
      TRANCHE_RETURN_IF_ERROR(RemoveLeftovers(fs, folder));
    }
    TRANCHE_ASSIGN_OR_RETURN(start, FindStart(recipe.checkpoint.resume, directory.checkpoints,
                                              ParseVerification(recipe.checkpoint.verify)));
    return start.checkpoint;
  };
  TRANCHE_ASSIGN_OR_RETURN(const std::string path, world.FromFirst("start", take));
  if (world.first() || path.empty()) return start;
  start.checkpoint = path;
  TRANCHE_ASSIGN_OR_RETURN(start.manifest, VerifyCheckpoint(path, Verification::kNone));
  return start;
}

// How much of the communication computing waited for, and for which group most.
void PrintCommunication(const TrainLoop& loop, const Rehearsal& plan, Session& session) {
  const ExposedSeconds exposed = session.engine().TakeExposedSeconds();
  std::vector<double> by_group = exposed.gathers;
  for (size_t g = 0; g < by_group.size(); ++g) by_group[g] += exposed.reductions[g];
  const auto most = std::max_element(by_group.begin(), by_group.end());
  const std::string name =
      GroupName(static_cast<int>(most - by_group.begin()), static_cast<int>(by_group.size()));
  std::printf(
      "exchanged    %s sent a step and rank; computing waited %s for it (%.1f%% of the time): "
      "weights %s, gradients %s, sums %s; most of it for %s\n",
      FormatBytes(plan.comm.total_bytes()).c_str(), FormatSeconds(exposed.total()).c_str(),
      100 * exposed.total() / std::max(loop.trained_seconds(), 1e-9),
      FormatSeconds(exposed.gather()).c_str(), FormatSeconds(exposed.reduction()).c_str(),
      FormatSeconds(exposed.sums).c_str(), exposed.sums > *most ? "the sums" : name.c_str());
  std::fflush(stdout);
}

CheckpointManifest AtStepZero(const RunSetup& setup, const std::string& data_fingerprint) {
  CheckpointManifest state;
  state.seed = setup.recipe.run.seed;
  state.global_batch_size = setup.recipe.training.global_batch_size;
  state.sequence_length = setup.recipe.data.sequence_length;
  state.data_fingerprint = data_fingerprint;
  return state;
}

}  // namespace

absl::StatusOr<ExitCode> RunTraining(const Recipe& recipe, const TrainOptions& options,
                                     World& world) {
  const Clock::time_point process_start = Clock::now();
  CatchStopSignals(recipe.fault_tolerance.preempt_signals);
  world.SetPhase("load");
  FileSystem& fs = FileSystem::Real();
  const int threads = UsableThreads();
  const RunDirectory directory(recipe.run.output_dir);
  if (!world.launched() && !world.first()) {
    TRANCHE_RETURN_IF_ERROR(RedirectOutput(fs, directory, world.rank()));
  }
  TRANCHE_RETURN_IF_ERROR(world.SameOnAll(
      "program and recipe", absl::StrCat("program ", ProgramHash(), "\n", PrintRecipe(recipe))));
  TRANCHE_ASSIGN_OR_RETURN(RunSetup setup, SetUpRun(recipe, /*with_tokenizer=*/true, world.size()));
  TRANCHE_RETURN_IF_ERROR(CheckFirstWeights(setup, /*aloud=*/options.dry_run));
  TRANCHE_ASSIGN_OR_RETURN(const Loaders loaders, OpenLoaders(setup));
  TRANCHE_ASSIGN_OR_RETURN(const int64_t total_steps,
                           TotalSteps(recipe, loaders.train->samples_per_epoch()));
  TRANCHE_ASSIGN_OR_RETURN(const Schedule schedule, MakeSchedule(recipe, total_steps));
  if (options.dry_run) {
    TRANCHE_ASSIGN_OR_RETURN(RankAssumptions assumptions, AssumeRanks(world.size()));
    assumptions.ranks_here = world.local_size();
    assumptions.threads = threads;
    TRANCHE_ASSIGN_OR_RETURN(const RunPlan plan,
                             MakePlan(std::move(setup), total_steps, assumptions));
    PrintData(loaders);
    std::fputs(PrintPlan(plan).c_str(), stdout);
    return kExitDone;
  }

  TRANCHE_RETURN_IF_ERROR(world.SameOnAll("data", loaders.train->fingerprint()));
  std::optional<RunLock> lock;
  TRANCHE_ASSIGN_OR_RETURN(const StartPoint start,
                           TakeDirectory(fs, recipe, options, directory, world, &lock));
  CheckpointManifest state = AtStepZero(setup, loaders.train->fingerprint());
  if (!start.checkpoint.empty()) {
    TRANCHE_RETURN_IF_ERROR(CheckSameRun(start, setup, loaders.train->fingerprint(), schedule));
    if (start.manifest.step >= total_steps) {
      return world.first() ? FinishedRun(fs, setup, start, directory) : kExitDone;
    }
    if (world.first()) TRANCHE_RETURN_IF_ERROR(SetAsideNewer(fs, directory.checkpoints, start));
    state = start.manifest;
  }
  state.precision = recipe.training.precision;
  state.seed = recipe.run.seed;
  state.schedule_name = recipe.lr_scheduler.name;
  state.schedule = schedule;

  if (world.first()) WarnOfFullDisk(fs, setup, directory);
  const std::unique_ptr<Backend> backend = CreateCpuBackend(threads);
  TRANCHE_ASSIGN_OR_RETURN(const CommGroups comms, world.Connect(*backend, setup.replicas));
  std::string sharding;
  if (comms.size() > 1) {
    TRANCHE_ASSIGN_OR_RETURN(sharding,
                             SettleSharding(world, *comms.shards, *backend, threads, &setup));
  }
  TRANCHE_ASSIGN_OR_RETURN(const Rehearsal plan, Rehearse(setup, /*training=*/true, threads));
  TRANCHE_ASSIGN_OR_RETURN(Yardstick yardstick, TakeYardstick(setup, threads));
  TRANCHE_ASSIGN_OR_RETURN(const auto flops, FlopCounter::Create(setup));
  TRANCHE_ASSIGN_OR_RETURN(Arena arena, Arena::OnHost(plan.peak_bytes));
  Timeline timeline;
  TRANCHE_ASSIGN_OR_RETURN(const auto own_session,
                           Session::Create(setup, /*training=*/true, *backend, arena, comms));
  Session& session = *own_session;
  std::optional<StepTrace> trace;
  if (recipe.profiler.enable) {
    trace.emplace(recipe.profiler.steps[0], recipe.profiler.steps[1], timeline, session, world, fs,
                  directory.trace);
  }
  std::printf("run          %s: %s, %s parameters, %s, on %s\n", recipe.run.name.c_str(),
              setup.config.architecture.c_str(), FormatInteger(TotalElements(setup.specs)).c_str(),
              recipe.training.precision.c_str(), backend->Describe().c_str());
  if (!sharding.empty()) std::printf("ranks        %s\n", sharding.c_str());
  PrintData(loaders);
  std::printf("memory      ");
  for (const MemoryKind kind :
       {MemoryKind::kWeights, MemoryKind::kGradients, MemoryKind::kOptimizer,
        MemoryKind::kActivations, MemoryKind::kWorkspace}) {
    std::printf(" %s %s,", MemoryKindName(kind).data(),
                FormatBytes(plan.bytes_by_kind[static_cast<size_t>(kind)]).c_str());
  }
  std::printf(" together %s\n", FormatBytes(plan.peak_bytes).c_str());
  if (start.checkpoint.empty()) {
    TRANCHE_RETURN_IF_ERROR(SetFirstWeights(setup, session.engine(), *backend, session.stream()));
  } else {
    TRANCHE_RETURN_IF_ERROR(
        LoadCheckpoint(start.checkpoint, session.engine(), *backend, session.stream()));
    std::printf("resumed      %s, after step %d\n", start.checkpoint.c_str(),
                static_cast<int>(state.step));
  }
  std::fflush(stdout);

  std::unique_ptr<MetricsLog> metrics;
  if (world.first()) {
    TRANCHE_RETURN_IF_ERROR(WriteFileAtomic(directory.resolved, PrintRecipe(recipe)));
  }
  if (world.first() && recipe.metrics.jsonl) {
    TRANCHE_ASSIGN_OR_RETURN(metrics, MetricsLog::Open(directory.metrics));
    metrics->Append(absl::StrFormat(
        R"({"event":"start","attempt":%d,"step":%d,"total_steps":%d,"parameters":%d,"memory_bytes":%d})",
        metrics->attempt(), state.step, total_steps, TotalElements(setup.specs), plan.peak_bytes));
  }
  TrainLoop loop({.world = world,
                  .setup = setup,
                  .session = session,
                  .train = *loaders.train,
                  .validation = loaders.validation,
                  .flops = *flops,
                  .fs = fs,
                  .metrics = metrics.get(),
                  .trace = trace ? &*trace : nullptr,
                  .directory = directory,
                  .peak_flops = yardstick.flops,
                  .arena_bytes = plan.peak_bytes,
                  .process_start = process_start},
                 std::move(state));
  TRANCHE_ASSIGN_OR_RETURN(const TrainLoop::End end, loop.Run());
  world.SetPhase("end");
  if (trace) TRANCHE_RETURN_IF_ERROR(trace->Finish());
  const int64_t beyond = ResidentBytes() - arena.peak();
  TRANCHE_RETURN_IF_ERROR(TakeYardstickAgain(setup, threads, &yardstick));
  PrintSummary(loop, plan, arena, yardstick, beyond);
  if (comms.size() > 1) PrintCommunication(loop, plan, session);
  if (end == TrainLoop::End::kNonFinite) return kExitNonFinite;
  if (!loop.save_failure().empty()) return absl::ResourceExhaustedError(loop.save_failure());
  if (end == TrainLoop::End::kStopped) return kExitStopped;
  if (recipe.checkpoint.export_hf != "never" && world.first()) {
    world.SetPhase("export");
    const std::string newest = CheckpointPath(directory.checkpoints, loop.state().step);
    TRANCHE_RETURN_IF_ERROR(ReplaceFolder(fs, directory.exported, [&](const std::string& folder) {
      return comms.size() == 1
                 ? ExportModel(fs, setup, session.engine(), *backend, session.stream(), folder)
                 : ExportCheckpoint(fs, {newest, recipe}, folder);
    }));
    LogNote(absl::StrCat("model written to ", directory.exported));
  }
  return kExitDone;
}

}  // namespace tranche
