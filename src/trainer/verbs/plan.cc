// `tranche plan`.
#include <cstdio>

#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "model/hf_folder.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/recipe.h"
#include "trainer/rehearsal.h"
#include "trainer/run_plan.h"
#include "trainer/saved_model.h"
#include "trainer/verbs/verbs.h"
#include "trainer/weights.h"

namespace tranche {
namespace {

absl::StatusOr<RunPlan> Plan(const Arguments& arguments) {
  const std::string& path = arguments.positionals()[0];
  const std::vector<std::string> sets = arguments.GetAll("set");
  const bool folder = IsDirectory(path);
  TRANCHE_ASSIGN_OR_RETURN(Recipe recipe, folder ? RecipeForFolder(path, sets)
                                                 : LoadRecipe(path, sets, RecipeFiles::kModel));
  const bool weights = !recipe.model.path.empty() && HfFolder::HoldsWeights(recipe.model.path);
  if (folder && weights) recipe.model.init = "pretrained", recipe.model.fresh_head = true;
  TRANCHE_ASSIGN_OR_RETURN(const RunSetup setup, SetUpRun(recipe, /*with_tokenizer=*/false));
  if (weights) {
    TRANCHE_RETURN_IF_ERROR(CheckFirstWeights(setup, /*aloud=*/!folder));
  } else if (recipe.model.init == "pretrained") {
    LogNote(recipe.model.path + ": holds no weights yet; planned by its config.json");
  }
  return MakePlan(setup, std::nullopt, UsableThreads());
}

int Run(const Arguments& arguments) {
  const absl::StatusOr<RunPlan> plan = Plan(arguments);
  if (!plan.ok()) return ReportError(plan.status());
  std::fputs((arguments.Has("json") ? PlanJson(*plan) : PrintPlan(*plan)).c_str(), stdout);
  return kExitDone;
}

}  // namespace

Verb PlanVerb() {
  return {.name = "plan",
          .summary =
              "Says what a run will need: memory by name, arithmetic, steps, disk; runs nothing.",
          .usage = "RECIPE|MODEL_FOLDER [flags]",
          .example = "tranche plan recipes/quickstart.toml --set training.micro_batch_size=4",
          .flags = {SetFlag(), {"json", "", "Prints the plan as JSON."}},
          .min_positionals = 1,
          .max_positionals = 1,
          .run = Run};
}

}  // namespace tranche
