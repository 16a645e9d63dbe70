#include "trainer/recipe_toml.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <pthread.h>
#include <toml++/toml.h>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status.h"
#include "base/text.h"

namespace tranche {
namespace {

using Kind = TomlValue::Kind;

constexpr size_t kMaxBytes = size_t{256} << 10;
constexpr size_t kOrdinaryDepth = 500;
constexpr size_t kStackBytesPerLevel = 4096;  // toml++ takes under 1 KiB, twice that when sanitized
constexpr int kMaxDepth = 64;

std::string Place(const std::string& source, int line) { return absl::StrCat(source, ":", line); }

// Runs `work`, which recurses `depth` deep, on a stack that is large enough: toml++ makes one table
// per dot of a key and walks them recursively, so a hostile file of a hundred thousand dots would
// exhaust an ordinary one. False where the system has no room for a thread.
bool RunOnLargeStack(size_t depth, const std::function<void()>& work) {
  if (depth <= kOrdinaryDepth) {
    work();
    return true;
  }
  pthread_attr_t attributes;
  TRANCHE_CHECK_EQ(pthread_attr_init(&attributes), 0);
  TRANCHE_CHECK_EQ(pthread_attr_setstacksize(&attributes, depth * kStackBytesPerLevel), 0);
  pthread_t thread;
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  const int failed =
      pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work));
  pthread_attr_destroy(&attributes);
  return failed == 0 && pthread_join(thread, nullptr) == 0;
}

// Every level of a TOML tree costs one of these characters.
size_t DepthBound(absl::string_view text) {
  return static_cast<size_t>(
      absl::c_count_if(text, [](char c) { return c == '.' || c == '[' || c == '{'; }));
}

absl::Status Convert(const toml::node& node, const std::string& source, int line, int depth,
                     TomlValue* out) {
  if (depth > kMaxDepth)
    return absl::InvalidArgumentError(absl::StrCat(Place(source, line), ": nested too deeply"));
  if (node.source().begin.line > 0) line = static_cast<int>(node.source().begin.line);
  out->line = line;
  out->where = Place(source, line);
  switch (node.type()) {
    case toml::node_type::string:
      out->kind = Kind::kString;
      out->text = node.as_string()->get();
      break;
    case toml::node_type::integer:
      out->kind = Kind::kInteger;
      out->integer = node.as_integer()->get();
      out->number = static_cast<double>(out->integer);
      break;
    case toml::node_type::floating_point:
      out->kind = Kind::kFloat;
      out->number = node.as_floating_point()->get();
      break;
    case toml::node_type::boolean:
      out->kind = Kind::kBool;
      out->flag = node.as_boolean()->get();
      break;
    case toml::node_type::array:
      out->kind = Kind::kArray;
      for (const toml::node& item : *node.as_array()) {
        TRANCHE_RETURN_IF_ERROR(Convert(item, source, line, depth + 1, &out->items.emplace_back()));
      }
      break;
    case toml::node_type::table: {
      // toml++ sorts keys by name; people read them in the order of the file.
      std::vector<std::pair<const toml::key*, const toml::node*>> entries;
      for (const auto& [key, value] : *node.as_table()) entries.emplace_back(&key, &value);
      const auto place = [](const auto& entry) {
        const toml::source_position& begin = entry.first->source().begin;
        return std::make_pair(begin.line, begin.column);
      };
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto& a, const auto& b) { return place(a) < place(b); });
      out->kind = Kind::kTable;
      for (const auto& [key, value] : entries) {
        TomlValue& entry = out->entries.emplace_back(TomlEntry{std::string(key->str()), {}}).value;
        const int own_line = static_cast<int>(key->source().begin.line);
        const int key_line = own_line > 0 ? own_line : line;
        TRANCHE_RETURN_IF_ERROR(Convert(*value, source, key_line, depth + 1, &entry));
        entry.line = key_line;  // where a reader looks for it, even if the value starts below
        entry.where = Place(source, key_line);
      }
      break;
    }
    default:
      out->kind = Kind::kDate;
      break;
  }
  return absl::OkStatus();
}

