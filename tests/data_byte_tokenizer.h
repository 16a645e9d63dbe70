// A tokenizer small enough to predict by hand: one token a byte, and "#N;" for token N.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace tranche {

// Ids 0..7 are special: <s> </s> <pad> <unk> [MASK] [CLS] [SEP] and one unused. Byte b is id 8 + b.
// A space begins a word.
class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(int32_t vocab_size = 264, const std::string& fingerprint = "bytes")
      : vocab_size_(vocab_size), fingerprint_(fingerprint) {
    specials_.bos = 0, specials_.eos = 1, specials_.pad = 2, specials_.unk = 3;
    specials_.mask = 4, specials_.cls = 5, specials_.sep = 6;
  }
  void Encode(absl::string_view text, bool add_special, std::vector<int32_t>* ids) const override {
    if (add_special) ids->push_back(specials_.bos);
    while (!text.empty()) {
      size_t used = 1;
      int32_t id = 8 + static_cast<uint8_t>(text[0]);
      if (text.substr(0, 3) == "<s>") id = 0, used = 3;
      if (text.substr(0, 4) == "</s>") id = 1, used = 4;
      if (const size_t end = text.find(';'); text[0] == '#' && end != absl::string_view::npos) {
        id = std::atoi(text.data() + 1), used = end + 1;
      }
      ids->push_back(id);
      text.remove_prefix(used);
    }
  }
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (!skip_special || !IsSpecial(id)) text += IdToToken(id);
    }
    return text;
  }
  int32_t vocab_size() const override { return vocab_size_; }
  int32_t TokenToId(absl::string_view token) const override {
    for (int32_t id = 0; id < vocab_size_; ++id) {
      if (IdToToken(id) == token) return id;
    }
    return -1;
  }
  std::string IdToToken(int32_t id) const override {
    static const char* const kNames[] = {"<s>",    "</s>",  "<pad>", "<unk>",
                                         "[MASK]", "[CLS]", "[SEP]", "<7>"};
    if (id < 0 || id >= vocab_size_) return "";
    if (id < 8) return kNames[id];
    return id < 264 ? std::string(1, static_cast<char>(id - 8)) : "#" + std::to_string(id) + ";";
  }
  bool IsSpecial(int32_t id) const override { return id < 8; }
  bool ContinuesWord(int32_t id) const override { return id >= 8 && id != 8 + ' '; }
  const Specials& specials() const override { return specials_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  const std::vector<std::string>& warnings() const override { return none_; }
  const std::vector<std::string>& files() const override { return none_; }

 private:
  const int32_t vocab_size_;
  const std::string fingerprint_;
  const std::vector<std::string> none_;
  Specials specials_;
};

}  // namespace tranche
