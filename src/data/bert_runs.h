// Cuts raw text where BERT's normalizer and pre-tokenizer part words whatever stands beside: at
// ASCII white space, which vanishes, and around ASCII punctuation and ideographs. What lies between
// is a run, mostly one word, that may be normalized and cut further by itself: accents, controls
// and other characters act on their own run only. Runs come again and again, so their ids are worth
// keeping; whole normalized texts are not.
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace tranche {

// Calls run(begin, end) for every run of valid UTF-8 `text`, in order, none empty.
// ideographs_apart: handle_chinese_chars of the normalizer.
void ForEachBertRun(absl::string_view text, bool ideographs_apart,
                    absl::FunctionRef<void(size_t begin, size_t end)> run);

}  // namespace tranche