void MarkAsSet(TomlValue* value) {
  value->where = "--set";
  value->line = 0;
  for (TomlValue& item : value->items) MarkAsSet(&item);
  for (auto& [key, entry] : value->entries) MarkAsSet(&entry);
}

// The value of an assignment: TOML where it is one whole TOML value, else the bare text.
TomlValue ParseSetValue(absl::string_view typed) {
  TomlValue value;
  const auto parsed = ParseToml(absl::StrCat("v = ", typed, "\n"), "--set");
  const bool is_toml = parsed.ok() && parsed->entries.size() == 1 && parsed->entries[0].key == "v";
  if (is_toml) {
    value = parsed->entries[0].value;
  } else {
    value.kind = Kind::kString;
    value.text = std::string(typed);
  }
  MarkAsSet(&value);
  value.typed = std::string(typed);
  return value;
}

}  // namespace

const TomlValue* TomlValue::Find(absl::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

TomlValue* TomlValue::Find(absl::string_view key) {
  return const_cast<TomlValue*>(static_cast<const TomlValue*>(this)->Find(key));
}

std::string TomlKindName(const TomlValue& value) {
  switch (value.kind) {
    case Kind::kString:
      return "a string";
    case Kind::kInteger:
      return "a whole number";
    case Kind::kFloat:
      return "a number";
    case Kind::kBool:
      return "true or false";
    case Kind::kDate:
      return "a date or time";
    case Kind::kArray:
      return "an array";
    case Kind::kTable:
      return "a table";
  }
  return "";
}

std::string TomlShort(const TomlValue& value) {
  switch (value.kind) {
    case Kind::kString: {
      if (value.text.size() <= 60) return TomlString(value.text);
      size_t end = 60;
      while (end > 0 && (static_cast<unsigned char>(value.text[end]) & 0xC0) == 0x80) --end;
      return TomlString(absl::StrCat(value.text.substr(0, end), "..."));
    }
    case Kind::kInteger:
      return absl::StrCat(value.integer);
    case Kind::kFloat:
      return TomlNumber(value.number);
    case Kind::kBool:
      return value.flag ? "true" : "false";
    default:
      return TomlKindName(value);
  }
}

absl::StatusOr<TomlValue> ParseToml(absl::string_view text, const std::string& source) {
  const auto fault = [&](int line, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(Place(source, line), ": ", what));
  };
  if (text.size() > kMaxBytes) return fault(1, "a recipe is at most 256 KiB long");
  if (const auto bad = FindInvalidUtf8(text)) {
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(*bad), '\n');
    return fault(static_cast<int>(line), "not valid UTF-8; save the file as UTF-8");
  }
  absl::StatusOr<TomlValue> result = absl::InternalError("not parsed");
  const bool ran = RunOnLargeStack(DepthBound(text), [&] {
    try {
      const toml::table table =
          toml::parse(std::string_view(text.data(), text.size()), std::string_view(source));
      TomlValue root;
      const absl::Status status = Convert(table, source, 1, 0, &root);
      if (status.ok()) {
        result = std::move(root);
      } else {
        result = status;
      }
    } catch (const toml::parse_error& error) {
      const std::string what =
          absl::StrReplaceAll(std::string(error.description()), {{"\n", "\\n"}});
      result = fault(std::max(1, static_cast<int>(error.source().begin.line)),
                     absl::StrCat("not valid TOML: ", what));
    }
  });
  if (!ran)
    return absl::ResourceExhaustedError(
        absl::StrCat(source, ": cannot start the thread that parses it"));
  return result;
}

