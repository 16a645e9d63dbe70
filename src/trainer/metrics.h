// metrics.jsonl: one JSON object a line, appended over all attempts of a run. A step that is
// trained again after a restart appears again, behind a line {"event": "start", "attempt": n,
// "step": k}: readers take the last.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tranche {

class MetricsLog {
 public:
  // Opens for appending; a line that a killed process left half-written is closed first.
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Open(const std::string& path);
  ~MetricsLog();

  // 1 for the first start of a run.
  int64_t attempt() const { return attempt_; }
  // Writes the line at once. A full disk is reported once and does not stop the run.
  void Append(absl::string_view line);

 private:
  MetricsLog(std::string path, int fd, int64_t attempt)
      : path_(std::move(path)), fd_(fd), attempt_(attempt) {}
  const std::string path_;
  const int fd_;
  const int64_t attempt_;
  bool failed_ = false;
};

}  // namespace tranche
