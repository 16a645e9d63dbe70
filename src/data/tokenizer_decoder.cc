#include "data/tokenizer_decoder.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "base/text.h"
#include "data/tokenizer_normalizer.h"
#include "data/unicode.h"

namespace tranche {
namespace {

std::string JoinAll(const std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  return all;
}

void Become(std::vector<std::string>* tokens, std::string only) {
  tokens->clear();
  tokens->push_back(std::move(only));
}

class ByteLevelDecoder : public TokenDecoder {
 public:
  void Decode(std::vector<std::string>* tokens) const override {
    std::string bytes;
    for (const std::string& token : *tokens) {
      const size_t before = bytes.size();
      for (size_t position = 0; position < token.size();) {
        const int byte = StandInToByte(NextCodePoint(token, &position));
        if (byte < 0) {  // a token that is not written in stand-ins means itself
          bytes.resize(before);
          bytes += token;
          break;
        }
        bytes.push_back(static_cast<char>(byte));
      }
    }
    int64_t replaced = 0;
    Become(tokens, ReplaceInvalidUtf8(bytes, &replaced));
  }
};

class WordPieceDecoder : public TokenDecoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup)
      : prefix_(std::move(prefix)), cleanup_(cleanup) {}

  void Decode(std::vector<std::string>* tokens) const override {
    for (size_t i = 0; i < tokens->size(); ++i) {
      std::string& token = (*tokens)[i];
      if (i > 0) {
        if (absl::StartsWith(token, prefix_)) {
          token.erase(0, prefix_.size());
        } else {
          token.insert(0, 1, ' ');
        }
      }
      if (!cleanup_) continue;
      for (const auto& [from, to] : kCleanup) token = absl::StrReplaceAll(token, {{from, to}});
    }
  }

 private:
  // Applied one after the other, in this order.
  static constexpr std::pair<const char*, const char*> kCleanup[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  const std::string prefix_;
  const bool cleanup_;
};

// <0xNN> tokens become bytes; a run of them that is no valid text becomes one U+FFFD for each.
class ByteFallbackDecoder : public TokenDecoder {
 public:
  void Decode(std::vector<std::string>* tokens) const override {
    std::vector<std::string> result;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (!FindInvalidUtf8(bytes).has_value()) {
        result.push_back(bytes);
      } else {
        for (size_t i = 0; i < bytes.size(); ++i) result.push_back("\uFFFD");
      }
      bytes.clear();
    };
    for (std::string& token : *tokens) {
      const int byte = ByteOf(token);
      if (byte >= 0) {
        bytes.push_back(static_cast<char>(byte));
        continue;
      }
      flush();
      result.push_back(std::move(token));
    }
    flush();
    tokens->swap(result);
  }

 private:
  static int ByteOf(const std::string& token) {
    if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return -1;
    const auto digit = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                    : -1;
    };
    const int high = token[3] == '+' ? 0 : digit(token[3]), low = digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }
};

class FuseDecoder : public TokenDecoder {
 public:
  void Decode(std::vector<std::string>* tokens) const override { Become(tokens, JoinAll(*tokens)); }
};

