// From TOML to the structs: one visitor that decodes every field and collects every fault.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <limits>
#include <unistd.h>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "model/model_config.h"
#include "trainer/recipe.h"
#include "trainer/recipe_fields.h"
#include "trainer/recipe_toml.h"

namespace tranche {
namespace {

using Kind = TomlValue::Kind;

constexpr size_t kMaxFaults = 100;

std::string ResolvePath(absl::string_view path, absl::string_view folder) {
  return std::filesystem::path(JoinPath(folder, path)).lexically_normal().string();
}

std::string CurrentFolder() {
  std::error_code ignored;
  return std::filesystem::current_path(ignored).string();
}

class Decoder {
 public:
  Decoder(const TomlValue& root, const std::string& source, Recipe* recipe)
      : root_(root),
        source_(source),
        folder_(ResolvePath(DirName(source), CurrentFolder())),
        recipe_(recipe) {}

  template <typename S>
  void Section(absl::string_view name, S& section, absl::string_view) {
    sections_.emplace_back(name);
    const TomlValue* table = root_.Find(name);
    if (table != nullptr && table->kind != Kind::kTable) {
      Fault(*table, std::string(name),
            absl::StrCat("is ", TomlKindName(*table), "; write a section [", name, "]"));
      return;
    }
    DecodeTable(std::string(name), table, section);
  }

  void ReportUnknownSections();
  void Fault(const TomlValue& at, const std::string& key, absl::string_view what) {
    Fault(at.line, at.where, key, what);
  }
  void Fault(int line, const std::string& where, const std::string& key, absl::string_view what) {
    faults_.push_back({line, where, key, std::string(what)});
  }
  std::vector<RecipeFault>& faults() { return faults_; }

 private:
  // Decodes the fields of one table. Its VisitFields calls come back to operator() and Rest.
  struct Fields {
    Decoder* decoder;
    std::string prefix;
    const TomlValue* table;  // null where the section is absent
    std::vector<std::string> known;
    nlohmann::ordered_json* rest = nullptr;

    template <typename T>
    void operator()(absl::string_view name, T& member, absl::string_view, const Rule& rule) {
      known.emplace_back(name);
      const std::string key = absl::StrCat(prefix, ".", name);
      const TomlValue* value = table == nullptr ? nullptr : table->Find(name);
      if (value == nullptr) {
        if (rule.required) decoder->Missing(table, key, AllowedText<T>(rule));
        return;
      }
      decoder->recipe_->origins[key] = value->where;
      decoder->Decode(*value, key, rule, &member);
    }
    void Rest(nlohmann::ordered_json& member, absl::string_view) { rest = &member; }
  };

  template <typename S>
  void DecodeTable(const std::string& prefix, const TomlValue* table, S& section) {
    Fields fields{this, prefix, table};
    S::VisitFields(section, fields);
    if (table == nullptr) return;
    for (const auto& [name, value] : table->entries) {
      if (absl::c_linear_search(fields.known, name)) continue;
      if (fields.rest != nullptr) {
        DecodeConfigKey(value, absl::StrCat(prefix, ".", name), name, fields.rest);
      } else {
        UnknownKey(value, prefix, name, fields.known);
      }
    }
  }

  void Missing(const TomlValue* table, const std::string& key, const std::string& allowed);
  void UnknownKey(const TomlValue& value, const std::string& prefix, const std::string& name,
                  const std::vector<std::string>& known);
  void DecodeConfigKey(const TomlValue& value, const std::string& key, const std::string& name,
                       nlohmann::ordered_json* object);

  bool WrongType(const TomlValue& value, const std::string& key, const std::string& allowed) {
    Fault(value, key, absl::StrCat(TomlShort(value), " is not ", allowed));
    return false;
  }
  bool InRange(const TomlValue& value, double number, const std::string& key, const Rule& rule,
               const std::string& allowed);

