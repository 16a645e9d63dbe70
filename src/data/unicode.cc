#include "data/unicode.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/ustring.h>

#include <array>
#include <map>
#include <vector>

#include "base/check.h"

namespace tranche {

class CodePointTableBuilder {
 public:
  CodePointTableBuilder() : values_(0x110000, 0) {}
  uint8_t& operator[](uint32_t code_point) { return values_[code_point]; }

  CodePointTable Build() const {
    CodePointTable table;
    std::map<std::string, uint16_t> seen;
    for (uint32_t block = 0; block < 0x1100; ++block) {
      const std::string bytes(values_.begin() + block * 256, values_.begin() + (block + 1) * 256);
      const auto [entry, is_new] = seen.emplace(bytes, static_cast<uint16_t>(seen.size()));
      if (is_new) table.bytes_ += bytes;
      table.block_[block] = entry->second;
    }
    return table;
  }

 private:
  std::vector<uint8_t> values_;
};

namespace {

template <typename Visit>  // Visit(code point, general category)
void ForEachCategory(Visit visit) {
  const auto range = [](const void* context, UChar32 start, UChar32 limit,
                        UCharCategory category) -> UBool {
    for (UChar32 c = start; c < limit; ++c)
      (*static_cast<const Visit*>(context))(static_cast<uint32_t>(c), category);
    return true;
  };
  u_enumCharTypes(range, &visit);
}

// True where the character was assigned in that version of Unicode or before.
bool AssignedBy(uint32_t code_point, int major, int minor) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(code_point), age);
  return age[0] != 0 && (age[0] < major || (age[0] == major && age[1] <= minor));
}

// What Unicode 15.1 to 17 added, for an ICU older than that: the library's patterns know Unicode
// 16, its lower case 17.
struct YoungRange {
  uint32_t first, last;
  uint8_t bits;
};
constexpr uint8_t kYoungLetter = kLetter | kWordChar | kUpperLike | kLowerLike,
                  kYoungNumber = kNumber;
constexpr uint8_t kYoungCapital = kLetter | kWordChar | kUpperLike,
                  kYoungSmall = kLetter | kWordChar | kLowerLike;
constexpr uint8_t kYoungMark = kWordChar | kUpperLike | kLowerLike;
constexpr YoungRange kYoungRanges[] = {{0x897, 0x897, kYoungMark},
                                       {0x1C89, 0x1C89, kYoungCapital},
                                       {0x1C8A, 0x1C8A, kYoungSmall},
                                       {0xA7CB, 0xA7CC, kYoungCapital},
                                       {0xA7CD, 0xA7CD, kYoungSmall},
                                       {0xA7DA, 0xA7DA, kYoungCapital},
                                       {0xA7DB, 0xA7DB, kYoungSmall},
                                       {0xA7DC, 0xA7DC, kYoungCapital},
                                       {0x105C0, 0x105F3, kYoungLetter},
                                       {0x10D40, 0x10D49, kYoungNumber | kWordChar},
                                       {0x10D4A, 0x10D4F, kYoungLetter},
                                       {0x10D50, 0x10D65, kYoungCapital},
                                       {0x10D69, 0x10D6D, kYoungMark},
                                       {0x10D6F, 0x10D6F, kYoungLetter},
                                       {0x10D70, 0x10D85, kYoungSmall},
                                       {0x10EC2, 0x10EC4, kYoungLetter},
                                       {0x10EFC, 0x10EFC, kYoungMark},
                                       {0x11380, 0x11389, kYoungLetter},
                                       {0x1138B, 0x1138B, kYoungLetter},
                                       {0x1138E, 0x1138E, kYoungLetter},
                                       {0x11390, 0x113B5, kYoungLetter},
                                       {0x113B7, 0x113B7, kYoungLetter},
                                       {0x113B8, 0x113C0, kYoungMark},
                                       {0x113C2, 0x113C2, kYoungMark},
                                       {0x113C5, 0x113C5, kYoungMark},
                                       {0x113C7, 0x113CA, kYoungMark},
                                       {0x113CC, 0x113D0, kYoungMark},
                                       {0x113D1, 0x113D1, kYoungLetter},
                                       {0x113D2, 0x113D2, kYoungMark},
                                       {0x113D3, 0x113D3, kYoungLetter},
                                       {0x113E1, 0x113E2, kYoungMark},
                                       {0x116D0, 0x116E3, kYoungNumber | kWordChar},
                                       {0x11BC0, 0x11BE0, kYoungLetter},
                                       {0x11BF0, 0x11BF9, kYoungNumber | kWordChar},
                                       {0x11F5A, 0x11F5A, kYoungMark},
                                       {0x13460, 0x143FA, kYoungLetter},
                                       {0x16100, 0x1611D, kYoungLetter},
                                       {0x1611E, 0x1612F, kYoungMark},
                                       {0x16130, 0x16139, kYoungNumber | kWordChar},
                                       {0x16D40, 0x16D6C, kYoungLetter},
                                       {0x16D70, 0x16D79, kYoungNumber | kWordChar},
                                       {0x18CFF, 0x18CFF, kYoungLetter},
                                       {0x1CCF0, 0x1CCF9, kYoungNumber | kWordChar},
                                       {0x1E5D0, 0x1E5ED, kYoungLetter},
                                       {0x1E5EE, 0x1E5EF, kYoungMark},
                                       {0x1E5F0, 0x1E5F0, kYoungLetter},
                                       {0x1E5F1, 0x1E5FA, kYoungNumber | kWordChar},
                                       {0x2EBF0, 0x2EE5D, kYoungLetter}};

