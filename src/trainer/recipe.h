// The recipe: everything that decides a run. Its sections are plain structs (recipe_sections.h);
// here is the whole, where its values came from, and how it is read and written.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "trainer/recipe_sections.h"

namespace tranche {

struct Recipe {
  RunRecipe run;
  ModelRecipe model;
  TokenizerRecipe tokenizer;
  DataRecipe data;
  ValidationRecipe validation;
  TrainingRecipe training;
  ParallelismRecipe parallelism;
  LaunchRecipe launch;
  OptimizerRecipe optimizer;
  LrSchedulerRecipe lr_scheduler;
  CheckpointRecipe checkpoint;
  MetricsRecipe metrics;
  ProfilerRecipe profiler;
  FaultToleranceRecipe fault_tolerance;

  // Where a value was given: "training.max_steps" -> "my.toml:12" or "--set". Absent: it is the
  // default. The keys of the model's configuration are here as "model.hidden_size" or
  // "model.overrides.hidden_size".
  std::map<std::string, std::string> origins;
  std::string Origin(const std::string& key) const {
    const auto found = origins.find(key);
    return found == origins.end() ? "default" : found->second;
  }

  template <typename Self, typename Visitor>
  static void VisitFields(Self& self, Visitor& visit) {
    visit.Section("run", self.run, "What the run is called and where it writes.");
    visit.Section("model", self.model, "The architecture and its first weights.");
    visit.Section("tokenizer", self.tokenizer, "The tokenizer that made the data.");
    visit.Section("data", self.data, "What is trained on, and how samples are cut from it.");
    visit.Section("validation", self.validation, "What is evaluated on the way.");
    visit.Section("training", self.training, "How long, how much at a time, how exact.");
    visit.Section("parallelism", self.parallelism, "How ranks that train together share the work.");
    visit.Section("launch", self.launch, "The ranks that `tranche train` starts on this host.");
    visit.Section("optimizer", self.optimizer, "The update rule.");
    visit.Section("lr_scheduler", self.lr_scheduler, "The learning rate over the run.");
    visit.Section("checkpoint", self.checkpoint, "What is saved, and where a run starts from.");
    visit.Section("metrics", self.metrics, "What is reported.");
    visit.Section("profiler", self.profiler, "What is written down of a few steps' time.");
    visit.Section("fault_tolerance", self.fault_tolerance,
                  "What is done when something goes wrong.");
  }
};

// Same values, wherever they came from.
bool SameValues(const Recipe& a, const Recipe& b);

// Which files must exist for what the recipe is wanted for: none (to print it), the model's
// config.json (plan), all (train).
enum class RecipeFiles { kNone, kModel, kAll };

// Reads a recipe file and applies `sets` ("section.key=value", the value in TOML syntax or bare)
// over it. The error lists every fault found, one a line: "file:line: section.key: what is wrong,
// what is allowed".
absl::StatusOr<Recipe> LoadRecipe(const std::string& path, absl::Span<const std::string> sets,
                                  RecipeFiles files);
// The same from text; `source` names it in errors, and relative paths resolve against the folder of
// `source`.
absl::StatusOr<Recipe> ParseRecipe(absl::string_view text, const std::string& source,
                                   absl::Span<const std::string> sets, RecipeFiles files);

// The model's config.json: that of model.path with the overrides, or the keys of [model]. NotFound
// where the folder has none.
absl::StatusOr<nlohmann::ordered_json> RecipeModelConfig(const Recipe& recipe);

// The resolved recipe: every value that has an effect, each with its origin as a comment. It is a
// valid recipe for the same run.
std::string PrintRecipe(const Recipe& recipe);

// docs/recipe.md.
std::string RecipeReference();

}  // namespace tranche
