#include "trainer/recipe_decode.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/text.h"
#include "base/units.h"
#include "model/model_config.h"

namespace tranche {

using Kind = TomlValue::Kind;

std::string ResolvePath(absl::string_view path, absl::string_view folder) {
  return std::filesystem::path(JoinPath(folder, path)).lexically_normal().string();
}

std::string CurrentFolder() {
  std::error_code ignored;
  return std::filesystem::current_path(ignored).string();
}

RecipeDecoder::RecipeDecoder(const TomlValue& root, const std::string& source, Recipe* recipe)
    : root_(root),
      source_(source),
      folder_(ResolvePath(DirName(source), CurrentFolder())),
      recipe_(recipe) {}

// A key that Tranche has elsewhere, or that another trainer has, is worth more than the nearest
// spelling.
void RecipeDecoder::UnknownKey(const TomlValue& value, const std::string& prefix,
                               const std::string& name, const std::vector<std::string>& known) {
  const std::string key = prefix.empty() ? name : absl::StrCat(prefix, ".", name);
  if (const std::string hint = ForeignNameHint(name); !hint.empty()) {
    Fault(value, key, absl::StrCat("unknown key; Tranche's recipe says ", hint));
    return;
  }
  for (const SectionKeys& section : AllRecipeKeys()) {
    if (section.section != prefix && absl::c_linear_search(section.keys, name)) {
      Fault(value, key,
            absl::StrCat("unknown key here; it stands in section [", section.section, "]"));
      return;
    }
  }
  const std::string nearest = DidYouMean(name, known);
  Fault(value, key,
        absl::StrCat("unknown key", nearest.empty() && !known.empty()
                                        ? absl::StrCat("; allowed: ", absl::StrJoin(known, ", "))
                                        : nearest));
}

void RecipeDecoder::ReportUnknownSections() {
  for (const auto& [name, value] : root_.entries) {
    if (absl::c_linear_search(sections_, name)) continue;
    if (value.kind != Kind::kTable && value.kind != Kind::kArray) {
      UnknownKey(value, "", name, {});
      continue;
    }
    const std::string hint = ForeignNameHint(name);
    const std::string nearest = DidYouMean(name, sections_);
    Fault(
        value, name,
        absl::StrCat("unknown section",
                     !hint.empty()     ? absl::StrCat("; Tranche's recipe says ", hint)
                     : nearest.empty() ? absl::StrCat("; allowed: ", absl::StrJoin(sections_, ", "))
                                       : nearest));
  }
}

void RecipeDecoder::Missing(const TomlValue* table, const std::string& key,
                            const std::string& allowed) {
  const int line = table == nullptr ? 1 : table->line;
  const std::string where = table == nullptr ? absl::StrCat(source_, ":1") : table->where;
  Fault(line, where, key, absl::StrCat("is missing; write ", allowed));
}

void RecipeDecoder::DecodeConfigKey(const TomlValue& value, const std::string& key,
                                    const std::string& name, nlohmann::ordered_json* object) {
  const std::vector<std::string> known = ModelConfigKeys("");
  if (!absl::c_linear_search(known, name)) {
    UnknownKey(value, key.substr(0, key.size() - name.size() - 1), name, known);
    return;
  }
  recipe_->origins[key] = value.where;
  auto json = TomlToJson(value);
  if (json.ok()) {
    (*object)[name] = *std::move(json);
  } else {
    Fault(value, key, json.status().message());
  }
}

bool RecipeDecoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                           nlohmann::ordered_json* out) {
  if (value.kind != Kind::kTable)
    return WrongType(value, key, AllowedText<nlohmann::ordered_json>(rule));
  for (const auto& [name, entry] : value.entries)
    DecodeConfigKey(entry, absl::StrCat(key, ".", name), name, out);
  return true;
}

bool RecipeDecoder::InRange(const TomlValue& value, double number, const std::string& key,
                            const Rule& rule, const std::string& allowed) {
  const bool low = rule.above_low ? number > rule.low : number >= rule.low;
  const bool high = rule.below_high ? number < rule.high : number <= rule.high;
  if (std::isfinite(number) && low && high) return true;
  Fault(value, key, absl::StrCat(TomlShort(value), " is out of range; allowed: ", allowed));
  return false;
}

bool RecipeDecoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                           bool* out) {
  if (value.kind != Kind::kBool) return WrongType(value, key, AllowedText<bool>(rule));
  *out = value.flag;
  return true;
}

