// `tranche plan`.
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "model/hf_folder.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/recipe.h"
#include "trainer/run_plan.h"
#include "trainer/saved_model.h"
#include "trainer/stage_plan.h"
#include "trainer/verbs/verbs.h"
#include "trainer/weights.h"

namespace tranche {
namespace {

// "30,1.25GB": a number, and what goes through in a second.
absl::StatusOr<std::pair<double, double>> NumberAndRate(const Arguments& arguments,
                                                        absl::string_view flag,
                                                        absl::string_view form) {
  const std::string text = arguments.Get(flag);
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  double number = 0;
  if (parts.size() == 2 && absl::SimpleAtod(parts[0], &number) && std::isfinite(number) &&
      number >= 0) {
    const absl::StatusOr<int64_t> bytes = ParseBytes(absl::StripAsciiWhitespace(parts[1]));
    if (bytes.ok() && *bytes > 0) return std::make_pair(number, static_cast<double>(*bytes));
  }
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": \"", text, "\" is not ", form));
}

absl::StatusOr<RankAssumptions> Assume(const Arguments& arguments, int ranks) {
  TRANCHE_ASSIGN_OR_RETURN(RankAssumptions assumptions, AssumeRanks(ranks));
  if (arguments.Has("link")) {
    TRANCHE_ASSIGN_OR_RETURN(
        const auto link,
        NumberAndRate(arguments, "link", "MICROSECONDS,BYTES of a second, such as 30,1.25GB"));
    assumptions.rates.collectives.fill({1e-6 * link.first, 1 / link.second});
    assumptions.link_source = "given";
  }
  if (arguments.Has("machine")) {
    TRANCHE_ASSIGN_OR_RETURN(
        const auto machine,
        NumberAndRate(arguments, "machine", "TFLOPS,BYTES of a second, such as 0.1,10GB"));
    if (machine.first == 0) {
      return absl::InvalidArgumentError("--machine: a machine of 0 TFLOPS never ends a step");
    }
    assumptions.rates.device = {1e12 * machine.first, machine.second};
    assumptions.machine_source = "given";
  }
  return assumptions;
}

absl::StatusOr<RunPlan> Plan(const Arguments& arguments) {
  const std::string& path = arguments.positionals()[0];
  const std::vector<std::string> sets = arguments.GetAll("set");
  const bool folder = IsDirectory(path);
  TRANCHE_ASSIGN_OR_RETURN(Recipe recipe, folder ? RecipeForFolder(path, sets)
                                                 : LoadRecipe(path, sets, RecipeFiles::kModel));
  const bool weights = !recipe.model.path.empty() && HfFolder::HoldsWeights(recipe.model.path);
  if (folder && weights) recipe.model.init = "pretrained", recipe.model.fresh_head = true;
  TRANCHE_ASSIGN_OR_RETURN(
      const int64_t ranks,
      arguments.GetInt("ranks", recipe.launch.ranks.value_or(1), 1, LaunchRecipe::kMostRanks));
  for (const char* flag : {"stages", "link", "machine"}) {
    if (ranks > 1 || !arguments.Has(flag)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": one rank shards nothing and sends nothing; give -n RANKS"));
  }
  TRANCHE_ASSIGN_OR_RETURN(const RankAssumptions assumptions,
                           Assume(arguments, static_cast<int>(ranks)));
  TRANCHE_ASSIGN_OR_RETURN(RunSetup setup,
                           SetUpRun(recipe, /*with_tokenizer=*/false, static_cast<int>(ranks)));
  if (weights) {
    TRANCHE_RETURN_IF_ERROR(CheckFirstWeights(setup, /*aloud=*/!folder));
  } else if (recipe.model.init == "pretrained") {
    LogNote(recipe.model.path + ": holds no weights yet; planned by its config.json");
  }
  return MakePlan(std::move(setup), std::nullopt, assumptions, arguments.Has("stages"));
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
          .flags = {SetFlag(),
                    {"ranks", "RANKS",
                     "Plans one of so many ranks (also -n RANKS); otherwise launch.ranks, or 1."},
                    {"stages", "", "Compares the ZeRO stages: memory, bytes sent, step."},
                    {"link", "US,BYTES",
                     "What `tranche tune` measured: microseconds of a collective, bytes of a "
                     "second (default 30,1.25GB)."},
                    {"machine", "TFLOPS,BYTES",
                     "What a rank reaches in products and through memory (default 0.1,10GB)."},
                    {"json", "", "Prints the plan as JSON."}},
          .min_positionals = 1,
          .max_positionals = 1,
          .run = Run};
}

}  // namespace tranche
