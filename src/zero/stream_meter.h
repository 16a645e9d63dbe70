// Takes the time of what streams do, in their own order: what computing waited for, and the spans
// of a timeline.
#pragma once

#include <chrono>
#include <mutex>
#include <numeric>
#include <vector>

#include "base/timeline.h"
#include "tensor/backend.h"

namespace tranche {

// How long computing waited for other ranks.
struct ExposedSeconds {
  // By group: for its weights (gathered, or updated by others), and for its gradients.
  std::vector<double> gathers, reductions;
  double sums = 0;  // for the sums over ranks

  double gather() const { return std::accumulate(gathers.begin(), gathers.end(), 0.0); }
  double reduction() const { return std::accumulate(reductions.begin(), reductions.end(), 0.0); }
  double total() const { return gather() + reduction() + sums; }
};

class StreamMeter {
 public:
  enum class Cause : uint8_t { kGather, kReduction, kSums };

  StreamMeter(Backend& backend, int num_groups);

  // `stream` waits for the event, and the time of it is added to the cause, of `group` (of the
  // sums: the number of groups).
  void Wait(Stream& stream, Event& event, Cause cause, int group);
  // A span of computing, in the timeline alone.
  void Begin(Stream& stream, int group);
  void End(Stream& stream, const char* what, int group);

  // Since the last call.
  ExposedSeconds Take();
  // Before the first span. Not owned.
  void SetTimeline(Timeline* timeline) { timeline_ = timeline; }
  Timeline* timeline() const { return timeline_; }

 private:
  using Clock = std::chrono::steady_clock;

  Backend& backend_;
  Timeline* timeline_ = nullptr;
  // On the stream's thread.
  Clock::time_point wait_begin_;
  std::vector<Clock::time_point> begins_;  // by group
  std::mutex mutex_;
  ExposedSeconds exposed_;
};

}  // namespace tranche
