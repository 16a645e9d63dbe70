#include "data/masking.h"

#include <algorithm>
#include <cmath>

#include "absl/numeric/int128.h"
#include "base/rng.h"

namespace tranche {

TokenMasker::TokenMasker(const Tokenizer& tokenizer, int64_t rows, double probability,
                         bool whole_word, int64_t limit)
    : mask_id_(tokenizer.specials().mask),
      threshold_(static_cast<uint64_t>(std::llround(probability * 0x1p32))),
      whole_word_(whole_word),
      limit_(limit) {
  kinds_.resize(static_cast<size_t>(tokenizer.vocab_size()), kBeginsWord);
  const Tokenizer::Specials& specials = tokenizer.specials();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const int32_t named[] = {specials.bos,  specials.eos, specials.pad, specials.unk,
                             specials.mask, specials.cls, specials.sep};
    const bool special = tokenizer.IsSpecial(id) ||
                         std::find(std::begin(named), std::end(named), id) != std::end(named);
    if (special) {
      kinds_[static_cast<size_t>(id)] = kSpecial;
      continue;
    }
    if (tokenizer.ContinuesWord(id)) kinds_[static_cast<size_t>(id)] = kContinuesWord;
    // Holes in the vocabulary have no token.
    if (id < rows && !tokenizer.IdToToken(id).empty()) insertable_.push_back(id);
  }
}

void TokenMasker::Apply(uint64_t key, uint64_t sample, int32_t row_offset, absl::Span<int32_t> ids,
                        std::vector<int32_t>* rows, std::vector<int32_t>* labels) const {
  int64_t chosen = 0;
  for (size_t begin = 0, end; begin < ids.size(); begin = end) {
    end = begin + 1;
    if (KindOf(ids[begin]) == kSpecial) continue;
    while (whole_word_ && end < ids.size() && KindOf(ids[end]) == kContinuesWord) ++end;
    auto draw = Philox(key, begin, sample);
    if (draw[0] >= threshold_ || chosen + static_cast<int64_t>(end - begin) > limit_) continue;
    chosen += static_cast<int64_t>(end - begin);
    for (size_t i = begin; i < end; ++i) {
      if (i > begin) draw = Philox(key, i, sample);
      rows->push_back(row_offset + static_cast<int32_t>(i));
      labels->push_back(ids[i]);
      const double kind = draw[1] * 0x1p-32;
      if (kind >= 0.9) continue;
      ids[i] = mask_id_;
      if (kind >= 0.8 && !insertable_.empty()) {
        const uint64_t bits = (uint64_t{draw[3]} << 32) | draw[2];
        ids[i] = insertable_[absl::Uint128High64(absl::uint128(bits) * insertable_.size())];
      }
    }
  }
}

int64_t MaskLimit(int64_t rows, double probability, bool whole_word) {
  const double n = static_cast<double>(rows),
               deviation = std::sqrt(n * probability * (1 - probability));
  const double limit = n * probability + 6 * deviation * (whole_word ? 4 : 1) + 8;
  return std::min(rows, static_cast<int64_t>(std::ceil(limit)));
}

}  // namespace tranche
