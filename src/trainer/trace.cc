#include "trainer/trace.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "zero/group_layout.h"

namespace tranche {

StepTrace::StepTrace(int64_t first, int64_t last, Timeline& timeline, Session& session,
                     World& world, FileSystem& fs, const std::string& folder)
    : first_(first),
      last_(last),
      timeline_(timeline),
      session_(session),
      world_(world),
      fs_(fs),
      folder_(folder) {
  session_.engine().SetTimeline(&timeline_);
}

void StepTrace::Begin(int64_t step) {
  if (step < first_ || step > last_) return;
  session_.engine().RecordTimeline(session_.stream(), true);
  ++steps_;
}

void StepTrace::End(int64_t step) {
  if (step < first_ || step > last_) return;
  session_.engine().RecordTimeline(session_.stream(), false);
}

absl::Status StepTrace::Finish() {
  if (std::exchange(finished_, true)) return absl::OkStatus();
  if (steps_ == 0) {
    LogWarning(absl::StrCat("profiler: no trace, this run trained none of the steps ", first_,
                            " to ", last_));
    return absl::OkStatus();
  }
  session_.engine().AwaitCommunication(session_.stream());
  session_.backend().Synchronize(session_.stream());
  TRANCHE_RETURN_IF_ERROR(session_.status());
  absl::Status status = world_.Agree("trace.written", WriteMine());
  if (status.ok() && world_.first()) status = Merge();
  TRANCHE_RETURN_IF_ERROR(world_.failure());
  if (status.ok()) {
    LogNote(absl::StrCat("trace of ", steps_, steps_ == 1 ? " step" : " steps", " written to ",
                         PathOf("all"), " (open it at ui.perfetto.dev)"));
  } else {
    LogWarning(absl::StrCat("no trace: ", status.message()));
  }
  return absl::OkStatus();
}

std::string StepTrace::PathOf(const std::string& whose) const {
  return JoinPath(folder_, whose + ".json");
}

absl::Status StepTrace::WriteMine() const {
  int groups = 0;
  for (const ParamSpec& spec : session_.engine().specs()) groups = std::max(groups, spec.group + 1);
  std::vector<std::string> names;
  for (int g = 0; g < groups; ++g) names.push_back(GroupName(g, groups));
  names.push_back("the sums over ranks");
  TRANCHE_RETURN_IF_ERROR(fs_.MakeDirs(folder_));
  return WriteFileAtomic(PathOf(absl::StrCat("rank-", world_.rank())),
                         ChromeTrace({timeline_.ChromeEvents(world_.rank(), names)}));
}

absl::Status StepTrace::Merge() const {
  std::vector<std::string> all;
  for (int r = 0; r < world_.size(); ++r) {
    TRANCHE_ASSIGN_OR_RETURN(const std::string trace, ReadFile(PathOf(absl::StrCat("rank-", r))));
    all.emplace_back(EventsOf(trace));
  }
  return WriteFileAtomic(PathOf("all"), ChromeTrace(all));
}

}  // namespace tranche
