// TOML as a tree of values that know where they stand: the seam between the toml++ library and the
// recipe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tranche {

struct TomlEntry;

struct TomlValue {
  enum class Kind { kString, kInteger, kFloat, kBool, kDate, kArray, kTable };
  Kind kind = Kind::kTable;
  std::string text;     // of a string
  int64_t integer = 0;  // of an integer
  double number = 0;    // of a float; of an integer as well
  bool flag = false;    // of a bool
  std::string typed;    // from --set only: the words as typed, for fields that hold strings
  std::vector<TomlValue> items;    // of an array
  std::vector<TomlEntry> entries;  // of a table
  std::string where;               // "recipe.toml:12" or "--set"
  int line = 0;                    // 0 for --set

  const TomlValue* Find(absl::string_view key) const;
  TomlValue* Find(absl::string_view key);
};

struct TomlEntry {
  std::string key;
  TomlValue value;
};

// "a string", "a whole number", … for messages.
std::string TomlKindName(const TomlValue& value);
// The value as a message quotes it, cut to a few words: `"ten"`, `-3`, `an array`.
std::string TomlShort(const TomlValue& value);

// Parses untrusted text of at most 256 KiB; the error is one line, "source:line: what is wrong".
absl::StatusOr<TomlValue> ParseToml(absl::string_view text, const std::string& source);

// Applies "section.key=value" over a tree. The value is TOML (numbers, true, "text", arrays, inline
// tables) or, where it is not, the bare text. The error is one line, starting with the assignment.
absl::Status ApplySet(absl::string_view assignment, TomlValue* root);

// The same value as JSON; dates and non-finite numbers are errors without a place.
absl::StatusOr<nlohmann::ordered_json> TomlToJson(const TomlValue& value);

// Writes values as TOML on one line.
std::string TomlString(absl::string_view text);  // quoted and escaped
std::string TomlKey(absl::string_view key);      // bare where that is allowed
std::string TomlNumber(double value);  // the shortest text that reads back to the same number
std::string TomlFromJson(const nlohmann::ordered_json& value);  // value must not hold null

}  // namespace tranche
