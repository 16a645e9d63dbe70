// The recipe written back: the resolved recipe and the reference page.
#include <array>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/units.h"
#include "trainer/recipe.h"
#include "trainer/recipe_fields.h"

namespace tranche {
namespace {

std::string LimitText(double limit) {
  return limit == std::floor(limit) && std::abs(limit) < 1e15
             ? absl::StrCat(static_cast<int64_t>(limit))
             : TomlNumber(limit);
}

class Printer {
 public:
  explicit Printer(const Recipe& recipe) : recipe_(recipe), ineffective_(IneffectiveKeys(recipe)) {}

  template <typename S>
  void Section(absl::string_view name, const S& section, absl::string_view) {
    section_ = std::string(name);
    absl::StrAppend(&text_, text_.empty() ? "" : "\n", "[", name, "]\n");
    S::VisitFields(section, *this);
  }

  template <typename T>
  void operator()(absl::string_view name, const T& value, absl::string_view, const Rule&) {
    const std::string key = absl::StrCat(section_, ".", name);
    if (ineffective_.count(key) > 0) return;
    // Where nothing was asked for; an empty value that was given replaces a default.
    if (IsEmpty(value) && recipe_.origins.count(key) == 0) return;
    Line(name, ToToml(value), recipe_.Origin(key));
  }

  void Rest(const nlohmann::ordered_json& config, absl::string_view) {
    for (const auto& [name, value] : config.items()) {
      Line(TomlKey(name), TomlFromJson(value), recipe_.Origin(absl::StrCat(section_, ".", name)));
    }
  }

  std::string text() && { return std::move(text_); }

 private:
  template <typename T>
  static bool IsEmpty(const T& value) {
    if constexpr (IsOptional<T>::value) {
      return !value.has_value();
    } else if constexpr (std::is_same_v<T, std::string> ||
                         std::is_same_v<T, nlohmann::ordered_json> || requires { value.size(); }) {
      return value.empty();
    } else {
      return false;
    }
  }

  void Line(absl::string_view name, const std::string& value, const std::string& origin) {
    const std::string assignment = absl::StrCat(name, " = ", value);
    // A comment ends with its line, whatever the recipe's file is called.
    absl::StrAppendFormat(&text_, "%-40s  # %s\n", assignment,
                          absl::StrReplaceAll(origin, {{"\n", " "}, {"\r", " "}}));
  }

  const Recipe& recipe_;
  const std::map<std::string, std::string> ineffective_;
  std::string section_, text_;
};

class KeyCollector {
 public:
  template <typename S>
  void Section(absl::string_view name, S& section, absl::string_view) {
    keys_.push_back({std::string(name), {}});
    S::VisitFields(section, *this);
  }
  template <typename T>
  void operator()(absl::string_view name, T&, absl::string_view, const Rule&) {
    keys_.back().keys.emplace_back(name);
  }
  void Rest(nlohmann::ordered_json&, absl::string_view) {}
  std::vector<SectionKeys> keys() && { return std::move(keys_); }

 private:
  std::vector<SectionKeys> keys_;
};

class ReferenceWriter {
 public:
  template <typename S>
  void Section(absl::string_view name, S& section, absl::string_view summary) {
    absl::StrAppend(&text_, "\n## [", name, "]\n\n", summary,
                    "\n\n| key | value | default | meaning |\n|---|---|---|---|\n");
    S::VisitFields(section, *this);
    text_ += lists_;
    lists_.clear();
  }
  template <typename T>
  void operator()(absl::string_view name, T& value, absl::string_view meaning, const Rule& rule) {
    const std::string standard = rule.required ? "required" : ToToml(value);
    Row(name, AllowedText<T>(rule), standard == "\"\"" ? "" : standard, meaning);
    if constexpr (requires { typename T::value_type; }) {
      if constexpr (HasFields<typename T::value_type>)
        DescribeElements<typename T::value_type>(name);
    }
  }
  void Rest(nlohmann::ordered_json&, absl::string_view meaning) {
    absl::StrAppend(&text_, "| … | as in config.json |  | ", Cell(meaning), " |\n");
  }
  std::string text() && { return std::move(text_); }

 private:
  static std::string Cell(absl::string_view text) {
    return absl::StrReplaceAll(text, {{"|", "\\|"}});
  }