  bool Decode(const TomlValue& value, const std::string& key, const Rule& rule, bool* out);
  bool Decode(const TomlValue& value, const std::string& key, const Rule& rule, int64_t* out);
  bool Decode(const TomlValue& value, const std::string& key, const Rule& rule, double* out);
  bool Decode(const TomlValue& value, const std::string& key, const Rule& rule, std::string* out);
  bool Decode(const TomlValue& value, const std::string& key, const Rule& rule, Bytes* out);
  bool Decode(const TomlValue& value, const std::string& key, const Rule& rule, Seconds* out);
  bool Decode(const TomlValue& value, const std::string& key, const Rule& rule,
              nlohmann::ordered_json* out);
  bool Decode(const TomlValue& value, const std::string& key, const Rule& rule,
              std::vector<double>* out);
  template <typename T>
  bool Decode(const TomlValue& value, const std::string& key, const Rule& rule,
              std::optional<T>* out) {
    T decoded{};
    if (!Decode(value, key, rule, &decoded)) return false;
    *out = std::move(decoded);
    return true;
  }
  template <typename T>
  requires HasFields<T>
  bool Decode(const TomlValue& value, const std::string& key, const Rule& rule,
              std::vector<T>* out) {
    if (value.kind != Kind::kArray) return WrongType(value, key, AllowedText<std::vector<T>>(rule));
    for (size_t i = 0; i < value.items.size(); ++i) {
      const std::string item_key = absl::StrCat(key, "[", i, "]");
      if (value.items[i].kind != Kind::kTable) {
        WrongType(value.items[i], item_key, "a table");
        continue;
      }
      recipe_->origins[item_key] = value.items[i].where;
      DecodeTable(item_key, &value.items[i], out->emplace_back());
    }
    return true;
  }

  // Replaces ${VAR}; false where one is not defined.
  bool Expand(const TomlValue& value, const std::string& key, std::string* text);

  const TomlValue& root_;
  const std::string source_;
  const std::string folder_;
  Recipe* recipe_;
  std::vector<std::string> sections_;
  std::vector<RecipeFault> faults_;
};

// A key that Tranche has elsewhere, or that another trainer has, is worth more than the nearest
// spelling.
void Decoder::UnknownKey(const TomlValue& value, const std::string& prefix, const std::string& name,
                         const std::vector<std::string>& known) {
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

void Decoder::ReportUnknownSections() {
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

void Decoder::Missing(const TomlValue* table, const std::string& key, const std::string& allowed) {
  const int line = table == nullptr ? 1 : table->line;
  const std::string where = table == nullptr ? absl::StrCat(source_, ":1") : table->where;
  Fault(line, where, key, absl::StrCat("is missing; write ", allowed));
}

void Decoder::DecodeConfigKey(const TomlValue& value, const std::string& key,
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

bool Decoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                     nlohmann::ordered_json* out) {
  if (value.kind != Kind::kTable)
    return WrongType(value, key, AllowedText<nlohmann::ordered_json>(rule));
  for (const auto& [name, entry] : value.entries)
    DecodeConfigKey(entry, absl::StrCat(key, ".", name), name, out);
  return true;
}

bool Decoder::InRange(const TomlValue& value, double number, const std::string& key,
                      const Rule& rule, const std::string& allowed) {
  const bool low = rule.above_low ? number > rule.low : number >= rule.low;
  const bool high = rule.below_high ? number < rule.high : number <= rule.high;
  if (std::isfinite(number) && low && high) return true;
  Fault(value, key, absl::StrCat(TomlShort(value), " is out of range; allowed: ", allowed));
  return false;
}

bool Decoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule, bool* out) {
  if (value.kind != Kind::kBool) return WrongType(value, key, AllowedText<bool>(rule));
  *out = value.flag;
  return true;
}

bool Decoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
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

bool Decoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                     double* out) {
  const std::string allowed = AllowedText<double>(rule);
  if (value.kind != Kind::kInteger && value.kind != Kind::kFloat)
    return WrongType(value, key, allowed);
  if (!InRange(value, value.number, key, rule, allowed)) return false;
  *out = value.number;
  return true;
}

bool Decoder::Expand(const TomlValue& value, const std::string& key, std::string* text) {
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

bool Decoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                     std::string* out) {
  const bool typed_bare = value.kind != Kind::kString && value.kind != Kind::kArray &&
                          value.kind != Kind::kTable &&
                          !value.typed.empty();  // --set run.name=7 means the text
  if (value.kind != Kind::kString && !typed_bare)
    return WrongType(value, key, AllowedText<std::string>(rule));
  std::string text = typed_bare ? value.typed : value.text;
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

bool Decoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule, Bytes* out) {
  if (value.kind != Kind::kString) {
    if (value.kind != Kind::kInteger && value.kind != Kind::kFloat)
      return WrongType(value, key, AllowedText<Bytes>(rule));
    Fault(value, key,
          absl::StrCat(TomlShort(value), " has no unit; write ", AllowedText<Bytes>(rule)));
    return false;
  }
  std::string text = value.text;
  if (!Expand(value, key, &text)) return false;
  const auto bytes = ParseBytes(text);
  if (!bytes.ok()) {
    Fault(value, key, bytes.status().message());
    return false;
  }
  out->value = *bytes;
  return InRange(value, static_cast<double>(*bytes), key, rule, "more than 0 bytes");
}

bool Decoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                     Seconds* out) {
  if (value.kind != Kind::kString) {
    if (value.kind != Kind::kInteger && value.kind != Kind::kFloat)
      return WrongType(value, key, AllowedText<Seconds>(rule));
    Fault(value, key,
          absl::StrCat(TomlShort(value), " has no unit; write ", AllowedText<Seconds>(rule)));
    return false;
  }
  std::string text = value.text;
  if (!Expand(value, key, &text)) return false;
  const auto seconds = ParseSeconds(text);
  if (!seconds.ok()) {
    Fault(value, key, seconds.status().message());
    return false;
  }
  out->value = *seconds;
  return InRange(value, *seconds, key, rule, "more than 0 seconds");
}

bool Decoder::Decode(const TomlValue& value, const std::string& key, const Rule& rule,
                     std::vector<double>* out) {
  const std::string allowed = AllowedText<std::vector<double>>(rule);
  if (value.kind != Kind::kArray) return WrongType(value, key, allowed);
  std::vector<double> numbers(value.items.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!Decode(value.items[i], absl::StrCat(key, "[", i, "]"), rule, &numbers[i])) return false;
  }
  *out = std::move(numbers);
  return true;
}

