// SmallRun on several ranks of the real program, and the ranks' processes.
#pragma once

#include <string>
#include <vector>

#include "launch_processes.h"
#include "train_test_run.h"

namespace tranche {

// `ranks` processes that share what cores there are; their logs in OUTPUT.logs beside OUTPUT.
inline std::vector<std::string> WordsOnRanks(const SmallRun& run, const std::string& output,
                                             int ranks, const std::vector<std::string>& sets) {
  std::vector<std::string> words = run.Words(output, sets);
  if (ranks == 1) return words;
  words[0] = "launch";
  words.insert(words.end(), {absl::StrCat("--ranks=", ranks), "--oversubscribe", "--bind=none",
                             absl::StrCat("--log-dir=", run.File(output + ".logs"))});
  return words;
}

inline std::string LogOfRank(const SmallRun& run, const std::string& output, int rank) {
  return Slurp(run.File(absl::StrCat(output, ".logs/rank-", rank, ".log")));
}

// In order, once all have been started; fewer where the launcher ends before.
inline std::vector<pid_t> RanksOf(const Program& launcher, size_t ranks) {
  std::vector<pid_t> pids;
  while (pids.size() < ranks && launcher.Running()) pids = ChildrenOf(launcher.pid());
  return pids;
}

}  // namespace tranche
