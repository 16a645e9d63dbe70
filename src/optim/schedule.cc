#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace tranche {

absl::StatusOr<ScheduleKind> ParseScheduleKind(absl::string_view name) {
  if (name == "constant") return ScheduleKind::kConstant;
  if (name == "linear") return ScheduleKind::kLinear;
  if (name == "cosine") return ScheduleKind::kCosine;
  if (name == "wsd") return ScheduleKind::kWsd;
  if (name == "inverse_sqrt") return ScheduleKind::kInverseSqrt;
  return absl::InvalidArgumentError(
      absl::StrCat("lr_scheduler.name: \"", name,
                   "\" is not one of constant, linear, cosine, wsd, inverse_sqrt"));
}

absl::Status Schedule::Check() const {
  if (warmup_steps > total_steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "lr_scheduler.warmup_steps: ", warmup_steps, " steps of warm-up are more than the run's ",
        total_steps, "; at most all of the run can be warm-up"));
  }
  return absl::OkStatus();
}

double Schedule::At(int64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  const double floor = min_ratio * peak;
  const int64_t top = std::max<int64_t>(warmup_steps, 1);  // the step that is at the peak
  // 0 at step `from`, 1 at the last step; a decay of no length never begins.
  const auto progress = [&](int64_t from) {
    if (step <= from || from >= total_steps) return 0.0;
    return std::min(1.0,
                    static_cast<double>(step - from) / static_cast<double>(total_steps - from));
  };
  switch (kind) {
    case ScheduleKind::kConstant:
      return peak;
    case ScheduleKind::kLinear:
      return peak + (floor - peak) * progress(top);
    case ScheduleKind::kCosine:
      return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress(top)));
    case ScheduleKind::kWsd: {
      const auto decay =
          static_cast<int64_t>(std::llround(decay_ratio * static_cast<double>(total_steps)));
      return peak + (floor - peak) * progress(std::max(top, total_steps - decay));
    }
    case ScheduleKind::kInverseSqrt:
      return std::max(floor,
                      peak * std::sqrt(static_cast<double>(top) / static_cast<double>(step)));
  }
  return peak;
}

}  // namespace tranche
