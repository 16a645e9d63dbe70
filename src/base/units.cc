#include "base/units.h"

#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tranche {
namespace {

// Splits "12.5 MiB" into its number and the rest.
bool TakeNumber(absl::string_view& text, double& value) {
  size_t n = 0;
  while (n < text.size() &&
         (absl::ascii_isdigit(static_cast<unsigned char>(text[n])) || text[n] == '.'))
    ++n;
  if (n == 0 || !absl::SimpleAtod(text.substr(0, n), &value)) return false;
  text.remove_prefix(n);
  return true;
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  static constexpr std::array<std::pair<absl::string_view, double>, 10> kUnits = {
      {{"B", 1},
       {"kB", 1e3},
       {"KB", 1e3},
       {"MB", 1e6},
       {"GB", 1e9},
       {"TB", 1e12},
       {"KiB", 0x1p10},
       {"MiB", 0x1p20},
       {"GiB", 0x1p30},
       {"TiB", 0x1p40}}};
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  double value = 0;
  if (TakeNumber(rest, value)) {
    rest = absl::StripAsciiWhitespace(rest);
    for (const auto& [unit, factor] : kUnits) {
      if (rest == unit && value * factor < 0x1p62)
        return static_cast<int64_t>(std::llround(value * factor));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text,
                   "\" is not a size; write a number and a unit, such as \"256 MiB\" (B, kB, MB, "
                   "GB, TB, KiB, MiB, GiB, TiB)"));
}

std::string FormatBytes(int64_t bytes) {
  static constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::fabs(value) >= 1024 && unit + 1 < kNames.size()) value /= 1024, ++unit;
  if (value == std::floor(value)) return absl::StrFormat("%.0f %s", value, kNames[unit]);
  return absl::StrFormat("%.*f %s", value < 10 ? 2 : 1, value, kNames[unit]);
}

absl::StatusOr<double> ParseSeconds(absl::string_view text) {
  static constexpr std::array<std::pair<char, double>, 4> kUnits = {
      {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}}};
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  double seconds = 0;
  bool any = false;
  size_t next = 0;
  while (!rest.empty()) {
    double value = 0;
    if (!TakeNumber(rest, value) || rest.empty()) break;
    size_t unit = next;
    while (unit < kUnits.size() && kUnits[unit].first != rest[0]) ++unit;
    if (unit == kUnits.size()) break;
    seconds += value * kUnits[unit].second;
    rest.remove_prefix(1);
    next = unit + 1;
    any = true;
  }
  if (any && rest.empty()) return seconds;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a duration; write e.g. \"71h30m\", \"90s\", \"2d\""));
}

std::string FormatSeconds(double seconds) {
  if (seconds < 1) return absl::StrFormat("%.3gms", 1e3 * seconds);
  if (seconds < 60) return absl::StrFormat("%.1fs", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh%02dm", whole / 3600, whole % 3600 / 60);
  return absl::StrFormat("%dd%02dh", whole / 86400, whole % 86400 / 3600);
}

std::string FormatCount(double count) {
  static constexpr std::array<const char*, 5> kNames = {"", "k", "M", "B", "T"};
  size_t unit = 0;
  while (std::fabs(count) >= 999.5 && unit + 1 < kNames.size()) count /= 1000, ++unit;
  if (unit == 0 && count == std::floor(count)) return absl::StrFormat("%.0f", count);
  return absl::StrFormat("%.3g%s", count, kNames[unit]);
}

std::string FormatInteger(int64_t value) {
  std::string digits = absl::StrCat(value < 0 ? -value : value);
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(static_cast<size_t>(i), ",");
  return value < 0 ? "-" + digits : digits;
}

}  // namespace tranche
