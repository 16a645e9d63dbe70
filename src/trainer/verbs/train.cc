// `tranche train`.
#include "launch/rank.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/run.h"
#include "trainer/verbs/launch_training.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

int Train(const Arguments& arguments) {
  const TrainOptions options = {.dry_run = arguments.Has("dry-run"),
                                .overwrite = arguments.Has("overwrite")};
  const absl::StatusOr<Recipe> recipe =
      LoadRecipe(arguments.positionals()[0], arguments.GetAll("set"), RecipeFiles::kAll);
  if (!recipe.ok()) return ReportError(recipe.status());
  if (recipe->launch.ranks) {
    const absl::StatusOr<RankEnvironment> environment = ReadRankEnvironment();
    if (!environment.ok()) return ReportError(environment.status());
    if (environment->world_size == 1 && !environment->HasStore()) {
      const absl::StatusOr<int> code = LaunchTraining(*recipe, arguments);
      return code.ok() ? *code : ReportError(code.status());
    }
  }
  return RunInWorld(
      [&](World& world) -> absl::StatusOr<int> { return RunTraining(*recipe, options, world); });
}

}  // namespace

Verb TrainVerb() {
  return {
      .name = "train",
      .summary = "Trains a model as a recipe says; the same command goes on after a stop.",
      .usage = "RECIPE [flags]",
      .example = "tranche train recipes/quickstart.toml --set optimizer.lr=1e-3",
      .flags = {SetFlag(),
                {"dry-run", "", "Checks recipe, model and data, prints the plan, writes nothing."},
                {"overwrite", "",
                 "Removes an earlier run from the output directory and starts anew."}},
      .min_positionals = 1,
      .max_positionals = 1,
      .run = Train};
}

}  // namespace tranche
