// What a field of a recipe may hold, and the types of fields that are written with a unit.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace tranche {

// What a field may hold. Numbers must lie between low and high; strings must be one of `allowed`
// unless it is empty.
struct Rule {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;   // low itself is not allowed
  bool below_high = false;  // high itself is not allowed
  std::vector<std::string> allowed;
  bool is_path = false;  // then `allowed` are words that are no paths
  bool required = false;

  static Rule Any() { return {}; }
  static Rule AtLeast(double low) { return {.low = low}; }
  static Rule Above(double low) { return {.low = low, .above_low = true}; }
  static Rule Between(double low, double high) { return {.low = low, .high = high}; }
  static Rule OneOf(std::vector<std::string> allowed) { return {.allowed = std::move(allowed)}; }
  static Rule Path() { return {.is_path = true}; }
  Rule Required() && { return required = true, std::move(*this); }
  Rule BelowHigh() && { return below_high = true, std::move(*this); }
  Rule AboveLow() && { return above_low = true, std::move(*this); }
};

struct Bytes {  // written with a unit: "256 MiB"
  int64_t value = 0;
  bool operator==(const Bytes&) const = default;
};

struct Seconds {  // written with units: "71h30m"
  double value = 0;
  bool operator==(const Seconds&) const = default;
};

}  // namespace tranche