// Takes at most `start` (`stop`) times the character off the front (end) of each token.
class StripDecoder : public TokenDecoder {
 public:
  StripDecoder(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

  void Decode(std::vector<std::string>* tokens) const override {
    for (std::string& token : *tokens) {
      absl::string_view rest = token;
      for (int64_t i = 0; i < start_ && absl::StartsWith(rest, content_); ++i)
        rest.remove_prefix(content_.size());
      for (int64_t i = 0; i < stop_ && absl::EndsWith(rest, content_); ++i)
        rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }

 private:
  const std::string content_;
  const int64_t start_, stop_;
};

class ReplaceDecoder : public TokenDecoder {
 public:
  ReplaceDecoder(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void Decode(std::vector<std::string>* tokens) const override {
    for (std::string& token : *tokens) {
      std::string replaced;
      pattern_.AppendReplaced(token, content_, &replaced);
      token.swap(replaced);
    }
  }
  double growth() const override { return pattern_.Growth(content_); }

 private:
  const TextPattern pattern_;
  const std::string content_;
};

class MetaspaceDecoder : public TokenDecoder {
 public:
  MetaspaceDecoder(std::string replacement, bool drop_first)
      : replacement_(std::move(replacement)), drop_first_(drop_first) {}

  void Decode(std::vector<std::string>* tokens) const override {
    for (size_t i = 0; i < tokens->size(); ++i) {
      const char* space = i == 0 && drop_first_ ? "" : " ";
      (*tokens)[i] = absl::StrReplaceAll((*tokens)[i], {{replacement_, space}});
    }
  }

 private:
  const std::string replacement_;
  const bool drop_first_;
};

class SequenceDecoder : public TokenDecoder {
 public:
  explicit SequenceDecoder(std::vector<std::unique_ptr<TokenDecoder>> parts)
      : parts_(std::move(parts)) {}

  void Decode(std::vector<std::string>* tokens) const override {
    for (const auto& part : parts_) part->Decode(tokens);
  }
  double growth() const override {
    double product = 1;
    for (const auto& part : parts_) product *= part->growth();
    return product;
  }

 private:
  const std::vector<std::unique_ptr<TokenDecoder>> parts_;
};

absl::StatusOr<std::string> ReadCharacter(const JsonNode& node, absl::string_view key,
                                          absl::string_view otherwise) {
  TRANCHE_ASSIGN_OR_RETURN(std::string text, node.String(key, otherwise));
  if (text.empty() || Utf8Length(text[0]) != text.size())
    return node.Child(key).Error("one character is needed here");
  return text;
}

}  // namespace

std::unique_ptr<TokenDecoder> MakeByteLevelDecoder() {
  return std::make_unique<ByteLevelDecoder>();
}

std::unique_ptr<TokenDecoder> MakeWordPieceDecoder(std::string prefix, bool cleanup) {
  return std::make_unique<WordPieceDecoder>(std::move(prefix), cleanup);
}

absl::StatusOr<std::unique_ptr<TokenDecoder>> ReadDecoder(const JsonNode& node) {
  if (node.IsNull()) return std::unique_ptr<TokenDecoder>();
  TRANCHE_ASSIGN_OR_RETURN(const std::string type, node.RequiredString("type"));
  std::unique_ptr<TokenDecoder> result;
  if (type == "ByteLevel") {
    result = MakeByteLevelDecoder();
  } else if (type == "WordPiece") {
    TRANCHE_ASSIGN_OR_RETURN(std::string prefix, node.String("prefix", "##"));
    TRANCHE_ASSIGN_OR_RETURN(const bool cleanup, node.Bool("cleanup", true));
    result = MakeWordPieceDecoder(std::move(prefix), cleanup);
  } else if (type == "ByteFallback") {
    result = std::make_unique<ByteFallbackDecoder>();
  } else if (type == "Fuse") {
    result = std::make_unique<FuseDecoder>();
  } else if (type == "Strip") {
    TRANCHE_ASSIGN_OR_RETURN(std::string content, ReadCharacter(node, "content", " "));
    constexpr int64_t kMost = int64_t{1} << 40;
    TRANCHE_ASSIGN_OR_RETURN(const int64_t start, node.Int("start", 0, 0, kMost));
    TRANCHE_ASSIGN_OR_RETURN(const int64_t stop, node.Int("stop", 0, 0, kMost));
    result = std::make_unique<StripDecoder>(std::move(content), start, stop);
  } else if (type == "Replace") {
    TRANCHE_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Read(node.Child("pattern")));
    TRANCHE_ASSIGN_OR_RETURN(std::string content, node.RequiredString("content"));
    result = std::make_unique<ReplaceDecoder>(std::move(pattern), std::move(content));
  } else if (type == "Metaspace") {
    TRANCHE_ASSIGN_OR_RETURN(std::string replacement, ReadCharacter(node, "replacement", "\u2581"));
    TRANCHE_ASSIGN_OR_RETURN(const bool add_prefix_space, node.Bool("add_prefix_space", true));
    TRANCHE_ASSIGN_OR_RETURN(const std::string scheme,
                             node.String("prepend_scheme", add_prefix_space ? "always" : "never"));
    result = std::make_unique<MetaspaceDecoder>(std::move(replacement), scheme != "never");
  } else if (type == "Sequence") {
    TRANCHE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements,
                             node.Child("decoders").Elements());
    std::vector<std::unique_ptr<TokenDecoder>> parts;
    for (const JsonNode& element : elements) {
      TRANCHE_ASSIGN_OR_RETURN(std::unique_ptr<TokenDecoder> part, ReadDecoder(element));
      if (part == nullptr) return element.Error("a decoder is needed here");
      parts.push_back(std::move(part));
    }
    result = std::make_unique<SequenceDecoder>(std::move(parts));
  } else {
    return node.UnknownType(type, {"WordPiece", "ByteLevel", "Sequence", "Replace", "ByteFallback",
                                   "Fuse", "Strip", "Metaspace"});
  }
  if (result->growth() > kMaxGrowth)
    return node.Error("its replacements make a text more than 1000 times longer");
  return result;
}

}  // namespace tranche
