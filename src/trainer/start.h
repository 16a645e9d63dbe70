// Where a run starts: from nothing, or from a checkpoint, and whether that checkpoint is of this
// run.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "trainer/checkpoint.h"
#include "trainer/run_setup.h"

namespace tranche {

struct StartPoint {
  std::string checkpoint;       // its folder; empty: the run starts from nothing
  CheckpointManifest manifest;  // of the checkpoint
};

// By checkpoint.resume: "auto" takes the newest checkpoint in `directory` that is whole, naming
// each damaged one it passes over, and nothing only where there is none at all; "never" refuses a
// directory that has one; else a checkpoint's folder, or step:N for one in `directory`. Whole is
// what passes `how`.
absl::StatusOr<StartPoint> FindStart(const std::string& resume, const std::string& directory,
                                     Verification how = Verification::kChecksum);

// FailedPrecondition where the checkpoint is of another model, other data or another batch: going
// on would train something else than either run. Other changes of the recipe are said aloud, a
// changed learning rate with its old and new value at the seam.
absl::Status CheckSameRun(const StartPoint& start, const RunSetup& setup,
                          const std::string& data_fingerprint, const Schedule& schedule);

// Renames checkpoints behind the start (damaged, or of a timeline that was left) so that they are
// neither resumed from nor counted as kept.
absl::Status SetAsideNewer(FileSystem& fs, const std::string& directory, const StartPoint& start);

}  // namespace tranche
