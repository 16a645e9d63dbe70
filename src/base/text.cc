#include "base/text.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tranche {
namespace {

// Length of the valid UTF-8 sequence at the start of `text` (1..4), or minus the number of bytes of
// a maximal invalid prefix.
int SequenceLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto tail = [&](size_t i, int low = 0x80, int high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const int b = byte(0);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF) return tail(1) ? 2 : -1;
  if (b >= 0xE0 && b <= 0xEF) {
    if (!tail(1, b == 0xE0 ? 0xA0 : 0x80, b == 0xED ? 0x9F : 0xBF)) return -1;
    return tail(2) ? 3 : -2;
  }
  if (b >= 0xF0 && b <= 0xF4) {
    if (!tail(1, b == 0xF0 ? 0x90 : 0x80, b == 0xF4 ? 0x8F : 0xBF)) return -1;
    if (!tail(2)) return -2;
    return tail(3) ? 4 : -3;
  }
  return -1;
}

// Skips eight ASCII bytes at a time.
size_t SkipAscii(absl::string_view text, size_t i) {
  while (i + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) break;
    i += 8;
  }
  return i;
}

}  // namespace

std::optional<size_t> FindInvalidUtf8(absl::string_view text) {
  size_t i = SkipAscii(text, 0);
  while (i < text.size()) {
    const int length = SequenceLength(text.substr(i));
    if (length < 0) return i;
    i += static_cast<size_t>(length);
    if (length == 1) i = SkipAscii(text, i);
  }
  return std::nullopt;
}

std::string ReplaceInvalidUtf8(absl::string_view text, int64_t* replaced) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto bad = FindInvalidUtf8(text);
    out.append(text.data(), bad.value_or(text.size()));
    if (!bad) break;
    text.remove_prefix(*bad);
    out.append("\xEF\xBF\xBD");
    ++*replaced;
    text.remove_prefix(static_cast<size_t>(-SequenceLength(text)));
  }
  return out;
}

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

std::optional<std::string> NearestName(absl::string_view name,
                                       const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  int best_distance = static_cast<int>(std::max<size_t>(1, name.size() / 3)) + 1;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string DidYouMean(absl::string_view name, const std::vector<std::string>& candidates) {
  const auto nearest = NearestName(name, candidates);
  return nearest ? absl::StrCat(" (did you mean \"", *nearest, "\"?)") : "";
}

}  // namespace tranche
