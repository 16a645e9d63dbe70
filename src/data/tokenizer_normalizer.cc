#include "data/tokenizer_normalizer.h"

#include <algorithm>
#include <vector>

#include "base/status.h"
#include "data/tokenizer_regex.h"
#include "data/unicode.h"

namespace tranche {

struct TextPattern::Compiled {
  Regex regex;
};

TextPattern::TextPattern(std::string text) : text_(std::move(text)) {}
TextPattern::~TextPattern() = default;
TextPattern::TextPattern(TextPattern&&) noexcept = default;
TextPattern& TextPattern::operator=(TextPattern&&) noexcept = default;

TextPattern TextPattern::Plain(std::string text) { return TextPattern(std::move(text)); }

absl::StatusOr<TextPattern> TextPattern::Read(const JsonNode& node) {
  if (!node.Child("String").IsNull()) {
    TRANCHE_ASSIGN_OR_RETURN(std::string text, node.RequiredString("String"));
    return Plain(std::move(text));
  }
  if (node.Child("Regex").IsNull())
    return node.Error("{\"String\": …} or {\"Regex\": …} is needed here");
  TRANCHE_ASSIGN_OR_RETURN(std::string text, node.RequiredString("Regex"));
  absl::StatusOr<Regex> regex = Regex::Compile(text);
  if (!regex.ok()) return node.Child("Regex").Error(regex.status().message());
  TextPattern pattern("");
  pattern.regex_text_ = std::move(text);
  pattern.compiled_ = std::make_unique<Compiled>(Compiled{*std::move(regex)});
  return pattern;
}

bool TextPattern::Search(absl::string_view text, size_t from, size_t* begin, size_t* end) const {
  if (compiled_ != nullptr) return compiled_->regex.Search(text, from, begin, end);
  if (text_.empty()) return false;
  const size_t at = text.find(text_, from);
  if (at == absl::string_view::npos) return false;
  *begin = at;
  *end = at + text_.size();
  return true;
}

size_t TextPattern::NextCharacter(absl::string_view text, size_t position) {
  return position < text.size() ? position + Utf8Length(text[position]) : position + 1;
}

void TextPattern::AppendReplaced(absl::string_view text, absl::string_view replacement,
                                 std::string* out) const {
  size_t done = 0;
  ForEach(text, [&](size_t begin, size_t end) {
    out->append(text.data() + done, begin - done);
    out->append(replacement.data(), replacement.size());
    done = end;
  });
  out->append(text.data() + done, text.size() - done);
}

double TextPattern::Growth(absl::string_view replacement) const {
  const double size = static_cast<double>(replacement.size());
  if (compiled_ != nullptr) return 1 + size;  // it may match the empty text before every byte
  return text_.empty() ? 1 : std::max(1.0, size / static_cast<double>(text_.size()));
}

namespace {

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  void Append(absl::string_view text, std::string* out) const override {
    AppendNormalized(form_, text, out);
  }

 private:
  const NormalForm form_;
};

class Bert : public Normalizer {
 public:
  explicit Bert(const BertNormalizerOptions& options) : options_(options) {}

  const BertNormalizerOptions* bert() const override { return &options_; }

  void Append(absl::string_view text, std::string* out) const override {
    const CodePointTable& classes = BertClasses();
    if (IsAscii(text)) return AppendAscii(text, out);
    std::string cleaned;
    cleaned.reserve(text.size() + text.size() / 8);
    for (size_t position = 0; position < text.size();) {
      const size_t start = position;
      const uint32_t c = NextCodePoint(text, &position);
      const uint8_t bits = classes[c];
      if (options_.clean_text) {
        if (c == 0 || c == 0xFFFD || ((bits & kBertControl) && c != '\t' && c != '\n' && c != '\r'))
          continue;
        if (bits & kBertSpace) {
          cleaned += ' ';
          continue;
        }
      }
      const bool apart = options_.handle_chinese_chars && (bits & kBertIdeograph);
      if (apart) cleaned += ' ';
      cleaned.append(text.data() + start, position - start);
      if (apart) cleaned += ' ';
    }
    if (options_.strip_accents && !IsAscii(cleaned)) {
      std::string decomposed;
      AppendNormalized(NormalForm::kNfd, cleaned, &decomposed);
      cleaned.clear();
      for (size_t position = 0; position < decomposed.size();) {
        const size_t start = position;
        const uint32_t c = NextCodePoint(decomposed, &position);
        if (!(classes[c] & kBertNonspacing)) cleaned.append(decomposed, start, position - start);
      }
    }
    if (!options_.lowercase) {
      *out += cleaned;
      return;
    }
    for (size_t position = 0; position < cleaned.size();)
      AppendLower(NextCodePoint(cleaned, &position), out);
  }