// Runs of capitals that Unicode 16 and 17 added, and the small letter of the first.
struct YoungCase {
  uint32_t first, last, lower;
};
constexpr YoungCase kYoungCases[] = {{0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x264},
                                     {0xA7CC, 0xA7CC, 0xA7CD},    {0xA7CE, 0xA7CE, 0xA7CF},
                                     {0xA7D2, 0xA7D2, 0xA7D3},    {0xA7D4, 0xA7D4, 0xA7D5},
                                     {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x19B},
                                     {0x10D50, 0x10D65, 0x10D70}, {0x16EA0, 0x16EB8, 0x16EBB}};

CodePointTable BuildCharClasses() {
  CodePointTableBuilder table;
  for (const YoungRange& range : kYoungRanges) {
    for (uint32_t c = range.first; c <= range.last; ++c) table[c] = range.bits;
  }
  ForEachCategory([&](uint32_t c, UCharCategory category) {
    if (category == U_UNASSIGNED) return;
    const uint32_t mask = U_MASK(category);
    uint8_t bits = 0;
    if (mask & U_GC_L_MASK) bits |= kLetter;
    if (mask & U_GC_N_MASK) bits |= kNumber;
    if (mask & (U_GC_LU_MASK | U_GC_LT_MASK | U_GC_LM_MASK | U_GC_LO_MASK | U_GC_M_MASK))
      bits |= kUpperLike;
    if (mask & (U_GC_LL_MASK | U_GC_LM_MASK | U_GC_LO_MASK | U_GC_M_MASK)) bits |= kLowerLike;
    if ((mask & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) || (mask & U_GC_L_MASK))
      bits |= kWordChar;
    if (u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE)) bits |= kSpace;
    if (u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_ALPHABETIC) || c == 0x200C ||
        c == 0x200D)
      bits |= kWordChar;
    // StripAccents knows the marks of Unicode 9; U+111C9 became one later, U+1CF2 and U+1CF3 were
    // marks then.
    if ((mask & U_GC_M_MASK) && AssignedBy(c, 9, 0) && c != 0x111C9) bits |= kOldMark;
    if (c == 0x1CF2 || c == 0x1CF3) bits |= kOldMark;
    table[c] = bits;
  });
  return table.Build();
}

bool IsIdeograph(uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B81F) ||
         (c >= 0x2B920 &&
          c <= 0x2CEAF) ||  // the library's own range: Unicode's block starts at 2B820
         (c >= 0x2F800 && c <= 0x2FA1F);
}

CodePointTable BuildBertClasses() {
  // Categories that changed after Unicode 8.
  const std::map<uint32_t, UCharCategory> changed = {
      {0x166D, U_OTHER_PUNCTUATION}, {0x111C9, U_OTHER_PUNCTUATION},
      {0x1734, U_NON_SPACING_MARK},  {0x1885, U_OTHER_LETTER},
      {0x1886, U_OTHER_LETTER},      {0xA9BD, U_COMBINING_SPACING_MARK}};
  CodePointTableBuilder table;
  ForEachCategory([&](uint32_t c, UCharCategory category) {
    uint8_t bits = 0;
    if (IsIdeograph(c)) bits |= kBertIdeograph;
    if (category != U_UNASSIGNED && u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE))
      bits |= kBertSpace;
    const auto correction = changed.find(c);
    if (correction != changed.end()) category = correction->second;
    const uint32_t mask = U_MASK(category);
    const uint32_t relevant =
        U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK | U_GC_MN_MASK | U_GC_P_MASK;
    // U+111C9 and U+1734 are of Unicode 8 or before, so the age test holds for the corrected ones
    // as well.
    if ((mask & relevant) && ((mask & U_GC_CO_MASK) || AssignedBy(c, 8, 0))) {
      if (mask & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) bits |= kBertControl;
      if (mask & U_GC_MN_MASK) bits |= kBertNonspacing;
      if (mask & U_GC_P_MASK) bits |= kBertPunctuation;
    }
    if ((c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
        (c >= 123 && c <= 126)) {
      bits |= kBertPunctuation;
    }
    table[c] = bits;
  });
  return table.Build();
}

