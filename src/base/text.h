// Small text helpers: UTF-8 validation and nearest names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tranche {

// Offset of the first byte that is not part of valid UTF-8 (overlong forms, surrogates and values
// above U+10FFFF are invalid), or nothing where all of it is valid.
std::optional<size_t> FindInvalidUtf8(absl::string_view text);

// Copies text with each maximal invalid sequence replaced by U+FFFD; adds their number to
// *replaced.
std::string ReplaceInvalidUtf8(absl::string_view text, int64_t* replaced);

// Levenshtein distance with transpositions of neighbours counted as one.
int EditDistance(absl::string_view a, absl::string_view b);

// The candidate nearest to `name`, or nothing where none is near enough to be a likely typo.
std::optional<std::string> NearestName(absl::string_view name,
                                       const std::vector<std::string>& candidates);

// " (did you mean \"x\"?)" or "".
std::string DidYouMean(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace tranche
