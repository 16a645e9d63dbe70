// Asking a run to stop: SIGINT and what schedulers send before a job's end set a flag that every
// phase polls; the run then saves and leaves with kExitStopped. A second SIGINT leaves at once,
// with code 130.
#pragma once

#include <string>
#include <vector>

namespace tranche {

// From here on SIGINT and the signals of these names only set the flag. Idempotent.
void CatchStopSignals(const std::vector<std::string>& names = {"SIGTERM", "SIGUSR1"});

// The name of the signal that came, or nullptr.
const char* StopSignal();

}  // namespace tranche
