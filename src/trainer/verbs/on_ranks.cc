#include "trainer/verbs/on_ranks.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "launch/local.h"
#include "trainer/exit_codes.h"

namespace tranche {
namespace {

absl::StatusOr<int> Start(const Verb& verb, const Arguments& arguments) {
  LocalLaunch launch;
  TRANCHE_ASSIGN_OR_RETURN(const int64_t ranks, arguments.GetInt("ranks", 1, 1, 4096));
  launch.ranks = static_cast<int>(ranks);
  launch.oversubscribe = arguments.Has("oversubscribe");
  launch.stopped_code = kExitStopped;
  launch.peer_failed_code = kExitPeerFailed;
  launch.arguments = absl::StrSplit(verb.name, ' ');
  for (const Flag& flag : verb.flags) {
    if (flag.name == "ranks" || flag.name == "oversubscribe") continue;
    for (const std::string& value : arguments.GetAll(flag.name)) {
      launch.arguments.push_back(
          absl::StrCat("--", flag.name, flag.value.empty() ? "" : absl::StrCat("=", value)));
    }
  }
  for (const std::string& word : arguments.positionals()) launch.arguments.push_back(word);
  return LaunchLocal(launch);
}

}  // namespace

std::vector<Flag> RankFlags() {
  return {{"ranks", "RANKS", "How many ranks to start on this host (also -n RANKS)."},
          {"oversubscribe", "", "Allows more ranks than cores."}};
}

int RunOnRanks(const Verb& verb, const Arguments& arguments,
               const std::function<absl::StatusOr<int>(World&)>& work) {
  if (!arguments.Has("ranks")) return RunInWorld(work);
  const absl::StatusOr<int> code = Start(verb, arguments);
  return code.ok() ? *code : ReportError(code.status());
}

}  // namespace tranche