absl::Status ApplySet(absl::string_view assignment, TomlValue* root) {
  if (FindInvalidUtf8(assignment)) return absl::InvalidArgumentError("not valid UTF-8");
  const size_t equals = assignment.find('=');
  const absl::string_view path = absl::StripAsciiWhitespace(assignment.substr(0, equals));
  const std::vector<std::string> keys = absl::StrSplit(path, '.');
  if (equals == absl::string_view::npos || keys.size() < 2 || keys.size() > kMaxDepth ||
      absl::c_any_of(keys, [](const std::string& key) { return key.empty(); })) {
    return absl::InvalidArgumentError(
        absl::StrCat(assignment, ": write section.key=value, such as training.max_steps=100"));
  }
  TomlValue* table = root;
  for (size_t i = 0; i + 1 < keys.size(); ++i) {
    TomlValue* next = table->Find(keys[i]);
    if (next == nullptr) {
      table->entries.push_back({keys[i], {}});
      next = &table->entries.back().value;
      next->where = "--set";
    }
    if (next->kind != Kind::kTable) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", absl::StrJoin(keys.begin(), keys.begin() + i + 1, "."), " is ",
                       TomlKindName(*next), ", not a table; set all of it at once"));
    }
    table = next;
  }
  TomlValue value = ParseSetValue(absl::StripAsciiWhitespace(assignment.substr(equals + 1)));
  if (TomlValue* old = table->Find(keys.back())) {
    *old = std::move(value);
  } else {
    table->entries.push_back({keys.back(), std::move(value)});
  }
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::ordered_json> TomlToJson(const TomlValue& value) {
  switch (value.kind) {
    case Kind::kString:
      return nlohmann::ordered_json(value.text);
    case Kind::kInteger:
      return nlohmann::ordered_json(value.integer);
    case Kind::kBool:
      return nlohmann::ordered_json(value.flag);
    case Kind::kFloat:
      if (!std::isfinite(value.number)) return absl::InvalidArgumentError("is not a finite number");
      return nlohmann::ordered_json(value.number);
    case Kind::kDate:
      return absl::InvalidArgumentError("is a date or time, which config.json cannot hold");
    case Kind::kArray: {
      nlohmann::ordered_json array = nlohmann::ordered_json::array();
      for (const TomlValue& item : value.items) {
        TRANCHE_ASSIGN_OR_RETURN(nlohmann::ordered_json element, TomlToJson(item));
        array.push_back(std::move(element));
      }
      return array;
    }
    case Kind::kTable: {
      nlohmann::ordered_json object = nlohmann::ordered_json::object();
      for (const auto& [key, entry] : value.entries) {
        TRANCHE_ASSIGN_OR_RETURN(object[key], TomlToJson(entry));
      }
      return object;
    }
  }
  return absl::InternalError("unknown kind of TOML value");
}

std::string TomlString(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&out, "\\", std::string(1, c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&out, "\\u%04X", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string TomlKey(absl::string_view key) {
  const bool bare = !key.empty() && absl::c_all_of(key, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  });
  return bare ? std::string(key) : TomlString(key);
}

std::string TomlNumber(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return absl::StrFormat("%.1f", value);
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), end);
  if (text.find_first_of(".en") == std::string::npos)
    text += ".0";  // stays a float when read again
  return text;
}

std::string TomlFromJson(const nlohmann::ordered_json& value) {
  if (value.is_string()) return TomlString(value.get_ref<const std::string&>());
  if (value.is_number_float()) return TomlNumber(value.get<double>());
  if (value.is_array()) {
    return absl::StrCat("[",
                        absl::StrJoin(value, ", ",
                                      [](std::string* out, const nlohmann::ordered_json& item) {
                                        out->append(TomlFromJson(item));
                                      }),
                        "]");
  }
  if (value.is_object()) {
    std::vector<std::string> entries;
    for (const auto& [key, item] : value.items())
      entries.push_back(absl::StrCat(TomlKey(key), " = ", TomlFromJson(item)));
    return absl::StrCat("{", absl::StrJoin(entries, ", "), "}");
  }
  return value.dump();
}

}  // namespace tranche
