// `tranche launch`.
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "launch/rank.h"
#include "trainer/cli.h"
#include "trainer/recipe.h"
#include "trainer/verbs/launch_training.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

absl::StatusOr<int> LaunchRanks(const Arguments& arguments) {
  const absl::StatusOr<RankEnvironment> already = ReadRankEnvironment();
  if (already.ok() && already->world_size > 1) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "this process is itself rank %d of %d (srun or another launcher started it); start "
        "`tranche train` that way, or `tranche launch` once",
        already->rank, already->world_size));
  }
  // Its faults are said once, before anything is started.
  TRANCHE_ASSIGN_OR_RETURN(
      const Recipe recipe,
      LoadRecipe(arguments.positionals()[0], arguments.GetAll("set"), RecipeFiles::kAll));
  return LaunchTraining(recipe, arguments);
}

int Launch(const Arguments& arguments) {
  const absl::StatusOr<int> code = LaunchRanks(arguments);
  return code.ok() ? *code : ReportError(code.status());
}

}  // namespace

Verb LaunchVerb() {
  Verb verb = {
      .name = "launch",
      .summary = "Trains on several ranks of this host, each bound to its own cores.",
      .usage = "-n RANKS RECIPE [flags]",
      .example = "tranche launch -n 2 recipes/quickstart.toml",
      .flags = {{"ranks", "RANKS",
                 "How many processes train together (also -n RANKS); otherwise launch.ranks."},
                {"oversubscribe", "", "Allows more ranks than cores."},
                {"bind", "core|none", "What each rank is bound to: its own cores, or nothing."},
                {"log-dir", "FOLDER",
                 "Where rank-N.log is written; otherwise a new folder in OUTPUT_DIR/logs."}},
      .min_positionals = 1,
      .max_positionals = 1,
      .run = Launch};
  for (Flag& flag : TrainVerb().flags) verb.flags.push_back(std::move(flag));
  return verb;
}

}  // namespace tranche
