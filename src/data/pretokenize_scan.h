// Hand-written scanners for the splitting patterns of byte-level BPE in use. Each gives, for valid
// UTF-8 text, exactly the matches of its pattern; these patterns match everywhere, so the matches
// cover the text.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace tranche {

enum class ScanPattern {
  kNone,    // not known here: Oniguruma runs it
  kGpt2,    // GPT-2, phi-1 … phi-2, RoBERTa, ModernBERT
  kCl100k,  // Llama-3, phi-4
  kQwen2,   // as kCl100k with single digits
  kO200k,   // Phi-4-mini
};

// The pattern as tokenizer files spell it, and back. Unknown spellings are kNone.
ScanPattern RecognisePattern(absl::string_view regex);
absl::string_view PatternText(ScanPattern pattern);

// Ends of the matches that start at `position` (where the match before ended): as many as there
// are, at most `capacity`. Returns their number; 0 only where position is text.size(). `pattern`
// must not be kNone.
size_t ScanEnds(ScanPattern pattern, absl::string_view text, size_t position, size_t* ends,
                size_t capacity);

// Calls sink(begin, end) for every match, in order.
template <typename Sink>
void ScanAll(ScanPattern pattern, absl::string_view text, Sink sink) {
  constexpr size_t kBatch = 64;
  size_t ends[kBatch];
  size_t begin = 0;
  while (const size_t count = ScanEnds(pattern, text, begin, ends, kBatch)) {
    for (size_t i = 0; i < count; ++i) {
      sink(begin, ends[i]);
      begin = ends[i];
    }
  }
}

}  // namespace tranche