  void Row(absl::string_view name, absl::string_view allowed, absl::string_view standard,
           absl::string_view meaning) {
    absl::StrAppend(&text_, "| `", name, "` | ", Cell(allowed), " | ",
                    standard.empty() ? "" : absl::StrCat("`", standard, "`"), " | ", Cell(meaning),
                    " |\n");
  }

  template <typename S>
  void DescribeElements(absl::string_view name) {
    std::string table = std::move(text_);
    text_ = absl::StrCat("\nEach table of `", name,
                         "`:\n\n| key | value | default | meaning |\n|---|---|---|---|\n");
    S element;
    S::VisitFields(element, *this);
    lists_ += text_;
    text_ = std::move(table);
  }

  std::string text_, lists_;
};

}  // namespace

std::string RangeText(const Rule& rule) {
  const bool low = std::isfinite(rule.low), high = std::isfinite(rule.high);
  if (low && high) {
    return absl::StrCat(" in ", rule.above_low ? "(" : "[", LimitText(rule.low), ", ",
                        LimitText(rule.high), rule.below_high ? ")" : "]");
  }
  if (low) return absl::StrCat(rule.above_low ? " above " : " of at least ", LimitText(rule.low));
  if (high) return absl::StrCat(rule.below_high ? " below " : " of at most ", LimitText(rule.high));
  return "";
}

std::string ToToml(const std::string& value) {
  return TomlString(absl::StrReplaceAll(value, {{"${", "$${"}}));
}

std::string ToToml(const Bytes& value) {
  const std::string text = FormatBytes(value.value);
  const auto back = ParseBytes(text);
  return TomlString(back.ok() && *back == value.value ? text : absl::StrCat(value.value, " B"));
}

std::string ToToml(const Seconds& value) {
  std::array<char, 64> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value.value,
                                          std::chars_format::fixed);
  return TomlString(absl::StrCat(
      absl::string_view(buffer.data(), static_cast<size_t>(end - buffer.data())), "s"));
}

namespace {
template <typename T>
std::string ListToToml(const std::vector<T>& values) {
  return absl::StrCat(
      "[",
      absl::StrJoin(values, ", ",
                    [](std::string* out, const T& value) { out->append(ToToml(value)); }),
      "]");
}
}  // namespace

std::string ToToml(const std::vector<int64_t>& values) { return ListToToml(values); }
std::string ToToml(const std::vector<double>& values) { return ListToToml(values); }
std::string ToToml(const std::vector<std::string>& values) { return ListToToml(values); }

const std::vector<SectionKeys>& AllRecipeKeys() {
  static const auto* keys = [] {
    Recipe recipe;
    KeyCollector collector;
    Recipe::VisitFields(recipe, collector);
    return new std::vector<SectionKeys>(std::move(collector).keys());
  }();
  return *keys;
}

std::string PrintRecipe(const Recipe& recipe) {
  Printer printer(recipe);
  Recipe::VisitFields(recipe, printer);
  return std::move(printer).text();
}

std::string RecipeReference() {
  Recipe recipe;
  ReferenceWriter writer;
  Recipe::VisitFields(recipe, writer);
  return absl::StrCat(
      "# The recipe\n\n"
      "A recipe is a TOML file that decides everything about a run. This page is printed by "
      "`tranche recipes reference`; a test "
      "keeps the two equal.\n\n"
      "* Every fault is reported at once, as `file:line: section.key: what is wrong, what is "
      "allowed`; exit code 2. An unknown "
      "key is a fault, and so is one without effect beside the others.\n"
      "* `--set section.key=value` (repeatable) beats the file, which beats the default. The value "
      "is TOML; what is not TOML is "
      "the text itself (`--set training.precision=bf16`). A length or warm-up given so replaces "
      "the file's, whatever its unit.\n"
      "* A relative path in the file resolves against the file's folder; one given by `--set`, and "
      "the default of "
      "`run.output_dir`, against the current folder.\n"
      "* `${NAME}` in a string is the environment variable NAME, which must exist; `$${` stands "
      "for `${`.\n"
      "* Sizes and times take units: `\"256 MiB\"`, `\"71h30m\"`. Whole numbers may be written "
      "`28e9`.\n"
      "* The resolved recipe, every value with its origin, is written beside the run and into each "
      "checkpoint; it is itself a "
      "recipe that reproduces the run.\n",
      std::move(writer).text());
}

}  // namespace tranche
