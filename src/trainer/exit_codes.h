// What the process's exit status says; docs/exit_codes.md lists the same for launchers.
#pragma once

namespace tranche {

enum ExitCode : int {
  kExitDone = 0,  // the work is done (also: it already was)
  kExitFailed =
      1,  // it ran and failed: a check over its tolerance, a full disk, a fault while running
  kExitBadInput = 2,     // refused before anything was written: recipe, flags, files
  kExitStopped = 75,     // a signal or the time limit asked it to stop; a checkpoint is saved, the
                         // same command goes on from there
  kExitNonFinite = 76,   // too many steps without a finite loss or gradient; do not requeue
  kExitPeerFailed = 77,  // another rank failed, or the store of the ranks is gone
  kExitInterrupted = 130,  // a second SIGINT: it left at once
};

}  // namespace tranche
