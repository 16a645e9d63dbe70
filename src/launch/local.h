// Starting ranks on this host and watching over them.
//
// Each rank is this program again, in a process group of its own, bound to its own cores, with the
// environment of launch/rank.h and a random secret. The launcher serves the store. A rank that
// fails is named on stderr with its phase; the others learn it from the store, have a moment to
// leave, then get SIGTERM, then SIGKILL. SIGTERM, SIGINT and SIGUSR1 are passed on once; a second
// SIGTERM or SIGINT kills. Ranks die with the launcher, however it ends.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launch/frame.h"

namespace tranche {

struct LocalLaunch {
  int ranks = 1;
  std::vector<std::string> arguments;  // of each rank, without the program's name
  bool bind = true;                    // each rank to its own cores
  bool oversubscribe = false;          // more ranks than cores is no error
  // Where rank-N.log is written; made where it is not there. Empty: no logs, and only rank 0 is
  // heard.
  std::string log_directory;
  double leave_seconds = 1;  // for the others to leave by themselves after a failure
  double grace_seconds = 3;  // from SIGTERM to SIGKILL
  double silence_seconds = kSilenceSeconds;
  // The codes that ranks end with when they were asked to stop and have saved, and when they leave
  // because of another rank.
  int stopped_code = 75;
  int peer_failed_code = 77;
};

// Runs the ranks to their end. The result is an exit code: 0 where all ranks ended with 0,
// stopped_code where all ended with that or 0, otherwise the code of the first failure: its exit
// code, 128 + its signal, or 1 where it left with 0 or stopped_code while others still worked.
// Errors: more ranks than cores, a log folder that cannot be written; then nothing was started.
// Call it from the main thread, before there are others.
absl::StatusOr<int> LaunchLocal(const LocalLaunch& launch);

}  // namespace tranche
