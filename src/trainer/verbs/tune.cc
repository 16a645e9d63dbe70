// `tranche tune`.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
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
constexpr int kTurns = 9;  // of the chosen size and the one that was measured to be the best

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

struct Measured {
  double step = std::numeric_limits<double>::infinity();
  double exposed = 0;
};

bool operator<(const Measured& a, const Measured& b) { return a.step < b.step; }

void PrintSizes(const std::vector<BucketChoice>& choices, const std::vector<Measured>& measured,
                size_t chosen) {
  std::printf("      bucket  collectives   predicted    measured     exposed\n");
  for (size_t i = 0; i < choices.size(); ++i) {
    std::printf("%12s  %11d  %7.2f ms  %8.2f ms  %8.2f ms%s\n",
                FormatBytes(choices[i].bucket_bytes).c_str(),
                static_cast<int>(choices[i].collectives), 1e3 * choices[i].step_seconds,
                1e3 * measured[i].step, 1e3 * measured[i].exposed,
                i == chosen ? "  <- chosen" : "");
  }
  std::printf("\nchosen      %s: the largest of those predicted within 1%% of the shortest\n",
              FormatBytes(choices[chosen].bucket_bytes).c_str());
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
  const auto chosen = static_cast<size_t>(&BestBucket(choices) - choices.data());
  if (world.first()) {
    std::printf("%d ranks, ZeRO stage %d, %s\n\n", world.size(), setup.engine.zero_stage,
                backend->Describe().c_str());
    PrintCurve(times, rates.collectives);
    std::printf("computing       %s/s in products, %s/s through memory\n\n",
                FormatFlops(rates.device.matmul_flops).c_str(),
                FormatBytes(static_cast<int64_t>(rates.device.memory_bytes)).c_str());
  }
  const auto measure = [&](size_t i) {
    setup.engine.bucket_bytes = choices[i].bucket_bytes;
    return MeasureSteps(setup, *backend, comms, threads, /*warm_up=*/1, steps);
  };
  std::vector<Measured> measured(choices.size());
  // A pass measures every size, so that what else happens on the machine meets them all.
  for (int pass = 0; pass < kPasses; ++pass) {
    for (size_t i = 0; i < choices.size(); ++i) {
      TRANCHE_ASSIGN_OR_RETURN(const StepTimes step, measure(i));
      if (step.best() < measured[i].step) {
        measured[i] = {step.best(), step.per_step(step.exposed.total())};
      }
    }
  }
  // Rank 0's, as each has its own clock.
  auto shortest =
      static_cast<size_t>(std::min_element(measured.begin(), measured.end()) - measured.begin());
  TRANCHE_ASSIGN_OR_RETURN(const auto shortest_of_ranks,
                           world.Exchange("tune.shortest", absl::StrCat(shortest)));
  TRANCHE_CHECK(absl::SimpleAtoi(shortest_of_ranks[0], &shortest)) << shortest_of_ranks[0];
  // The shortest of many is the one that luck favoured most, so it has to show it again.
  std::vector<double> ratios;  // of its step to the chosen one's
  for (int turn = 0; turn < kTurns && shortest != chosen; ++turn) {
    double seconds[2];  // the shortest one's and the chosen one's, which take turns to be first
    for (const int k : {turn % 2, 1 - turn % 2}) {
      TRANCHE_ASSIGN_OR_RETURN(const StepTimes step, measure(k == 0 ? shortest : chosen));
      seconds[k] = step.median();
    }
    ratios.push_back(seconds[0] / seconds[1]);
  }
  if (!world.first()) return absl::OkStatus();

  PrintSizes(choices, measured, chosen);
  if (shortest == chosen) {
    std::printf("            no other was measured to be shorter\n");
  } else {
    std::nth_element(ratios.begin(), ratios.begin() + kTurns / 2, ratios.end());
    std::printf(
        "            in %d more turns of both, steps with %s took %.3f times as long (median)\n",
        kTurns, FormatBytes(choices[shortest].bucket_bytes).c_str(), ratios[kTurns / 2]);
  }
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