// A length or warm-up given by --set replaces the file's, in whichever unit that was given.
void DropOverridden(TomlValue* root, absl::string_view section,
                    const std::vector<std::string>& alternatives) {
  TomlValue* table = root->Find(section);
  if (table == nullptr) return;
  auto& entries = table->entries;
  const auto is_one = [&](const auto& entry) {
    return absl::c_linear_search(alternatives, entry.first);
  };
  if (!absl::c_any_of(entries,
                      [&](const auto& entry) { return is_one(entry) && entry.second.line == 0; }))
    return;
  entries.erase(
      std::remove_if(entries.begin(), entries.end(),
                     [&](const auto& entry) { return is_one(entry) && entry.second.line != 0; }),
      entries.end());
}

// "1ep", "28e9tok", "7121steps" -> max_epochs, max_tokens, max_steps, under the origin of
// `duration`.
void ResolveDuration(Recipe* recipe, Decoder* decoder) {
  TrainingRecipe& training = recipe->training;
  if (!training.duration) return;
  const std::string origin = recipe->Origin("training.duration");
  const auto fault = [&] {
    decoder->Fault(0, origin, "training.duration",
                   absl::StrCat(TomlString(*training.duration),
                                " is not a length; write a number and its unit: \"7121steps\", "
                                "\"28e9tok\" or \"1ep\""));
  };
  absl::string_view text = absl::StripAsciiWhitespace(*training.duration);
  size_t digits = text.size();
  while (digits > 0 && absl::ascii_isalpha(static_cast<unsigned char>(text[digits - 1]))) --digits;
  const absl::string_view unit = text.substr(digits);
  double number = 0;
  if (!absl::SimpleAtod(text.substr(0, digits), &number) || !(number > 0) || number > 0x1p53)
    return fault();
  const auto whole = [&](std::optional<int64_t>* out) {
    if (number != std::floor(number)) return fault();
    *out = static_cast<int64_t>(number);
  };
  const char* key = "training.max_steps";
  if (unit == "ep" || unit == "epoch" || unit == "epochs") {
    key = "training.max_epochs";
    training.max_epochs = number;
  } else if (unit == "tok" || unit == "token" || unit == "tokens") {
    key = "training.max_tokens";
    whole(&training.max_tokens);
  } else if (unit == "step" || unit == "steps") {
    whole(&training.max_steps);
  } else {
    return fault();
  }
  recipe->origins[key] = origin;
  recipe->origins.erase("training.duration");
  training.duration.reset();
}

void ResolveNames(Recipe* recipe, Decoder* decoder, bool output_dir_is_default) {
  const char* slurm_job = std::getenv("SLURM_JOB_ID");
  const std::string job = slurm_job != nullptr ? slurm_job : absl::StrCat(getpid());
  std::array<char, 16> date{};
  const std::time_t now = std::time(nullptr);
  std::tm calendar{};
  std::strftime(date.data(), date.size(), "%Y%m%d", localtime_r(&now, &calendar));
  std::string& name = recipe->run.name;
  name = absl::StrReplaceAll(name, {{"%date", date.data()}, {"%jobid", job}});
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::StrContains("-_.+=@", absl::string_view(&c, 1)) ||
           static_cast<unsigned char>(c) >= 0x80;
  };
  if (name.empty() || name[0] == '.' || !absl::c_all_of(name, allowed)) {
    decoder->Fault(
        0, recipe->Origin("run.name"), "run.name",
        absl::StrCat(
            TomlString(name),
            " cannot name a folder; allowed: letters, digits and -_.+=@, not starting with ."));
  }
  std::string& output = recipe->run.output_dir;
  output = absl::StrReplaceAll(output, {{"%name", name}, {"%date", date.data()}, {"%jobid", job}});
  if (output_dir_is_default) output = ResolvePath(output, CurrentFolder());
}

