// What happened when, on one process: spans on a few tracks, written as a Chrome trace
// (chrome://tracing, ui.perfetto.dev). Adding one is a lock and a copy; a full timeline drops what
// comes and counts it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tranche {

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Track : uint8_t { kCompute, kCommunication, kWaiting };

  struct Span {
    Track track = Track::kCompute;
    const char* what = "";  // lives as long as the program
    int subject = -1;       // which of the names given to ChromeTrace; -1: none
    int64_t bytes = 0;
    Clock::time_point begin, end;
  };

  explicit Timeline(size_t capacity = 1 << 18) { spans_.reserve(capacity); }

  // Spans of a track are kept while it is recorded.
  void Record(Track track, bool on) { recording_[static_cast<size_t>(track)] = on; }
  void Add(const Span& span);

  // The spans as events of process `process`, one a line, without the enclosing brackets.
  // `subjects`: names by Span::subject. Times are microseconds of the system's clock, so that
  // processes of one host lie on one axis.
  std::string ChromeEvents(int process, const std::vector<std::string>& subjects) const;

 private:
  std::array<std::atomic<bool>, 3> recording_ = {};
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  int64_t dropped_ = 0;
};

// A whole trace of such events.
std::string ChromeTrace(const std::vector<std::string>& events);
// The events of one that ChromeTrace made.
absl::string_view EventsOf(absl::string_view trace);

}  // namespace tranche
