#include "data/tokenizer_vocab.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "data/unicode.h"

namespace tranche {

void Vocabulary::Set(std::string token, int32_t id) {
  if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(id + 1);
  ids_[token] = id;
  tokens_[id] = std::move(token);
}

const std::string& Vocabulary::Token(int32_t id) const {
  static const std::string& empty = *new std::string();
  return id >= 0 && id <= max_id() ? tokens_[id] : empty;
}

absl::StatusOr<Vocabulary> Vocabulary::Read(const JsonNode& node) {
  if (!node.value().is_object()) return node.Error("an object {\"token\": id, …} is needed here");
  Vocabulary vocabulary;
  vocabulary.ids_.reserve(node.value().size());
  std::vector<bool> taken;
  for (const auto& [token, value] : node.value().items()) {
    if (!value.is_number_integer() || value < 0 || value > kMaxTokenId) {
      return node.Error(
          absl::StrCat("the id of \"", token, "\" must be a whole number from 0 to ", kMaxTokenId));
    }
    const int32_t id = value.get<int32_t>();
    if (static_cast<size_t>(id) >= taken.size()) taken.resize(id + 1);
    if (taken[id]) {
      return node.Error(absl::StrCat("id ", id, " is given to \"", vocabulary.Token(id),
                                     "\" and to \"", token, "\""));
    }
    taken[id] = true;
    vocabulary.Set(token, id);
  }
  return vocabulary;
}

Vocabulary Vocabulary::FromLines(absl::string_view text, const std::string& path,
                                 std::vector<std::string>* warnings) {
  Vocabulary vocabulary;
  for (int32_t id = 0; !text.empty(); ++id) {
    const size_t end = text.find('\n');
    absl::string_view line = text.substr(0, end);
    text.remove_prefix(end == absl::string_view::npos ? text.size() : end + 1);
    while (!line.empty()) {
      const size_t last = PreviousCharacter(line, line.size());
      size_t next = last;
      if (!(CharClasses()[NextCodePoint(line, &next)] & kSpace)) break;
      line = line.substr(0, last);
    }
    const int32_t earlier = vocabulary.Id(line);
    if (earlier >= 0 && warnings != nullptr) {
      warnings->push_back(absl::StrCat(path, ":", id + 1, ": \"", line, "\" stands in line ",
                                       earlier + 1, " already; id ", earlier, " is never used"));
    }
    vocabulary.Set(std::string(line), id);
  }
  return vocabulary;
}

Vocabulary Vocabulary::FromTokens(const std::vector<std::string>& tokens) {
  Vocabulary vocabulary;
  for (size_t i = 0; i < tokens.size(); ++i) vocabulary.Set(tokens[i], static_cast<int32_t>(i));
  return vocabulary;
}

}  // namespace tranche
