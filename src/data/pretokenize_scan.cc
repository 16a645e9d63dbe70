#include "data/pretokenize_scan.h"

#include <array>

#include "data/unicode.h"

namespace tranche {
namespace {

constexpr absl::string_view kGpt2Text =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kCl100kText =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kQwen2Text =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kO200kText =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr uint8_t kNeitherOf = kLetter | kNumber | kSpace;  // none of these: [^\s\p{L}\p{N}]

const std::array<uint8_t, 128>& AsciiClasses() {
  static const auto& classes = *new std::array<uint8_t, 128>([] {
    std::array<uint8_t, 128> bits;
    for (uint32_t c = 0; c < 128; ++c) bits[c] = CharClasses()[c];
    return bits;
  }());
  return classes;
}

// One text and the classes of its characters.
class Cursor {
 public:
  explicit Cursor(absl::string_view text) : text_(text) {}

  size_t size() const { return text_.size(); }
  char operator[](size_t position) const { return text_[position]; }

  // Class of the character at `position`, and in *next where the one behind it starts.
  uint8_t Class(size_t position, size_t* next) const {
    const auto byte = static_cast<unsigned char>(text_[position]);
    if (byte < 0x80) {
      *next = position + 1;
      return ascii_[byte];
    }
    *next = position;
    const uint32_t code_point = NextCodePoint(text_, next);
    return classes_[code_point];
  }

  // End of the run, from `position` on, of characters with a bit of `wanted` (or without any bit of
  // `unwanted`).
  template <uint8_t wanted, uint8_t unwanted>
  size_t Run(size_t position) const {
    const auto belongs = [](uint8_t bits) {
      return wanted != 0 ? (bits & wanted) != 0 : (bits & unwanted) == 0;
    };
    while (position < text_.size()) {
      const auto byte = static_cast<unsigned char>(text_[position]);
      if (byte < 0x80) {
        if (!belongs(ascii_[byte])) break;
        ++position;
      } else {
        size_t next = position;
        if (!belongs(classes_[NextCodePoint(text_, &next)])) break;
        position = next;
      }
    }
    return position;
  }
  size_t Letters(size_t position) const { return Run<kLetter, 0>(position); }
  size_t Numbers(size_t position) const { return Run<kNumber, 0>(position); }
  size_t Spaces(size_t position) const { return Run<kSpace, 0>(position); }
  size_t Others(size_t position) const { return Run<0, kNeitherOf>(position); }

  // \s+(?!\S)|\s+ where `end` is the end of the run of spaces: its last character is left to what
  // follows.
  size_t SpacesBefore(size_t position, size_t end) const {
    if (end == text_.size()) return end;
    const size_t last = PreviousCharacter(text_, end);
    return last > position ? last : end;
  }

  // End of 's 't 're 've 'm 'll 'd at `position`, or `position` where there is none.
  template <bool ignore_case>
  size_t Contraction(size_t position) const {
    if (position + 1 >= text_.size() || text_[position] != '\'') return position;
    const auto lower = [&](size_t at) -> char {
      const char c = at < text_.size() ? text_[at] : '\0';
      return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    switch (lower(position + 1)) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return position + 2;
      case 'r':
      case 'v':
        return lower(position + 2) == 'e' ? position + 3 : position;
      case 'l':
        return lower(position + 2) == 'l' ? position + 3 : position;
      case '\xC5':  // U+017F, the long s, is an s without its case
        return ignore_case && lower(position + 2) == '\xBF' ? position + 3 : position;
      default:
        return position;
    }
  }

  // \s*[\r\n]+ within the run of spaces that ends at `end`, or `position` where the run holds no
  // line end.
  size_t ThroughLastLineEnd(size_t position, size_t end) const {
    while (end > position && text_[end - 1] != '\n' && text_[end - 1] != '\r') --end;
    return end;
  }

