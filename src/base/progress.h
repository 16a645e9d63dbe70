// A progress bar on a terminal; silent elsewhere. Redraws at most ten times a second. Not
// thread-safe: one owner updates it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tranche {

class ProgressBar {
 public:
  // `total` in the unit that Update counts in; 0 where it is unknown. Draws on stderr.
  ProgressBar(absl::string_view label, int64_t total);
  ~ProgressBar();  // erases the bar

  // `detail` is shown behind the bar ("12.3 MB/s").
  void Update(int64_t done, absl::string_view detail);
  // Erases the bar so that a line can be printed; the next Update draws it again.
  void Clear();

 private:
  const bool enabled_;
  const std::string label_;
  const int64_t total_;
  std::chrono::steady_clock::time_point last_{};
  bool drawn_ = false;
};

}  // namespace tranche
