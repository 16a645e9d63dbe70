#include "base/json.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

constexpr int kMaxDepth = 64;

std::string Where(absl::string_view text, size_t offset, const std::string& source) {
  const absl::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = before.size() - (newline == absl::string_view::npos ? 0 : newline + 1) + 1;
  return absl::StrCat(source, ":", line, ":", column);
}

// Reads on from `at` and leaves how far it has read in `*reached`: the parser's callbacks are not
// told.
class Reader {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Reader(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Reader& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  bool operator==(const Reader& other) const { return at_ == other.at_; }
  bool operator!=(const Reader& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

template <typename Json>
absl::StatusOr<Json> Parse(absl::string_view text, const std::string& source) {
  if (absl::StartsWith(text, "\xef\xbb\xbf")) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ":1: starts with a byte-order mark; save the file as plain UTF-8"));
  }
  if (const auto bad = FindInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat(Where(text, *bad, source), ": not valid UTF-8"));
  }
  std::vector<std::set<std::string>> keys;
  std::string fault;
  const char* reached = text.data();
  const auto fault_before = [&](int64_t bytes, const std::string& what) {
    if (fault.empty())
      fault = absl::StrCat(Where(text, reached - text.data() - bytes, source), ": ", what);
  };
  const typename Json::parser_callback_t watch =
      [&](int depth, nlohmann::detail::parse_event_t event, Json& value) {
        using Event = nlohmann::detail::parse_event_t;
        if (depth > kMaxDepth)
          fault_before(1, absl::StrCat("nested more than ", kMaxDepth, " deep"));
        if (event == Event::object_start) {
          keys.emplace_back();
        } else if (event == Event::object_end) {
          keys.pop_back();
        } else if (event == Event::key) {
          const auto& key = value.template get_ref<const std::string&>();
          if (!keys.back().insert(key).second)
            fault_before(static_cast<int64_t>(key.size()) + 2,
                         absl::StrCat("key \"", key, "\" stands twice in one object"));
        }
        return true;
      };
  try {
    Json value = Json::parse(Reader(text.data(), &reached),
                             Reader(text.data() + text.size(), &reached), watch);
    if (!fault.empty()) return absl::InvalidArgumentError(fault);
    return value;
  } catch (const typename Json::parse_error& error) {
    absl::string_view what = error.what();
    if (const size_t colon = what.find(": "); colon != absl::string_view::npos)
      what.remove_prefix(colon + 2);
    return absl::InvalidArgumentError(absl::StrCat(
        Where(text, error.byte > 0 ? error.byte - 1 : 0, source), ": not valid JSON: ", what));
  } catch (const typename Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": not valid JSON: ", error.what()));
  }
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, const std::string& source) {
  return Parse<nlohmann::json>(text, source);
}

absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(absl::string_view text,
                                                        const std::string& source) {
  return Parse<nlohmann::ordered_json>(text, source);
}

absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path) {
  TRANCHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseJson(file.data(), path);
}

}  // namespace tranche
