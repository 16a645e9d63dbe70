#include "trainer/verbs/on_ranks.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "trainer/exit_codes.h"
#include "trainer/recipe_sections.h"

namespace tranche {
namespace {

absl::StatusOr<int> Start(const Verb& verb, const Arguments& arguments) {
  TRANCHE_ASSIGN_OR_RETURN(const int64_t ranks,
                           arguments.GetInt("ranks", 1, 1, LaunchRecipe::kMostRanks));
  LocalLaunch launch = RankLaunch(ranks);
  launch.oversubscribe = arguments.Has("oversubscribe");
  launch.arguments = absl::StrSplit(verb.name, ' ');
  std::vector<Flag> own;
  for (const Flag& flag : verb.flags) {
    if (flag.name != "ranks" && flag.name != "oversubscribe") own.push_back(flag);
  }
  PassOn(own, arguments, &launch.arguments);
  for (const std::string& word : arguments.positionals()) launch.arguments.push_back(word);
  return LaunchLocal(launch);
}

}  // namespace

Verb WithRankFlags(Verb verb) {
  verb.flags.push_back({"ranks", "RANKS", "How many ranks to start on this host (also -n RANKS)."});
  verb.flags.push_back({"oversubscribe", "", "Allows more ranks than cores."});
  return verb;
}

absl::Status NeedsOthers(const World& world) {
  if (world.size() > 1) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "one rank has nobody to talk to; give -n RANKS, or start it as a job of many");
}

LocalLaunch RankLaunch(int64_t ranks) {
  LocalLaunch launch;
  launch.ranks = static_cast<int>(ranks);
  launch.stopped_code = kExitStopped;
  launch.peer_failed_code = kExitPeerFailed;
  return launch;
}

void PassOn(const std::vector<Flag>& flags, const Arguments& arguments,
            std::vector<std::string>* words) {
  for (const Flag& flag : flags) {
    for (const std::string& value : arguments.GetAll(flag.name)) {
      words->push_back(
          absl::StrCat("--", flag.name, flag.value.empty() ? "" : absl::StrCat("=", value)));
    }
  }
}

int RunOnRanks(const Verb& verb, const Arguments& arguments,
               const std::function<absl::Status(World&)>& work) {
  if (!arguments.Has("ranks")) {
    return RunInWorld([&](World& world) -> absl::StatusOr<int> {
      world.SetPhase(verb.name);
      TRANCHE_RETURN_IF_ERROR(work(world));
      return kExitDone;
    });
  }
  const absl::StatusOr<int> code = Start(verb, arguments);
  return code.ok() ? *code : ReportError(code.status());
}

}  // namespace tranche