const icu::Normalizer2& NormalizerOf(NormalForm form) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  switch (form) {
    case NormalForm::kNfc:
      normalizer = icu::Normalizer2::getNFCInstance(error);
      break;
    case NormalForm::kNfd:
      normalizer = icu::Normalizer2::getNFDInstance(error);
      break;
    case NormalForm::kNfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(error);
      break;
    case NormalForm::kNfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(error);
      break;
  }
  TRANCHE_CHECK(U_SUCCESS(error)) << "ICU's normalization data is missing: " << u_errorName(error);
  return *normalizer;
}

}  // namespace

const CodePointTable& CharClasses() {
  static const CodePointTable& table = *new CodePointTable(BuildCharClasses());
  return table;
}

const CodePointTable& BertClasses() {
  static const CodePointTable& table = *new CodePointTable(BuildBertClasses());
  return table;
}

void AppendUtf8(uint32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool IsAscii(absl::string_view text) {
  unsigned char any = 0;
  for (const char c : text) any |= static_cast<unsigned char>(c);
  return any < 0x80;
}

void AppendNormalized(NormalForm form, absl::string_view text, std::string* out) {
  if (IsAscii(text)) {
    out->append(text.data(), text.size());
    return;
  }
  const icu::Normalizer2& normalizer = NormalizerOf(form);
  UErrorCode status = U_ZERO_ERROR;
  if (text.size() < (1 << 20) &&
      normalizer.isNormalizedUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
                                  status)) {
    out->append(text.data(), text.size());
    return;
  }
  const auto append = [&](absl::string_view run) {
    if (run.empty()) return;
    icu::UnicodeString source = icu::UnicodeString::fromUTF8(
        icu::StringPiece(run.data(), static_cast<int32_t>(run.size())));
    UErrorCode error = U_ZERO_ERROR;
    normalizer.normalize(source, error).toUTF8String(*out);
    TRANCHE_CHECK(U_SUCCESS(error)) << u_errorName(error);
  };
  // Starters (canonical combining class 0) younger than the library's tables end a run; nothing
  // composes or reorders across them.
  size_t start = 0;
  for (size_t position = 0; position < text.size();) {
    const size_t character = position;
    const uint32_t c = NextCodePoint(text, &position);
    if (c >= 0x300 && !AssignedBy(c, 11, 0)) {
      append(text.substr(start, character - start));
      out->append(text.data() + character, position - character);
      start = position;
    } else if (position - start > (1 << 20) &&
               c < 0x80) {  // bounds ICU's 32-bit buffers; ASCII starts a new run safely
      append(text.substr(start, character - start));
      start = character;
    }
  }
  append(text.substr(start));
}

void AppendLower(uint32_t code_point, std::string* out) {
  if (code_point < 0x80) {
    out->push_back(
        static_cast<char>(code_point >= 'A' && code_point <= 'Z' ? code_point + 32 : code_point));
  } else if (code_point ==
             0x130) {  // the only code point whose full lower-case mapping is longer than one
    out->append("i\xCC\x87");
  } else {
    auto lower = static_cast<uint32_t>(u_tolower(static_cast<UChar32>(code_point)));
    for (const YoungCase& run : kYoungCases) {
      if (code_point >= run.first && code_point <= run.last)
        lower = run.lower + (code_point - run.first);
    }
    AppendUtf8(lower, out);
  }
}

namespace {

struct StandIns {
  std::array<std::string, 256> text;
  std::array<int16_t, 512> byte;

  StandIns() {
    byte.fill(-1);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      const uint32_t c = printable ? b : next++;
      AppendUtf8(c, &text[b]);
      byte[c] = static_cast<int16_t>(b);
    }
  }
};

const StandIns& TheStandIns() {
  static const StandIns& stand_ins = *new StandIns();
  return stand_ins;
}

}  // namespace

const std::string& ByteToStandIn(uint8_t byte) { return TheStandIns().text[byte]; }

int StandInToByte(uint32_t code_point) {
  return code_point < 512 ? TheStandIns().byte[code_point] : -1;
}

}  // namespace tranche