bool RecipeDecoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                           int64_t* out) {
  const std::string allowed = AllowedText<int64_t>(rule);
  const bool whole =
      value.kind == Kind::kInteger ||  // 28e9 is a float to TOML and a whole number to people
      (value.kind == Kind::kFloat && value.number == std::floor(value.number) &&
       std::abs(value.number) < 0x1p53);
  if (!whole) return WrongType(value, key, allowed);
  if (!InRange(value, value.number, key, rule, allowed)) return false;
  *out = value.kind == Kind::kInteger ? value.integer : static_cast<int64_t>(value.number);
  return true;
}

bool RecipeDecoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                           double* out) {
  const std::string allowed = AllowedText<double>(rule);
  if (value.kind != Kind::kInteger && value.kind != Kind::kFloat)
    return WrongType(value, key, allowed);
  if (!InRange(value, value.number, key, rule, allowed)) return false;
  *out = value.number;
  return true;
}

bool RecipeDecoder::Expand(const TomlValue& value, const std::string& key, std::string* text) {
  std::string out;
  absl::string_view rest = *text;
  while (!rest.empty()) {
    if (absl::ConsumePrefix(&rest, "$${")) {
      out += "${";
    } else if (absl::ConsumePrefix(&rest, "${")) {
      const size_t close = rest.find('}');
      const std::string name(rest.substr(0, close));
      const char* found = close == absl::string_view::npos ? nullptr : std::getenv(name.c_str());
      if (found == nullptr || FindInvalidUtf8(found)) {
        Fault(value, key,
              close == absl::string_view::npos ? "${ without }"
              : found == nullptr
                  ? absl::StrCat("the environment variable ", name, " of ${", name,
                                 "} is not defined")
                  : absl::StrCat("the environment variable ", name, " is not valid UTF-8"));
        return false;
      }
      out += found;
      rest.remove_prefix(close + 1);
    } else {
      out += rest[0];
      rest.remove_prefix(1);
    }
  }
  *text = std::move(out);
  return true;
}

bool RecipeDecoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                           std::string* out) {
  const bool typed_bare = value.kind != Kind::kString && value.kind != Kind::kArray &&
                          value.kind != Kind::kTable &&
                          !value.typed.empty();  // --set run.name=7 means the text
  // true and false may stand among the words.
  const bool flag = value.kind == Kind::kBool && absl::c_linear_search(rule.allowed, "true");
  if (value.kind != Kind::kString && !typed_bare && !flag)
    return WrongType(value, key, AllowedText<std::string>(rule));
  std::string text = typed_bare ? value.typed : flag ? (value.flag ? "true" : "false") : value.text;
  if (!Expand(value, key, &text)) return false;
  if (text.find('\0') != std::string::npos) {
    Fault(value, key, "holds a NUL character");
    return false;
  }
  if (absl::c_linear_search(rule.allowed, text)) {
    *out = std::move(text);
    return true;
  }
  if (rule.is_path) {
    *out = text.empty() ? text : ResolvePath(text, value.line == 0 ? CurrentFolder() : folder_);
    return true;
  }
  if (!rule.allowed.empty()) {
    Fault(value, key,
          absl::StrCat(TomlShort(value), " is not allowed; allowed: ",
                       absl::StrJoin(rule.allowed, ", "), DidYouMean(text, rule.allowed)));
    return false;
  }
  *out = std::move(text);
  return true;
}

template <typename T, typename Parse>
bool RecipeDecoder::DecodeWithUnit(const TomlValue& value, const std::string& key, const Rule& rule,
                                   absl::string_view above_zero, Parse parse, T* out) {
  if (value.kind != Kind::kString) {
    if (value.kind != Kind::kInteger && value.kind != Kind::kFloat)
      return WrongType(value, key, AllowedText<T>(rule));
    Fault(value, key, absl::StrCat(TomlShort(value), " has no unit; write ", AllowedText<T>(rule)));
    return false;
  }
  std::string text = value.text;
  if (!Expand(value, key, &text)) return false;
  const auto parsed = parse(text);
  if (!parsed.ok()) {
    Fault(value, key, parsed.status().message());
    return false;
  }
  out->value = *parsed;
  return InRange(value, static_cast<double>(*parsed), key, rule, std::string(above_zero));
}

bool RecipeDecoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                           Bytes* out) {
  return DecodeWithUnit(value, key, rule, "more than 0 bytes", ParseBytes, out);
}

bool RecipeDecoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                           Seconds* out) {
  return DecodeWithUnit(value, key, rule, "more than 0 seconds", ParseSeconds, out);
}

}  // namespace tranche
