// What the visitors of a recipe share: the kinds of fields, and how each is described to people.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/recipe.h"
#include "trainer/recipe_toml.h"

namespace tranche {

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

// A type with fields of its own, as they stand in a list.
template <typename T>
concept HasFields = requires(T t, int visitor) {
  &T::template VisitFields<T, int>;
};

// "a whole number of at least 1": what a field of type T under `rule` may hold.
template <typename T>
std::string AllowedText(const Rule& rule);

std::string RangeText(const Rule& rule);  // " of at least 1", "" where there are no limits

template <typename T>
std::string AllowedText(const Rule& rule) {
  if constexpr (IsOptional<T>::value) {
    return AllowedText<typename T::value_type>(rule);
  } else if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return absl::StrCat("a whole number", RangeText(rule));
  } else if constexpr (std::is_same_v<T, double>) {
    return absl::StrCat("a number", RangeText(rule));
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return "a size with its unit, such as \"256 MiB\"";
  } else if constexpr (std::is_same_v<T, Seconds>) {
    return "a time with its units, such as \"71h30m\" or \"90s\"";
  } else if constexpr (std::is_same_v<T, std::vector<double>>) {
    return absl::StrCat("a list of numbers, each", RangeText(rule));
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    return absl::StrCat("a list of whole numbers, each", RangeText(rule));
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return absl::StrCat("a list of ", absl::StrJoin(rule.allowed, ", "));
  } else if constexpr (std::is_same_v<T, nlohmann::ordered_json>) {
    return "a table of config.json's keys";
  } else if constexpr (std::is_same_v<T, std::string>) {
    const std::string words = absl::StrJoin(rule.allowed, " | ");
    if (rule.is_path) return rule.allowed.empty() ? "a path" : absl::StrCat(words, " | a path");
    return rule.allowed.empty() ? "a string" : words;
  } else {
    return "a list of tables";
  }
}

// The value as TOML.
inline std::string ToToml(bool value) { return value ? "true" : "false"; }
inline std::string ToToml(int64_t value) { return absl::StrCat(value); }
inline std::string ToToml(double value) { return TomlNumber(value); }
// "${" would be read as the start of a variable; "$${" is the two characters themselves.
std::string ToToml(const std::string& value);
std::string ToToml(const Bytes& value);
std::string ToToml(const Seconds& value);
inline std::string ToToml(const nlohmann::ordered_json& value) { return TomlFromJson(value); }
std::string ToToml(const std::vector<int64_t>& values);
std::string ToToml(const std::vector<double>& values);
std::string ToToml(const std::vector<std::string>& values);

// Writes the fields of an element of a list as an inline table.
struct InlineTableWriter {
  std::vector<std::string> entries;
  template <typename T>
  void operator()(absl::string_view name, const T& value, absl::string_view, const Rule&) {
    if constexpr (IsOptional<T>::value) {
      if (value) entries.push_back(absl::StrCat(name, " = ", ToToml(*value)));
    } else {
      entries.push_back(absl::StrCat(name, " = ", ToToml(value)));
    }
  }
};

template <typename T>
std::string ToToml(const std::vector<T>& values) {
  std::vector<std::string> items;
  for (const T& value : values) {
    InlineTableWriter writer;
    T::VisitFields(value, writer);
    items.push_back(absl::StrCat("{", absl::StrJoin(writer.entries, ", "), "}"));
  }
  return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
}

template <typename T>
std::string ToToml(const std::optional<T>& value) {
  return value ? ToToml(*value) : "";
}

// Every section with its keys, in order.
struct SectionKeys {
  std::string section;
  std::vector<std::string> keys;
};
const std::vector<SectionKeys>& AllRecipeKeys();

// Keys that have no effect beside the others, each with the reason: "validation.steps" -> "there
// are no validation sets".
std::map<std::string, std::string> IneffectiveKeys(const Recipe& recipe);

// A fault found in a recipe. `key` is "section.key".
struct RecipeFault {
  int line = 0;       // of the recipe file; 0 for --set, which sorts last
  std::string where;  // "recipe.toml:12" or "--set"
  std::string key;
  std::string what;
};

// The faults of the model's configuration, and of what the data and the model ask of each other.
// Reads config.json where [model] names a folder.
void CheckModelConfig(const Recipe& recipe, const std::vector<std::string>& faulty,
                      std::vector<RecipeFault>* faults);

// Contradictions between keys that are each valid, ineffective keys, missing files. `faulty` holds
// the keys that already have a fault: what depends on them is not judged.
void CheckRecipe(const Recipe& recipe, RecipeFiles files, const std::vector<std::string>& faulty,
                 std::vector<RecipeFault>* faults);

// The Tranche way to say what other trainers call `key`, or "": "training.micro_batch_size" for
// per_device_train_batch_size.
std::string ForeignNameHint(absl::string_view key);

}  // namespace tranche
