#include "data/tokenizer_added.h"

#include <algorithm>

#include "data/unicode.h"

namespace tranche {
namespace {

bool HasClass(absl::string_view text, size_t position, uint8_t bits) {
  return (CharClasses()[NextCodePoint(text, &position)] & bits) != 0;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens)
    : token_at_(1, -1), second_(65536, 0) {
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    int32_t node = 0;
    for (size_t i = 0; i < token.content.size(); ++i) {
      const auto byte = static_cast<unsigned char>(token.content[i]);
      const uint64_t key = static_cast<uint64_t>(node) << 8 | byte;
      const auto [child, is_new] = children_.emplace(key, static_cast<int32_t>(token_at_.size()));
      if (is_new) token_at_.push_back(-1);
      node = child->second;
      if (i == 1) second_[static_cast<unsigned char>(token.content[0]) << 8 | byte] = node;
    }
    if (token_at_[node] >= 0) continue;
    token_at_[node] = static_cast<int32_t>(tokens_.size());
    first_[static_cast<unsigned char>(token.content[0])] |=
        token.content.size() == 1 ? kStarts | kAlone : kStarts;
    tokens_.push_back(token);
  }
}

int32_t AddedTokenMatcher::Child(int32_t node, unsigned char byte) const {
  const auto child = children_.find(static_cast<uint64_t>(node) << 8 | byte);
  return child == children_.end() ? 0 : child->second;
}

const AddedToken* AddedTokenMatcher::Find(absl::string_view input, size_t from, size_t* begin,
                                          size_t* end) const {
  if (tokens_.empty()) return nullptr;
  const auto* bytes = reinterpret_cast<const unsigned char*>(input.data());
  for (size_t start = from; start < input.size(); ++start) {
    const uint8_t first = first_[bytes[start]];
    if (first == 0) continue;
    int32_t best = -1;
    size_t best_end = 0;
    if (first & kAlone) {
      best = token_at_[Child(0, bytes[start])];
      best_end = start + 1;
    }
    if (start + 1 < input.size()) {
      size_t at = start + 2;
      for (int32_t node = second_[bytes[start] << 8 | bytes[start + 1]]; node != 0;
           node = Child(node, bytes[at++])) {
        if (token_at_[node] >= 0) {
          best = token_at_[node];
          best_end = at;
        }
        if (at == input.size()) break;
      }
    }
    if (best >= 0) {
      *begin = start;
      *end = best_end;
      return &tokens_[best];
    }
  }
  return nullptr;
}

bool AddedTokenMatcher::Accept(const AddedToken& token, absl::string_view input, size_t done,
                               size_t* begin, size_t* end) {
  if (token.single_word) {
    if (*begin > 0 && HasClass(input, PreviousCharacter(input, *begin), kWordChar)) return false;
    if (*end < input.size() && HasClass(input, *end, kWordChar)) return false;
  }
  if (token.lstrip) {
    size_t left = *begin;
    while (left > done && HasClass(input, PreviousCharacter(input, left), kSpace))
      left = PreviousCharacter(input, left);
    *begin = std::max(left, done);
  }
  if (token.rstrip) {
    while (*end < input.size() && HasClass(input, *end, kSpace)) *end += Utf8Length(input[*end]);
  }
  return true;
}

}  // namespace tranche