// One line of at most `size` bytes, whatever a hostile recipe put into it.
std::string OneLine(absl::string_view text, size_t size) {
  std::string out;
  for (const char c : text) {
    if (out.size() >= size && (static_cast<unsigned char>(c) & 0xC0) != 0x80) return out + "...";
    out += absl::ascii_iscntrl(static_cast<unsigned char>(c)) ? '?' : c;
  }
  return out;
}

absl::Status JoinFaults(std::vector<RecipeFault> faults) {
  std::stable_sort(faults.begin(), faults.end(), [](const RecipeFault& a, const RecipeFault& b) {
    const auto rank = [](int line) { return line == 0 ? std::numeric_limits<int>::max() : line; };
    return rank(a.line) < rank(b.line);
  });
  const size_t shown = std::min(faults.size(), kMaxFaults);
  std::vector<std::string> lines;
  for (size_t i = 0; i < shown; ++i) {
    const RecipeFault& fault = faults[i];
    const std::string key = fault.key.empty() ? "" : absl::StrCat(OneLine(fault.key, 200), ": ");
    lines.push_back(absl::StrCat(fault.where, ": ", key, OneLine(fault.what, 2000)));
  }
  if (faults.size() > shown)
    lines.push_back(absl::StrCat("and ", faults.size() - shown, " more faults"));
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

// The line at the end of "source:12", for sorting; 0 for "--set" and "default".
int LineOf(const std::string& where) {
  const size_t colon = where.rfind(':');
  int line = 0;
  return colon != std::string::npos && absl::SimpleAtoi(where.substr(colon + 1), &line) ? line : 0;
}

}  // namespace

absl::StatusOr<Recipe> ParseRecipe(absl::string_view text, const std::string& source,
                                   absl::Span<const std::string> sets, RecipeFiles files) {
  TRANCHE_ASSIGN_OR_RETURN(TomlValue root, ParseToml(text, source));
  Recipe recipe;
  Decoder decoder(root, source, &recipe);
  for (const std::string& set : sets) {
    const absl::Status status = ApplySet(set, &root);
    if (!status.ok()) decoder.Fault(0, "--set", "", status.message());
  }
  DropOverridden(&root, "training", {"max_steps", "max_tokens", "max_epochs", "duration"});
  DropOverridden(&root, "lr_scheduler", {"warmup_steps", "warmup_ratio"});
  Recipe::VisitFields(recipe, decoder);
  decoder.ReportUnknownSections();
  ResolveDuration(&recipe, &decoder);
  ResolveNames(&recipe, &decoder, recipe.origins.count("run.output_dir") == 0);
  if (recipe.training.micro_batch_size == 0)
    recipe.training.micro_batch_size = recipe.training.global_batch_size;
  if (recipe.tokenizer.path.empty()) recipe.tokenizer.path = recipe.model.path;
  std::vector<std::string> faulty;
  for (const RecipeFault& fault : decoder.faults()) faulty.push_back(fault.key);
  CheckRecipe(recipe, files, faulty, &decoder.faults());
  if (decoder.faults().empty()) return recipe;
  for (RecipeFault& fault : decoder.faults()) {
    if (fault.where == "default") {  // what is not there is missed in its section
      const TomlValue* section = root.Find(fault.key.substr(0, fault.key.find('.')));
      fault.where = section == nullptr ? absl::StrCat(source, ":1") : section->where;
    }
    if (fault.line == 0) fault.line = LineOf(fault.where);
  }
  return JoinFaults(std::move(decoder.faults()));
}

absl::StatusOr<Recipe> LoadRecipe(const std::string& path, absl::Span<const std::string> sets,
                                  RecipeFiles files) {
  TRANCHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseRecipe(file.data(), path, sets, files);
}

bool SameValues(const Recipe& a, const Recipe& b) {
  return a.run == b.run && a.model == b.model && a.tokenizer == b.tokenizer && a.data == b.data &&
         a.validation == b.validation && a.training == b.training && a.optimizer == b.optimizer &&
         a.lr_scheduler == b.lr_scheduler && a.checkpoint == b.checkpoint &&
         a.metrics == b.metrics && a.fault_tolerance == b.fault_tolerance;
}

}  // namespace tranche
