// Choosing the tokens of masked language modelling: each with probability p, of the chosen 80 %
// become [MASK], 10 % a random id and 10 % stay (Devlin et al., "BERT", 2019, section 3.1). Every
// decision is a function of (key, sample, row) alone.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "data/tokenizer.h"

namespace tranche {

class TokenMasker {
 public:
  // Ids at or above `rows` are never inserted. whole_word: a word (a token and those that continue
  // it) is chosen as one; what becomes of each of its tokens is drawn by itself. limit: the most
  // tokens to choose in a sample; a word that does not fit is passed over.
  TokenMasker(const Tokenizer& tokenizer, int64_t rows, double probability, bool whole_word,
              int64_t limit);

  // Ids that can be inserted. Without any, 10 % more become [MASK].
  int64_t num_insertable() const { return static_cast<int64_t>(insertable_.size()); }

  // ids: all rows of a sample, masked in place where chosen; appends i + row_offset to *rows and
  // the right id to *labels for each chosen row i. Special ids are never chosen.
  void Apply(uint64_t key, uint64_t sample, int32_t row_offset, absl::Span<int32_t> ids,
             std::vector<int32_t>* rows, std::vector<int32_t>* labels) const;

 private:
  enum Kind : uint8_t { kBeginsWord, kContinuesWord, kSpecial };
  Kind KindOf(int32_t id) const {
    return static_cast<size_t>(id) < kinds_.size() ? kinds_[static_cast<size_t>(id)] : kSpecial;
  }

  const int32_t mask_id_;
  const uint64_t threshold_;  // of 32 random bits
  const bool whole_word_;
  const int64_t limit_;
  std::vector<Kind> kinds_;
  std::vector<int32_t> insertable_;
};

// The limit that BatchBounds plans with: far above the mean (six standard deviations, more with
// whole words), so that in practice no token is passed over. Rows of a sample in, at most that many
// out.
int64_t MaskLimit(int64_t rows, double probability, bool whole_word);

}  // namespace tranche
