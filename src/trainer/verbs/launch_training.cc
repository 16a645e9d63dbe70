#include "trainer/verbs/launch_training.h"

#include <unistd.h>

#include <ctime>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "trainer/verbs/on_ranks.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

// A folder that no other start writes to: a start that is refused leaves the logs of the run that
// it met alone.
std::string LogDirectory(const Recipe& recipe) {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  char stamp[32];
  std::strftime(stamp, sizeof(stamp), "%Y%m%d-%H%M%S", &utc);
  return JoinPath(JoinPath(recipe.run.output_dir, "logs"), absl::StrCat(stamp, "-", ::getpid()));
}

}  // namespace

absl::StatusOr<int> LaunchTraining(const Recipe& recipe, const Arguments& arguments) {
  if (!arguments.Has("ranks") && !recipe.launch.ranks) {
    return absl::InvalidArgumentError(
        "tranche launch: how many ranks? Give -n RANKS, or launch.ranks in the recipe");
  }
  TRANCHE_ASSIGN_OR_RETURN(
      const int64_t ranks,
      arguments.GetInt("ranks", recipe.launch.ranks.value_or(1), 1, LaunchRecipe::kMostRanks));
  LocalLaunch launch = RankLaunch(ranks);
  launch.bind = recipe.launch.bind == "core";
  if (arguments.Has("bind")) {
    TRANCHE_ASSIGN_OR_RETURN(launch.bind,
                             arguments.GetOneOf<bool>("bind", {{"core", true}, {"none", false}}));
  }
  launch.oversubscribe = recipe.launch.oversubscribe || arguments.Has("oversubscribe");
  launch.log_directory = arguments.Get("log-dir");
  if (launch.log_directory.empty() && !arguments.Has("dry-run")) {
    launch.log_directory = LogDirectory(recipe);
  }
  launch.arguments = {"train", arguments.positionals()[0]};
  PassOn(TrainVerb().flags, arguments, &launch.arguments);
  return LaunchLocal(launch);
}

}  // namespace tranche
