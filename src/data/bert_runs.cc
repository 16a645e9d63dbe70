#include "data/bert_runs.h"

#include <array>

#include "data/unicode.h"

namespace tranche {
namespace {

enum Kind : uint8_t { kInside, kBlank, kMark, kMayBeIdeograph };

std::array<Kind, 256> MakeKinds() {
  std::array<Kind, 256> kinds{};
  for (uint32_t c = 0; c < 128; ++c) {
    if (BertClasses()[c] & kBertPunctuation) kinds[c] = kMark;
  }
  for (const unsigned char c : {' ', '\t', '\n', '\r'}) kinds[c] = kBlank;
  for (uint32_t c = 0x800; c < 0x110000; ++c) {
    if (!(BertClasses()[c] & kBertIdeograph)) continue;
    kinds[c < 0x10000 ? 0xE0 | c >> 12 : 0xF0 | c >> 18] = kMayBeIdeograph;
  }
  return kinds;
}

}  // namespace

void ForEachBertRun(absl::string_view text, bool ideographs_apart,
                    absl::FunctionRef<void(size_t begin, size_t end)> run) {
  static const auto& kinds = *new std::array<Kind, 256>(MakeKinds());
  const CodePointTable& classes = BertClasses();
  size_t begin = 0;
  for (size_t position = 0; position < text.size();) {
    const Kind kind = kinds[static_cast<unsigned char>(text[position])];
    if (kind == kInside) {
      ++position;
      continue;
    }
    size_t next = position + 1;
    if (kind == kMayBeIdeograph) {
      next = position;
      if (!(classes[NextCodePoint(text, &next)] & kBertIdeograph) || !ideographs_apart) {
        position = next;
        continue;
      }
    }
    if (position > begin) run(begin, position);
    if (kind != kBlank) run(position, next);
    begin = position = next;
  }
  if (begin < text.size()) run(begin, text.size());
}

}  // namespace tranche
