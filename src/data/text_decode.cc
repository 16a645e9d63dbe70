#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "data/text_reader.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

using Json = nlohmann::json;

// Takes one string field out of an object without building the rest of it.
class FieldReader : public nlohmann::json_sax<Json> {
 public:
  FieldReader(const std::string& field, std::string* text) : field_(field), text_(text) {}

  const std::string& fault() const { return fault_; }
  bool found() const { return found_; }

  bool null() override { return Value("null"); }
  bool boolean(bool) override { return Value("a truth value"); }
  bool number_integer(number_integer_t) override { return Value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Value("a number"); }
  bool binary(binary_t&) override { return Value("binary data"); }
  bool string(string_t& value) override {
    if (!is_field_) return Value("a string");
    is_field_ = false;
    found_ = true;
    *text_ = std::move(value);
    return true;
  }
  bool start_object(size_t) override {
    if (!Value("an object", /*top=*/true)) return false;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (!Value("a list")) return false;
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    is_field_ = depth_ == 1 && name == field_;
    if (is_field_ && found_) {
      fault_ = absl::StrCat("field \"", field_, "\" stands twice");
      return false;
    }
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    absl::string_view what = error.what();
    if (const size_t colon = what.find(": "); colon != absl::string_view::npos) {
      what.remove_prefix(colon + 2);
    }
    fault_ = absl::StrCat("not valid JSON at column ", position, ": ", what);
    return false;
  }

 private:
  bool Value(absl::string_view kind, bool top = false) {
    if (depth_ == 0 && !top) {
      fault_ = absl::StrCat("an object with field \"", field_, "\" is needed, this is ", kind);
      return false;
    }
    if (is_field_) {
      fault_ = absl::StrCat("field \"", field_, "\" is ", kind, ", a string is needed");
      return false;
    }
    return true;
  }

  const std::string& field_;
  std::string* const text_;
  std::string fault_;
  int64_t depth_ = 0;
  bool is_field_ = false, found_ = false;
};

// What is wrong with the line, or nothing.
std::optional<std::string> ReadField(absl::string_view line, const std::string& field,
                                     std::string* text) {
  FieldReader reader(field, text);
  try {
    const bool good = Json::sax_parse(line.begin(), line.end(), &reader);
    if (good && reader.found()) return std::nullopt;
  } catch (const Json::exception& error) {
    return absl::StrCat("not valid JSON: ", error.what());
  }
  if (!reader.fault().empty()) return reader.fault();
  return absl::StrCat("no field \"", field, "\" (choose the field of the text by its name)");
}

std::string DescribeInvalidUtf8(absl::string_view text, size_t at, int64_t offset) {
  std::string bytes;
  for (size_t i = at; i < std::min(at + 3, text.size()); ++i) {
    absl::StrAppendFormat(&bytes, "%s%02x", bytes.empty() ? "" : " ",
                          static_cast<uint8_t>(text[i]));
  }
  return absl::StrCat("byte ", offset + static_cast<int64_t>(at), ": not valid UTF-8 (", bytes,
                      " …); convert the file, or skip or replace such text");
}

}  // namespace

absl::StatusOr<TextBlock> DecodeBlock(RawBlock raw, const TextOptions& options) {
  TextBlock block;
  block.stats = std::move(raw.stats);
  block.documents.reserve(raw.documents.size());
  for (const RawBlock::Document& document : raw.documents) {
    const absl::string_view bytes = absl::string_view(raw.bytes).substr(
        static_cast<size_t>(document.begin), static_cast<size_t>(document.size));
    int64_t line = document.line;
    std::string fault;
    std::string text;
    if (const auto bad = FindInvalidUtf8(bytes)) {
      if (options.on_error == OnTextError::kReplace) {
        text = ReplaceInvalidUtf8(bytes, &block.stats.replaced_sequences);
      } else {
        line += std::count(bytes.begin(), bytes.begin() + static_cast<int64_t>(*bad), '\n');
        fault = DescribeInvalidUtf8(bytes, *bad, document.offset);
      }
    } else {
      text.assign(bytes.data(), bytes.size());
    }
    if (fault.empty() && raw.json) {
      const std::string object = std::move(text);
      text.clear();
      fault = ReadField(object, options.json_field, &text).value_or("");
    }
    if (!fault.empty()) {
      const std::string message = absl::StrCat(raw.path, ":", line, ": ", fault);
      if (options.on_error == OnTextError::kStop) return absl::InvalidArgumentError(message);
      ++block.stats.skipped_documents;
      if (block.stats.first_skipped.empty()) block.stats.first_skipped = message;
      continue;
    }
    ++block.stats.documents;
    block.stats.text_bytes += static_cast<int64_t>(text.size());
    block.documents.push_back(std::move(text));
  }
  return block;
}

}  // namespace tranche
