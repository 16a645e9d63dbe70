#include "zero/stream_meter.h"

namespace tranche {

StreamMeter::StreamMeter(Backend& backend, int num_groups)
    : backend_(backend), begins_(static_cast<size_t>(num_groups)) {
  exposed_.gathers.resize(begins_.size());
  exposed_.reductions.resize(begins_.size());
}

void StreamMeter::Wait(Stream& stream, Event& event, Cause cause, int group) {
  backend_.Call(stream, [this] { wait_begin_ = Clock::now(); });
  backend_.Wait(stream, event);
  backend_.Call(stream, [this, cause, group] {
    const Clock::time_point now = Clock::now();
    if (timeline_ != nullptr) {
      timeline_->Add({Timeline::Track::kWaiting, "wait for", group, 0, wait_begin_, now});
    }
    const auto index = static_cast<size_t>(group);
    const std::lock_guard<std::mutex> lock(mutex_);
    double& seconds = cause == Cause::kGather      ? exposed_.gathers[index]
                      : cause == Cause::kReduction ? exposed_.reductions[index]
                                                   : exposed_.sums;
    seconds += std::chrono::duration<double>(now - wait_begin_).count();
  });
}

void StreamMeter::Begin(Stream& stream, int group) {
  if (timeline_ == nullptr) return;
  backend_.Call(stream, [this, group] { begins_[static_cast<size_t>(group)] = Clock::now(); });
}

void StreamMeter::End(Stream& stream, const char* what, int group) {
  if (timeline_ == nullptr) return;
  backend_.Call(stream, [this, what, group] {
    timeline_->Add({Timeline::Track::kCompute, what, group, 0, begins_[static_cast<size_t>(group)],
                    Clock::now()});
  });
}

ExposedSeconds StreamMeter::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ExposedSeconds taken = exposed_;
  exposed_.gathers.assign(begins_.size(), 0);
  exposed_.reductions.assign(begins_.size(), 0);
  exposed_.sums = 0;
  return taken;
}

}  // namespace tranche
