#include "data/tokenizer_verify.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "data/tokenizer_json.h"
#include "data/tokenizer_vocab.h"

namespace tranche {
namespace {

constexpr size_t kShownBytes = 60;

std::string Shown(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(text.substr(0, kShownBytes)),
                      text.size() > kShownBytes ? "…\"" : "\"");
}

absl::StatusOr<std::vector<int32_t>> ReadIds(const JsonNode& node) {
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, node.Elements());
  std::vector<int32_t> ids;
  ids.reserve(elements.size());
  for (const JsonNode& element : elements) {
    if (!element.value().is_number_integer() || element.value() < 0 ||
        element.value() > kMaxTokenId) {
      return element.Error("an id is needed here");
    }
    ids.push_back(element.value().get<int32_t>());
  }
  return ids;
}

std::string DescribeIds(const Tokenizer& tokenizer, const std::vector<int32_t>& expected,
                        const std::vector<int32_t>& got) {
  const size_t at = std::mismatch(expected.begin(), expected.end(), got.begin(), got.end()).first -
                    expected.begin();
  const auto show = [&](const std::vector<int32_t>& ids) {
    return at < ids.size() ? absl::StrCat(ids[at], " ", Shown(tokenizer.IdToToken(ids[at])))
                           : std::string("the end");
  };
  return absl::StrCat("at ", at, ": expected ", show(expected), ", got ", show(got));
}

}  // namespace

absl::StatusOr<TokenizerVerdict> VerifyTokenizer(const Tokenizer& tokenizer,
                                                 const std::string& goldens, int max_differences) {
  TRANCHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(goldens));
  TokenizerVerdict verdict;
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(file.data(), '\n')) {
    ++number;
    if (line.find_first_not_of(" \t\r") == absl::string_view::npos) continue;
    const std::string place = absl::StrCat(goldens, ":", number);
    TRANCHE_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(line, place));
    const JsonNode node(&document, place + ": ");
    if (!document.is_object()) return node.Error("an object with text and ids is needed here");
    TRANCHE_ASSIGN_OR_RETURN(const std::string text, node.RequiredString("text"));
    TRANCHE_ASSIGN_OR_RETURN(const std::string kind, node.String("kind", ""));
    ++verdict.lines;
    bool equal = true;
    const auto differs = [&](absl::string_view what, const std::string& how) {
      equal = false;
      if (static_cast<int>(verdict.differences.size()) < max_differences) {
        verdict.differences.push_back(
            absl::StrCat(place, kind.empty() ? "" : absl::StrCat(" (", kind, ")"), ": ", what, ": ",
                         how, "; text: ", Shown(text)));
      }
    };
    TRANCHE_ASSIGN_OR_RETURN(const std::vector<int32_t> expected, ReadIds(node.Child("ids")));
    std::vector<int32_t> got;
    tokenizer.Encode(text, false, &got);
    if (got != expected) {
      ++verdict.ids;
      differs("ids", DescribeIds(tokenizer, expected, got));
    }
    if (!node.Child("ids_with_special").IsNull()) {
      TRANCHE_ASSIGN_OR_RETURN(const std::vector<int32_t> with_special,
                               ReadIds(node.Child("ids_with_special")));
      got.clear();
      tokenizer.Encode(text, true, &got);
      if (got != with_special) {
        ++verdict.ids_with_special;
        differs("ids_with_special", DescribeIds(tokenizer, with_special, got));
      }
    }
    if (!node.Child("decoded").IsNull()) {
      TRANCHE_ASSIGN_OR_RETURN(const std::string decoded, node.RequiredString("decoded"));
      const std::string ours = tokenizer.Decode(expected, false);
      if (ours != decoded) {
        ++verdict.decoded;
        differs("decoded", absl::StrCat("expected ", Shown(decoded), ", got ", Shown(ours)));
      }
    }
    verdict.equal_lines += equal;
  }
  if (verdict.lines == 0) return absl::InvalidArgumentError(goldens + ": no line to compare");
  return verdict;
}

}  // namespace tranche
