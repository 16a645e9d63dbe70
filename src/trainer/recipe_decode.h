// From TOML to the structs: one visitor that decodes every field and collects every fault.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "trainer/recipe.h"
#include "trainer/recipe_fields.h"
#include "trainer/recipe_toml.h"

namespace tranche {

// A relative path against `folder`, without dots.
std::string ResolvePath(absl::string_view path, absl::string_view folder);
std::string CurrentFolder();

// Visits the sections of a recipe: values of `root` go to the members, their places to the recipe's
// origins, what is wrong to faults().
class RecipeDecoder {
 public:
  RecipeDecoder(const TomlValue& root, const std::string& source, Recipe* recipe);

  template <typename S>
  void Section(absl::string_view name, S& section, absl::string_view) {
    sections_.emplace_back(name);
    const TomlValue* table = root_.Find(name);
    if (table != nullptr && table->kind != TomlValue::Kind::kTable) {
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
    RecipeDecoder* decoder;
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
  // A list of numbers or words: one fault ends it.
  template <typename T>
  bool Decode(const TomlValue& value, const std::string& key, const Rule& rule,
              std::vector<T>* out) {
    if (value.kind != TomlValue::Kind::kArray)
      return WrongType(value, key, AllowedText<std::vector<T>>(rule));
    std::vector<T> items(value.items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      if (!Decode(value.items[i], absl::StrCat(key, "[", i, "]"), rule, &items[i])) return false;
    }
    *out = std::move(items);
    return true;
  }
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
    if (value.kind != TomlValue::Kind::kArray)
      return WrongType(value, key, AllowedText<std::vector<T>>(rule));
    for (size_t i = 0; i < value.items.size(); ++i) {
      const std::string item_key = absl::StrCat(key, "[", i, "]");
      if (value.items[i].kind != TomlValue::Kind::kTable) {
        WrongType(value.items[i], item_key, "a table");
        continue;
      }
      recipe_->origins[item_key] = value.items[i].where;
      DecodeTable(item_key, &value.items[i], out->emplace_back());
    }
    return true;
  }

  // A value written with its unit, which `parse` understands.
  template <typename T, typename Parse>
  bool DecodeWithUnit(const TomlValue& value, const std::string& key, const Rule& rule,
                      absl::string_view above_zero, Parse parse, T* out);
  // Replaces ${VAR}; false where one is not defined.
  bool Expand(const TomlValue& value, const std::string& key, std::string* text);

  const TomlValue& root_;
  const std::string source_;
  const std::string folder_;
  Recipe* recipe_;
  std::vector<std::string> sections_;
  std::vector<RecipeFault> faults_;
};

}  // namespace tranche
