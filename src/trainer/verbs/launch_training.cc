#include "trainer/verbs/launch_training.h"

#include <unistd.h>

#include <ctime>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "launch/local.h"
#include "trainer/exit_codes.h"
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
  LocalLaunch launch;
  TRANCHE_ASSIGN_OR_RETURN(
      const int64_t ranks,
      arguments.GetInt("ranks", recipe.launch.ranks.value_or(1), 1, LaunchRecipe::kMostRanks));
  launch.ranks = static_cast<int>(ranks);
  launch.bind = recipe.launch.bind == "core";
  if (arguments.Has("bind")) {
    TRANCHE_ASSIGN_OR_RETURN(launch.bind,
                             arguments.GetOneOf<bool>("bind", {{"core", true}, {"none", false}}));
  }
  launch.oversubscribe = recipe.launch.oversubscribe || arguments.Has("oversubscribe");
  launch.stopped_code = kExitStopped;
  launch.peer_failed_code = kExitPeerFailed;
  launch.log_directory = arguments.Get("log-dir");
  if (launch.log_directory.empty() && !arguments.Has("dry-run")) {
    launch.log_directory = LogDirectory(recipe);
  }
  launch.arguments = {"train", arguments.positionals()[0]};
  for (const Flag& flag : TrainVerb().flags) {
    for (const std::string& value : arguments.GetAll(flag.name)) {
      launch.arguments.push_back(absl::StrCat("--", flag.name));
      if (!flag.value.empty()) absl::StrAppend(&launch.arguments.back(), "=", value);
    }
  }
  return LaunchLocal(launch);
}

}  // namespace tranche
