// `tranche tune`.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/units.h"
#include "trainer/cli.h"
#include "trainer/known_rates.h"
#include "trainer/recipe.h"
#include "trainer/step_times.h"
#include "trainer/tuning.h"
#include "trainer/verbs/on_ranks.h"
#include "trainer/verbs/verbs.h"
#include "trainer/world.h"

namespace tranche {
namespace {

constexpr int kPasses = 3;

void PrintCurve(const std::vector<CollectiveTime>& times, const CollectiveCosts& costs) {
  std::printf("collective        bytes sent   measured        fit\n");
  for (const CollectiveTime& time : times) {
    const CollectiveCost& cost = costs[static_cast<size_t>(time.kind)];
    std::printf("%-15s %12s %9.3f ms %9.3f ms\n", CollectiveName(time.kind).data(),
                FormatBytes(time.bytes).c_str(), 1e3 * time.seconds,
                1e3 * cost.Seconds(time.bytes));
  }
  for (const Collective kind : kMeasuredCollectives) {
    const CollectiveCost& cost = costs[static_cast<size_t>(kind)];
    std::printf("%-15s %.1f us + %.3f ms per MiB sent, which takes %.3f ms from computing\n",
                CollectiveName(kind).data(), 1e6 * cost.alpha, 1e3 * cost.beta * 0x1p20,
                1e3 * cost.core * 0x1p20);
  }
}

absl::Status TuneRanks(const Arguments& arguments, World& world) {
  TRANCHE_ASSIGN_OR_RETURN(const int64_t steps, arguments.GetInt("steps", 2, 1, 100000));
  TRANCHE_ASSIGN_OR_RETURN(
      const Recipe recipe,
      LoadRecipe(arguments.positionals()[0], arguments.GetAll("set"), RecipeFiles::kModel));
  TRANCHE_RETURN_IF_ERROR(NeedsOthers(world));
  const int threads = UsableThreads();
  TRANCHE_ASSIGN_OR_RETURN(RunSetup setup,
                           SetUpRun(recipe, /*with_tokenizer=*/false, world.size()));
  const std::unique_ptr<Backend> backend = CreateCpuBackend(threads);
  TRANCHE_ASSIGN_OR_RETURN(const CommGroups comms, world.Connect(*backend, setup.replicas));
  TRANCHE_ASSIGN_OR_RETURN(const auto times,
                           MeasureCollectives(setup, world, *comms.shards, *backend));
  const CollectiveCosts costs = FitCosts(times);
  TRANCHE_ASSIGN_OR_RETURN(const MachineRates rates,
                           MeasureRates(setup, world, *comms.shards, *backend, threads, costs));
  TRANCHE_RETURN_IF_ERROR(KeepRates(setup, world, *backend, rates));
  TRANCHE_ASSIGN_OR_RETURN(const auto choices, PredictBuckets(setup, threads, rates));
  const BucketChoice& best = BestBucket(choices);
  if (world.first()) {
    std::printf("%d ranks, ZeRO stage %d, %s\n\n", world.size(), setup.engine.zero_stage,
                backend->Describe().c_str());
    PrintCurve(times, rates.collectives);
    std::printf("computing       %s/s in products, %s/s through memory\n\n",
                FormatFlops(rates.device.matmul_flops).c_str(),
                FormatBytes(static_cast<int64_t>(rates.device.memory_bytes)).c_str());
  }
  // A pass measures every size, so that what else happens on the machine meets them all.
  struct Measured {
    double step = std::numeric_limits<double>::infinity(), exposed = 0;
  };
  std::vector<Measured> measured(choices.size());
  for (int pass = 0; pass < kPasses; ++pass) {
    for (size_t i = 0; i < choices.size(); ++i) {
      setup.engine.bucket_bytes = choices[i].bucket_bytes;
      TRANCHE_ASSIGN_OR_RETURN(const StepTimes step,
                               MeasureSteps(setup, *backend, comms, threads, /*warm_up=*/1, steps));
      if (step.best() < measured[i].step) {
        measured[i] = {step.best(), step.per_step(step.exposed.total())};
      }
    }
  }
  if (!world.first()) return absl::OkStatus();
  std::printf("      bucket  collectives   predicted    measured     exposed\n");
  double shortest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < choices.size(); ++i) {
    shortest = std::min(shortest, measured[i].step);
    std::printf("%12s  %11d  %7.2f ms  %8.2f ms  %8.2f ms%s\n",
                FormatBytes(choices[i].bucket_bytes).c_str(),
                static_cast<int>(choices[i].collectives), 1e3 * choices[i].step_seconds,
                1e3 * measured[i].step, 1e3 * measured[i].exposed,
                &choices[i] == &best ? "  <- chosen" : "");
  }
  const double chosen = measured[static_cast<size_t>(&best - choices.data())].step;
  std::printf(
      "\nchosen      %s: the largest of those predicted within 1%% of the shortest; it was %.1f%% "
      "longer "
      "than the shortest that was measured\n",
      FormatBytes(best.bucket_bytes).c_str(), 100 * (chosen / shortest - 1));
  return absl::OkStatus();
}

int Tune(const Arguments& arguments) {
  return RunOnRanks(TuneVerb(), arguments,
                    [&](World& world) { return TuneRanks(arguments, world); });
}

}  // namespace

Verb TuneVerb() {
  return WithRankFlags(
      {.name = "tune",
       .summary = "Measures the links between ranks and shows which bucket they ask for.",
       .usage = "-n RANKS RECIPE [flags]",
       .example = "tranche tune -n 2 recipes/phi-tiny.toml",
       .flags = {{"steps", "N",
                  absl::StrFormat("Steps to measure for each size, %d times (default 2).",
                                  kPasses)},
                 SetFlag()},
       .min_positionals = 1,
       .max_positionals = 1,
       .run = Tune});
}

}  // namespace tranche