 private:
  const std::array<uint8_t, 128>& ascii_ = AsciiClasses();
  const absl::string_view text_;
  const CodePointTable& classes_ = CharClasses();
};

size_t NextGpt2(const Cursor& text, size_t position) {
  const char first = text[position];
  if (first == '\'') {
    const size_t end = text.Contraction<false>(position);
    if (end != position) return end;
  }
  size_t start = position;
  if (first == ' ' && position + 1 < text.size()) ++start;
  size_t next;
  const uint8_t bits = text.Class(start, &next);
  if (bits & kLetter) return text.Letters(next);
  if (bits & kNumber) return text.Numbers(next);
  if (!(bits & kSpace)) return text.Others(next);
  return text.SpacesBefore(position, text.Spaces(next));
}

// What cl100k, Qwen2 and o200k share behind their words: `
// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`.
size_t NextMarksOrSpaces(const Cursor& text, size_t position, bool slash_ends_line) {
  size_t start = position;
  if (text[position] == ' ' && position + 1 < text.size()) ++start;
  size_t next;
  const uint8_t bits = text.Class(start, &next);
  if (!(bits & kNeitherOf)) {
    size_t end = text.Others(next);
    while (end < text.size() &&
           (text[end] == '\r' || text[end] == '\n' || (slash_ends_line && text[end] == '/')))
      ++end;
    return end;
  }
  const size_t run = text.Spaces(position);
  const size_t line = text.ThroughLastLineEnd(position, run);
  return line > position ? line : text.SpacesBefore(position, run);
}

size_t NextNumber(const Cursor& text, size_t position, int most) {
  for (; most > 0 && position < text.size(); --most) {
    size_t next;
    if (!(text.Class(position, &next) & kNumber)) break;
    position = next;
  }
  return position;
}

size_t NextCl100k(const Cursor& text, size_t position, int most_digits) {
  const char first = text[position];
  if (first == '\'') {
    const size_t end = text.Contraction<true>(position);
    if (end != position) return end;
  }
  size_t next;
  const uint8_t bits = text.Class(position, &next);
  if (bits & kLetter) return text.Letters(next);
  if (bits & kNumber) return NextNumber(text, position, most_digits);
  if (first != '\r' && first != '\n' && next < text.size()) {
    size_t behind;
    if (text.Class(next, &behind) & kLetter) return text.Letters(behind);
  }
  return NextMarksOrSpaces(text, position, false);
}

// [U]*[l]+ from `position`, where the two sets share some characters; `position` where it does not
// match.
size_t CapitalsThenSmall(const Cursor& text, absl::string_view whole, size_t position) {
  const size_t capitals = text.Run<kUpperLike, 0>(position);
  const size_t end = text.Run<kLowerLike, 0>(capitals);
  if (end > capitals) return end;
  // Give back characters until the last one taken may count as a small letter.
  for (size_t at = capitals; at > position;) {
    const size_t behind = at;
    at = PreviousCharacter(whole, at);
    size_t next;
    if (text.Class(at, &next) & kLowerLike) return behind;
  }
  return position;
}

size_t NextO200k(const Cursor& text, absl::string_view whole, size_t position) {
  const char first = text[position];
  size_t next;
  const uint8_t bits = text.Class(position, &next);
  if (bits & kNumber) return NextNumber(text, position, 3);
  const bool prefix = first != '\r' && first != '\n' && !(bits & kLetter);
  const bool word = (bits & (kUpperLike | kLowerLike)) != 0;
  const auto with_contraction = [&](size_t end) { return text.Contraction<true>(end); };
  size_t end;
  if (prefix && next < text.size() && (end = CapitalsThenSmall(text, whole, next)) != next)
    return with_contraction(end);
  if (word && (end = CapitalsThenSmall(text, whole, position)) != position)
    return with_contraction(end);
  if (prefix && (end = text.Run<kUpperLike, 0>(next)) != next) return with_contraction(end);
  if (word && (end = text.Run<kUpperLike, 0>(position)) != position) return with_contraction(end);
  return NextMarksOrSpaces(text, position, true);
}

}  // namespace

ScanPattern RecognisePattern(absl::string_view regex) {
  for (const ScanPattern pattern :
       {ScanPattern::kGpt2, ScanPattern::kCl100k, ScanPattern::kQwen2, ScanPattern::kO200k}) {
    if (PatternText(pattern) == regex) return pattern;
  }
  return ScanPattern::kNone;
}

absl::string_view PatternText(ScanPattern pattern) {
  switch (pattern) {
    case ScanPattern::kNone:
      return "";
    case ScanPattern::kGpt2:
      return kGpt2Text;
    case ScanPattern::kCl100k:
      return kCl100kText;
    case ScanPattern::kQwen2:
      return kQwen2Text;
    case ScanPattern::kO200k:
      return kO200kText;
  }
  return "";
}

size_t ScanEnds(ScanPattern pattern, absl::string_view text, size_t position, size_t* ends,
                size_t capacity) {
  const Cursor cursor(text);
  const auto scan = [&](auto next) {
    size_t count = 0;
    for (; count < capacity && position < text.size(); ++count)
      ends[count] = position = next(position);
    return count;
  };
  switch (pattern) {
    case ScanPattern::kNone:
      break;
    case ScanPattern::kGpt2:
      return scan([&](size_t at) { return NextGpt2(cursor, at); });
    case ScanPattern::kCl100k:
      return scan([&](size_t at) { return NextCl100k(cursor, at, 3); });
    case ScanPattern::kQwen2:
      return scan([&](size_t at) { return NextCl100k(cursor, at, 1); });
    case ScanPattern::kO200k:
      return scan([&](size_t at) { return NextO200k(cursor, text, at); });
  }
  return 0;
}

}  // namespace tranche
