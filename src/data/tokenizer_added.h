// Added tokens: fixed texts that are found before anything else is done to the text, the longest of
// those that start first.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace tranche {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space on its left (right) with it
  bool rstrip = false;
  bool normalized = true;  // its normalized form is looked for in the normalized text
  bool special = false;
};

class AddedTokenMatcher {
 public:
  // `tokens` with the text to look for in `content`; empty ones are left out, of equal ones the
  // first counts.
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);

  bool empty() const { return tokens_.empty(); }

  // Calls text(begin, end) for what lies between tokens (never empty) and token(id) for tokens, in
  // order.
  template <typename Text, typename Token>
  void Split(absl::string_view input, Text text, Token token) const {
    size_t done = 0;
    for (size_t from = 0, begin, end; const AddedToken *match = Find(input, from, &begin, &end);) {
      from = end;
      if (!Accept(*match, input, done, &begin, &end)) continue;
      if (done < begin) text(done, begin);
      token(match->id);
      done = end;
    }
    if (done < input.size()) text(done, input.size());
  }

 private:
  // The longest token at the first place at or after `from` where one starts.
  const AddedToken* Find(absl::string_view input, size_t from, size_t* begin, size_t* end) const;
  // False where its neighbours forbid the match; widens it over white space. `done`: end of the
  // token before.
  static bool Accept(const AddedToken& token, absl::string_view input, size_t done, size_t* begin,
                     size_t* end);
  int32_t Child(int32_t node, unsigned char byte) const;

  enum FirstByte : uint8_t { kStarts = 1, kAlone = 2 };

  std::vector<AddedToken> tokens_;
  // A trie: (node, byte) -> node; token_at_[node] indexes tokens_ or is -1.
  absl::flat_hash_map<uint64_t, int32_t> children_;
  std::vector<int32_t> token_at_;
  std::vector<int32_t> second_;  // [65536] by two bytes: the node behind them, 0 where none is
  std::array<uint8_t, 256>
      first_{};  // by byte: whether a token starts with it, whether it is a token alone
};

}  // namespace tranche
