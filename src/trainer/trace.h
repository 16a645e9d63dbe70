// The trace of a few steps (recipe section [profiler]): when each rank computed, communicated and
// waited, in OUTPUT_DIR/trace, one file for each rank and one of all.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/file.h"
#include "base/timeline.h"
#include "trainer/session.h"
#include "trainer/world.h"

namespace tranche {

class StepTrace {
 public:
  // Of steps first..last. `timeline` outlives the session; nothing is owned. Before anything is
  // enqueued.
  StepTrace(int64_t first, int64_t last, Timeline& timeline, Session& session, World& world,
            FileSystem& fs, const std::string& folder);

  // Around what is enqueued for a step.
  void Begin(int64_t step);
  void End(int64_t step);
  bool EndsWith(int64_t step) const { return step == last_; }

  // Writes what was recorded, once; all ranks together, when nothing of the last step is awaited
  // any more. What goes wrong with the files is said and does not end the run.
  absl::Status Finish();

 private:
  std::string PathOf(const std::string& whose) const;
  absl::Status WriteMine() const;
  absl::Status Merge() const;

  const int64_t first_, last_;
  Timeline& timeline_;
  Session& session_;
  World& world_;
  FileSystem& fs_;
  const std::string folder_;
  int64_t steps_ = 0;
  bool finished_ = false;
};

}  // namespace tranche
