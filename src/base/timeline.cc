#include "base/timeline.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace tranche {
namespace {

constexpr const char* kTrackNames[] = {"compute", "communication", "waiting"};
constexpr absl::string_view kTraceBegin = "{\"traceEvents\":[\n", kTraceEnd = "\n]}\n";

}  // namespace

void Timeline::Add(const Span& span) {
  if (!recording_[static_cast<size_t>(span.track)]) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (spans_.size() == spans_.capacity()) {
    ++dropped_;
  } else {
    spans_.push_back(span);
  }
}

std::string Timeline::ChromeEvents(int process, const std::vector<std::string>& subjects) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  // What the steady clock's zero is on the system's clock.
  const double origin =
      std::chrono::duration<double, std::micro>(
          std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch())
          .count();
  const auto at = [&](Clock::time_point time) {
    return origin + std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
  };
  std::vector<std::string> events;
  events.push_back(absl::StrFormat(
      R"({"ph":"M","pid":%d,"name":"process_name","args":{"name":"rank %d%s"}})", process, process,
      dropped_ > 0 ? absl::StrFormat(", %d spans dropped", dropped_) : ""));
  for (size_t track = 0; track < std::size(kTrackNames); ++track) {
    events.push_back(
        absl::StrFormat(R"({"ph":"M","pid":%d,"tid":%d,"name":"thread_name","args":{"name":"%s"}})",
                        process, track, kTrackNames[track]));
  }
  for (const Span& span : spans_) {
    const auto subject = static_cast<size_t>(span.subject);
    const std::string name = span.subject >= 0 && subject < subjects.size()
                                 ? absl::StrCat(span.what, " ", subjects[subject])
                                 : span.what;
    events.push_back(absl::StrFormat(
        R"({"ph":"X","pid":%d,"tid":%d,"name":"%s","ts":%.3f,"dur":%.3f,"args":{"bytes":%d}})",
        process, static_cast<int>(span.track), name, at(span.begin), at(span.end) - at(span.begin),
        span.bytes));
  }
  return absl::StrJoin(events, ",\n");
}

std::string ChromeTrace(const std::vector<std::string>& events) {
  return absl::StrCat(kTraceBegin, absl::StrJoin(events, ",\n"), kTraceEnd);
}

absl::string_view EventsOf(absl::string_view trace) {
  return absl::StripSuffix(absl::StripPrefix(trace, kTraceBegin), kTraceEnd);
}

}  // namespace tranche