 private:
  void AppendAscii(absl::string_view text, std::string* out) const {
    for (char c : text) {
      if (options_.clean_text) {
        if (c == '\t' || c == '\n' || c == '\r') c = ' ';
        if (c < ' ' || c == '\x7f') continue;
      }
      if (options_.lowercase && c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
      out->push_back(c);
    }
  }

  const BertNormalizerOptions options_;
};

class Lowercase : public Normalizer {
 public:
  void Append(absl::string_view text, std::string* out) const override {
    for (size_t position = 0; position < text.size();)
      AppendLower(NextCodePoint(text, &position), out);
  }
};

class StripAccents : public Normalizer {
 public:
  void Append(absl::string_view text, std::string* out) const override {
    for (size_t position = 0; position < text.size();) {
      const size_t start = position;
      const uint32_t c = NextCodePoint(text, &position);
      if (!(CharClasses()[c] & kOldMark)) out->append(text.data() + start, position - start);
    }
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  void Append(absl::string_view text, std::string* out) const override {
    const CodePointTable& classes = CharClasses();
    size_t begin = 0, end = text.size();
    for (size_t next = 0; left_ && begin < end; begin = next) {
      if (!(classes[NextCodePoint(text, &next)] & kSpace)) break;
    }
    while (right_ && end > begin) {
      const size_t last = PreviousCharacter(text, end);
      size_t next = last;
      if (!(classes[NextCodePoint(text, &next)] & kSpace)) break;
      end = last;
    }
    out->append(text.data() + begin, end - begin);
  }

 private:
  const bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}

  void Append(absl::string_view text, std::string* out) const override {
    if (text.empty()) return;
    *out += prefix_;
    out->append(text.data(), text.size());
  }

 private:
  const std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void Append(absl::string_view text, std::string* out) const override {
    pattern_.AppendReplaced(text, content_, out);
  }
  double growth() const override { return pattern_.Growth(content_); }

 private:
  const TextPattern pattern_;
  const std::string content_;
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}

  void Append(absl::string_view text, std::string* out) const override {
    std::string current(text), next;
    for (const auto& part : parts_) {
      next.clear();
      part->Append(current, &next);
      current.swap(next);
    }
    *out += current;
  }

  double growth() const override {
    double product = 1;
    for (const auto& part : parts_) product *= part->growth();
    return product;
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> parts_;
};

}  // namespace

std::unique_ptr<Normalizer> MakeBertNormalizer(const BertNormalizerOptions& options) {
  return std::make_unique<Bert>(options);
}

absl::StatusOr<std::unique_ptr<Normalizer>> ReadNormalizer(const JsonNode& node) {
  if (node.IsNull()) return std::unique_ptr<Normalizer>();
  TRANCHE_ASSIGN_OR_RETURN(const std::string type, node.RequiredString("type"));
  std::unique_ptr<Normalizer> result;
  if (type == "NFC") {
    result = std::make_unique<UnicodeForm>(NormalForm::kNfc);
  } else if (type == "NFD") {
    result = std::make_unique<UnicodeForm>(NormalForm::kNfd);
  } else if (type == "NFKC") {
    result = std::make_unique<UnicodeForm>(NormalForm::kNfkc);
  } else if (type == "NFKD") {
    result = std::make_unique<UnicodeForm>(NormalForm::kNfkd);
  } else if (type == "Lowercase") {
    result = std::make_unique<Lowercase>();
  } else if (type == "StripAccents") {
    result = std::make_unique<StripAccents>();
  } else if (type == "BertNormalizer") {
    BertNormalizerOptions options;
    TRANCHE_ASSIGN_OR_RETURN(options.clean_text, node.Bool("clean_text", true));
    TRANCHE_ASSIGN_OR_RETURN(options.handle_chinese_chars, node.Bool("handle_chinese_chars", true));
    TRANCHE_ASSIGN_OR_RETURN(options.lowercase, node.Bool("lowercase", true));
    TRANCHE_ASSIGN_OR_RETURN(options.strip_accents, node.Bool("strip_accents", options.lowercase));
    result = MakeBertNormalizer(options);
  } else if (type == "Strip") {
    TRANCHE_ASSIGN_OR_RETURN(const bool left, node.Bool("strip_left", true));
    TRANCHE_ASSIGN_OR_RETURN(const bool right, node.Bool("strip_right", true));
    result = std::make_unique<Strip>(left, right);
  } else if (type == "Prepend") {
    TRANCHE_ASSIGN_OR_RETURN(std::string prefix, node.RequiredString("prepend"));
    result = std::make_unique<Prepend>(std::move(prefix));
  } else if (type == "Replace") {
    TRANCHE_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Read(node.Child("pattern")));
    TRANCHE_ASSIGN_OR_RETURN(std::string content, node.RequiredString("content"));
    result = std::make_unique<Replace>(std::move(pattern), std::move(content));
  } else if (type == "Sequence") {
    TRANCHE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements,
                             node.Child("normalizers").Elements());
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (const JsonNode& element : elements) {
      if (element.IsNull()) return element.Error("a normalizer is needed here");
      TRANCHE_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> part, ReadNormalizer(element));
      parts.push_back(std::move(part));
    }
    result = std::make_unique<Sequence>(std::move(parts));
  } else {
    return node.UnknownType(type, {"BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Sequence",
                                   "Prepend", "Replace", "Lowercase", "Strip", "StripAccents"});
  }
  if (result->growth() > kMaxGrowth)
    return node.Error("its replacements make a text more than 1000 times longer");
  return result;
}

}  // namespace tranche
