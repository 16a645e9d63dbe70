// Asking a run to stop: SIGTERM, SIGINT and SIGUSR1 (what schedulers send before a job's end) set a
// flag that every phase polls; the run then saves and leaves with kExitStopped. A second SIGINT
// leaves at once.
#pragma once

namespace tranche {

// From here on the three signals only set the flag. Idempotent.
void CatchStopSignals();

// The name of the signal that came, or nullptr.
const char* StopSignal();

}  // namespace tranche
