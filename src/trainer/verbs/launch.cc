// `tranche launch`.
#include <ctime>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status.h"
#include "base/status.h"
#include "launch/local.h"
#include "launch/rank.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/recipe.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

constexpr int64_t kMostRanks = 4096;

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

absl::StatusOr<int> LaunchRanks(const Arguments& arguments) {
  const absl::StatusOr<RankEnvironment> already = ReadRankEnvironment();
  if (already.ok() && already->world_size > 1) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "this process is itself rank %d of %d (srun or another launcher started it); start "
        "`tranche train` that way, or `tranche launch` once",
        already->rank, already->world_size));
  }
  if (!arguments.Has("ranks")) {
    return absl::InvalidArgumentError("tranche launch: how many ranks? Give -n RANKS");
  }
  LocalLaunch launch;
  TRANCHE_ASSIGN_OR_RETURN(const int64_t ranks, arguments.GetInt("ranks", 1, 1, kMostRanks));
  const auto bind = arguments.GetOneOf<bool>("bind", {{"core", true}, {"none", false}});
  if (!bind.ok()) return bind.status();
  launch.bind = *bind;
  launch.ranks = static_cast<int>(ranks);
  launch.oversubscribe = arguments.Has("oversubscribe");
  launch.stopped_code = kExitStopped;
  launch.peer_failed_code = kExitPeerFailed;

  // Its faults are said once, before anything is started.
  const std::string& path = arguments.positionals()[0];
  TRANCHE_ASSIGN_OR_RETURN(const Recipe recipe,
                           LoadRecipe(path, arguments.GetAll("set"), RecipeFiles::kAll));
  launch.log_directory = arguments.Get("log-dir");
  if (launch.log_directory.empty() && !arguments.Has("dry-run")) {
    launch.log_directory = LogDirectory(recipe);
  }
  launch.arguments = {"train", path};
  for (const Flag& flag : TrainVerb().flags) {
    for (const std::string& value : arguments.GetAll(flag.name)) {
      launch.arguments.push_back(absl::StrCat("--", flag.name));
      if (!flag.value.empty()) absl::StrAppend(&launch.arguments.back(), "=", value);
    }
  }
  return LaunchLocal(launch);
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
      .flags = {{"ranks", "RANKS", "How many processes train together (also -n RANKS)."},
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
