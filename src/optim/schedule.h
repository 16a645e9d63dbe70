// The learning rate as a function of the step alone.
//
// Steps count from 1; the rate of step k is the one its update uses. With W warm-up steps (W = 0
// and W = 1 are the same: the first update is never of rate 0), P the peak, M = min_ratio·P the
// floor, N the length of the run:
//
//   k <= W         P·k/W
//   constant       P
//   linear         P + (M − P)·x              x = (k − max(W, 1)) / (N − max(W, 1))
//   cosine         M + (P − M)·(1 + cos πx)/2    so step N is at M exactly
//   wsd            P, and over the last round(decay_ratio·N) steps linear to M at step N
//   inverse_sqrt   max(M, P·√(max(W, 1)/k))
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tranche {

enum class ScheduleKind : uint8_t { kConstant, kLinear, kCosine, kWsd, kInverseSqrt };
// By its name in recipes; InvalidArgument for an unknown one.
absl::StatusOr<ScheduleKind> ParseScheduleKind(absl::string_view name);

struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  double peak = 0;
  int64_t total_steps = 1;
  int64_t warmup_steps = 0;
  double min_ratio = 0;
  double decay_ratio = 0.1;  // wsd

  // InvalidArgument where warm-up is longer than the run.
  absl::Status Check() const;
  double At(int64_t step) const;  // step in [1, total_steps]
};

}  // namespace tranche
