// Sizes in bytes and durations with their units, as recipes and logs write them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tranche {

// "256 MiB", "1.5GB", "4096 B" -> bytes. The unit is required: B, kB, MB, GB, TB (powers of 1000),
// KiB, MiB, GiB, TiB (of 1024).
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);
// Bytes -> "12.3 GiB"; exact multiples print without decimals and whole units parse back to the
// same number.
std::string FormatBytes(int64_t bytes);

// "71h30m", "90s", "2d" -> seconds (d, h, m, s, each at most once, in that order).
absl::StatusOr<double> ParseSeconds(absl::string_view text);
std::string FormatSeconds(double seconds);  // "2d19h", "3m05s", "40.8s", "12.3ms"

// 96300 -> "96.3k", 4720000000 -> "4.72B" (k, M, B, T).
std::string FormatCount(double count);
// 123456789 -> "123,456,789".
std::string FormatInteger(int64_t value);

}  // namespace tranche
