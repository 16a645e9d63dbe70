// Compares a tokenizer with what the reference library answered.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/tokenizer.h"

namespace tranche {

struct TokenizerVerdict {
  int64_t lines = 0;
  int64_t equal_lines = 0;
  // Lines in which this differs.
  int64_t ids = 0, ids_with_special = 0, decoded = 0;
  // The first differences, for people: "FILE:LINE (kind): ids: at 3: expected 12 \"ab\", got 13
  // \"cd\"; text: …".
  std::vector<std::string> differences;
};

// `goldens`: JSON Lines with text, ids and optionally ids_with_special, decoded, kind
// (shared/fixtures/tokenizers/README.md says what each is). Errors: an unreadable file, a line that
// is not such an object (with its number), no line at all.
absl::StatusOr<TokenizerVerdict> VerifyTokenizer(const Tokenizer& tokenizer,
                                                 const std::string& goldens,
                                                 int max_differences = 10);

}  // namespace tranche
