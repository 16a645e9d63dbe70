// `tranche bench train SHAPE`: tokens per second of real training steps (forward, backward,
// clipping, AdamW) on random tokens, for comparison with other trainers in one interleaved run.
#include <sys/resource.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"
#include "nlohmann/json.hpp"
#include "trainer/bundled_recipes.h"
#include "trainer/cli.h"
#include "trainer/matmul_peak.h"
#include "trainer/rehearsal.h"
#include "trainer/step_times.h"
#include "trainer/verbs/on_ranks.h"
#include "trainer/verbs/verbs.h"
#include "trainer/world.h"

namespace tranche {
namespace {

// A shape that is not a recipe of its own: a bundled recipe with some values replaced.
struct Shape {
  absl::string_view name;
  absl::string_view recipe;
  std::vector<std::string> sets;
};

const std::vector<Shape>& DerivedShapes() {
  static const auto* shapes = new std::vector<Shape>{
      {"bert-base-512", "bert-base", {"data.sequence_length=512", "training.global_batch_size=4"}},
      {"phi-350m-2048",
       "phi-125m",
       {"model.hidden_size=1024", "model.intermediate_size=4096", "model.num_hidden_layers=24",
        "model.num_attention_heads=16", "data.sequence_length=2048",
        "training.global_batch_size=1"}},
  };
  return *shapes;
}

absl::StatusOr<Recipe> LoadShape(const std::string& name, std::vector<std::string> sets) {
  if (FileExists(name)) return LoadRecipe(name, sets, RecipeFiles::kModel);
  std::string recipe_name = name;
  std::vector<std::string> known;
  for (const Shape& shape : DerivedShapes()) {
    known.emplace_back(shape.name);
    if (shape.name != name) continue;
    recipe_name = std::string(shape.recipe);
    sets.insert(sets.begin(), shape.sets.begin(), shape.sets.end());
  }
  for (const BundledRecipe& recipe : BundledRecipes()) {
    if (recipe.name == recipe_name) {
      return ParseRecipe(recipe.text, recipe_name + ".toml", sets, RecipeFiles::kModel);
    }
    known.emplace_back(recipe.name);
  }
  return absl::NotFoundError(absl::StrCat("no shape \"", name, "\"", DidYouMean(name, known),
                                          "; a bundled recipe's name or a recipe file is needed"));
}

double PeakResidentGib() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 0x1p20;
}

absl::Status Train(const Arguments& arguments, World& world) {
  TRANCHE_ASSIGN_OR_RETURN(const int64_t steps, arguments.GetInt("steps", 6, 1, 1000000));
  TRANCHE_ASSIGN_OR_RETURN(const int64_t threads,
                           arguments.GetInt("threads", UsableThreads(), 1, 1024));
  const std::string& name = arguments.positionals()[0];
  std::vector<std::string> sets = arguments.GetAll("set");
  if (arguments.Has("dtype")) sets.push_back("training.precision=" + arguments.Get("dtype"));
  TRANCHE_ASSIGN_OR_RETURN(const Recipe recipe, LoadShape(name, sets));
  TRANCHE_ASSIGN_OR_RETURN(const RunSetup setup, SetUpRun(recipe, false, world.size()));
  const std::unique_ptr<Backend> backend = CreateCpuBackend(static_cast<int>(threads));
  TRANCHE_ASSIGN_OR_RETURN(const CommGroups comms, world.Connect(*backend, setup.replicas));
  TRANCHE_ASSIGN_OR_RETURN(
      const StepTimes result,
      MeasureSteps(setup, *backend, comms, static_cast<int>(threads), /*warm_up=*/2, steps));
  const double best = result.best(), median = result.median();
  const double tokens = static_cast<double>(recipe.training.global_batch_size) *
                        static_cast<double>(recipe.data.sequence_length);
  const double rate = result.flops / best;
  TRANCHE_ASSIGN_OR_RETURN(double peak,
                           MeasureMatMulPeak(setup.transformer.dtype, static_cast<int>(threads)));
  if (!world.first()) return absl::OkStatus();
  peak *= world.size();
  if (arguments.Has("json")) {
    nlohmann::ordered_json line;
    line["shape"] = name;
    line["dtype"] = recipe.training.precision;
    line["params"] = TotalElements(setup.specs);
    line["batch"] = recipe.training.global_batch_size;
    line["seq"] = recipe.data.sequence_length;
    line["ranks"] = world.size();
    line["zero_stage"] = setup.engine.zero_stage;
    line["threads"] = threads;
    line["tok_s_best"] = tokens / best;
    line["tok_s_median"] = tokens / median;
    line["s_step"] = best;
    line["s_waiting"] = {{"gathers", result.per_step(result.exposed.gather())},
                         {"reductions", result.per_step(result.exposed.reduction())},
                         {"sums", result.per_step(result.exposed.sums)}};
    line["gflop_s"] = rate / 1e9;
    line["share_of_peak"] = rate / peak;
    line["arena_gib"] = static_cast<double>(result.arena_bytes) / 0x1p30;
    line["peak_gib"] = PeakResidentGib();
    line["loss"] = result.loss;
    absl::PrintF("%s\n", line.dump());
  } else {
    absl::PrintF(
        "%s %s, %d threads: %.0f tokens/s at best (%.0f median), %.3f s/step, %.1f GFLOP/s "
        "(%.0f %% of the measured matrix-product peak of %.1f), %.2f GiB resident, loss %.4f\n",
        name, recipe.training.precision, threads, tokens / best, tokens / median, best, rate / 1e9,
        100 * rate / peak, peak / 1e9, PeakResidentGib(), result.loss);
  }
  return absl::OkStatus();
}

int Run(const Arguments& arguments) {
  return RunOnRanks(BenchTrainVerb(), arguments,
                    [&](World& world) { return Train(arguments, world); });
}

}  // namespace

Verb BenchTrainVerb() {
  return WithRankFlags(
      {.name = "bench train",
       .summary = "Measure training speed on random tokens.",
       .usage = "SHAPE [flags]",
       .example = "tranche bench train phi-tiny --json",
       .flags = {{"steps", "N", "Steps to measure after two of warm-up (default 6)."},
                 {"threads", "N", "Threads (default: all usable cores)."},
                 {"dtype", "fp32|bf16", "Instead of the recipe's training.precision."},
                 SetFlag(),
                 {"json", "", "Print one JSON object."}},
       .min_positionals = 1,
       .max_positionals = 1,
       .run = Run});
}

}  // namespace tranche
