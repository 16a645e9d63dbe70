// Code points and their properties, as the reference `tokenizers` library sees them (it mixes
// tables of several Unicode versions; each function says which). All of it stands on ICU plus the
// corrections that shared/fixtures/tokenizers/README.md measured.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tranche {

// Bits of a code point's class in splitting patterns (Unicode 16).
enum CharClass : uint8_t {
  kLetter = 1,      // \p{L}
  kNumber = 2,      // \p{N}
  kSpace = 4,       // White_Space: \s
  kUpperLike = 8,   // \p{Lu} \p{Lt} \p{Lm} \p{Lo} \p{M}
  kLowerLike = 16,  // \p{Ll} \p{Lm} \p{Lo} \p{M}
  kWordChar = 32,   // \w: Alphabetic, \p{M}, \p{Nd}, \p{Pc}, Join_Control
  kOldMark = 64,    // \p{M} of Unicode 9: what StripAccents drops
};

// Bits of a code point's class in BERT's normalizer and pre-tokenizer (Unicode 8, as the library's
// own tables have it).
enum BertClass : uint8_t {
  kBertControl = 1,      // Cc, Cf, Co
  kBertNonspacing = 2,   // Mn
  kBertPunctuation = 4,  // ASCII punctuation and symbols, and category P*
  kBertSpace = 8,        // White_Space
  kBertIdeograph = 16,   // set apart by spaces
};

// Two-level table from code point (0 … 0x10FFFF) to a byte.
class CodePointTable {
 public:
  uint8_t operator[](uint32_t code_point) const {
    return bytes_[(block_[code_point >> 8] << 8) | (code_point & 255)];
  }

 private:
  friend class CodePointTableBuilder;
  uint16_t block_[0x1100] = {};
  std::string bytes_;
};

const CodePointTable& CharClasses();
const CodePointTable& BertClasses();

// Decodes the code point at *position of valid UTF-8 and moves *position behind it. text must hold
// a whole character there.
inline uint32_t NextCodePoint(absl::string_view text, size_t* position) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[*position + i]));
  };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return *position += 1, lead;
  uint32_t code_point;
  if (lead < 0xE0) {
    code_point = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
    *position += 2;
  } else if (lead < 0xF0) {
    code_point = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    *position += 3;
  } else {
    code_point =
        (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    *position += 4;
  }
  return code_point;
}

// Bytes of the character that starts with this byte.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Where the character before `position` (> 0) starts.
inline size_t PreviousCharacter(absl::string_view text, size_t position) {
  do {
    --position;
  } while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80);
  return position;
}

void AppendUtf8(uint32_t code_point, std::string* out);
bool IsAscii(absl::string_view text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Appends the normal form of `text` to *out. The library's tables end at Unicode 11: younger
// characters stay as they are.
void AppendNormalized(NormalForm form, absl::string_view text, std::string* out);

// Appends the full lower-case mapping of one code point, without the rule for a final sigma.
void AppendLower(uint32_t code_point, std::string* out);

// The stand-ins of byte-level BPE: each byte as a printable character ("Ġ" for the space).
const std::string& ByteToStandIn(uint8_t byte);
// The byte a stand-in means, or -1.
int StandInToByte(uint32_t code_point);

}  // namespace tranche
