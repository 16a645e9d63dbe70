// The normalizer of a tokenizer: rewrites text before it is split.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/tokenizer_json.h"

namespace tranche {

struct BertNormalizerOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Appends the normalized text to *out.
  virtual void Append(absl::string_view text, std::string* out) const = 0;
  // The options of BERT's normalizer; null of all others.
  virtual const BertNormalizerOptions* bert() const { return nullptr; }
  // How many times longer the text can become by replacements; a file that multiplies beyond reason
  // is refused.
  virtual double growth() const { return 1; }
};

// `node` as in tokenizer.json; null for a null node.
absl::StatusOr<std::unique_ptr<Normalizer>> ReadNormalizer(const JsonNode& node);

// A pattern of a file: a plain text or a regular expression.
class TextPattern {
 public:
  // {"String": "x"} or {"Regex": "x"}
  static absl::StatusOr<TextPattern> Read(const JsonNode& node);
  static TextPattern Plain(std::string text);
  ~TextPattern();
  TextPattern(TextPattern&&) noexcept;
  TextPattern& operator=(TextPattern&&) noexcept;

  // First match at or after `from`.
  bool Search(absl::string_view text, size_t from, size_t* begin, size_t* end) const;
  // Calls match(begin, end) for the matches in order; an empty one moves on by a character.
  template <typename Match>
  void ForEach(absl::string_view text, Match match) const {
    size_t from = 0, begin, end, last_end = std::string::npos;
    while (from <= text.size() && Search(text, from, &begin, &end)) {
      const bool empty_again = begin == end && end == last_end;
      if (!empty_again) match(begin, end);
      last_end = end;
      from = end > begin ? end : NextCharacter(text, end);
    }
  }
  // The text with every match replaced.
  void AppendReplaced(absl::string_view text, absl::string_view replacement,
                      std::string* out) const;

  // How many times longer a text can become when each match becomes `replacement`.
  double Growth(absl::string_view replacement) const;

  const std::string& regex_text() const { return regex_text_; }  // empty for plain text

 private:
  struct Compiled;
  explicit TextPattern(std::string text);
  static size_t NextCharacter(absl::string_view text, size_t position);

  std::string text_, regex_text_;
  std::unique_ptr<Compiled> compiled_;
};

// The growth at which a chain of replacements is refused.
constexpr double kMaxGrowth = 1000;

std::unique_ptr<Normalizer> MakeBertNormalizer(const BertNormalizerOptions& options);

}  // namespace tranche
