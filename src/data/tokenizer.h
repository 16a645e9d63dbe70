// Text to token ids and back, exactly as the Hugging Face `tokenizers` library does it from the
// same files.
//
// Load reads a folder (tokenizer.json; else vocab.txt with tokenizer_config.json: WordPiece; else
// vocab.json with merges.txt: byte-level BPE) or a tokenizer.json file. A Tokenizer is immutable
// after Load; every method is const and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tranche {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);

  // Appends the ids of `text` (valid UTF-8) to *ids. add_special: with what the post-processor puts
  // around one text ([CLS] … [SEP], <s>). Special tokens written in the text are recognised either
  // way. `scratch`-free: safe from many threads at once.
  virtual void Encode(absl::string_view text, bool add_special,
                      std::vector<int32_t>* ids) const = 0;

  // Ids outside the vocabulary are skipped. The result may be invalid UTF-8 where ids end inside a
  // character of several bytes only if the decoder of the reference library leaves it so (it puts
  // U+FFFD).
  virtual std::string Decode(const std::vector<int32_t>& ids, bool skip_special) const = 0;

  // One above the largest id that Encode can give.
  virtual int32_t vocab_size() const = 0;
  // -1 where there is no such token.
  virtual int32_t TokenToId(absl::string_view token) const = 0;
  // The token as the vocabulary spells it ("Ġthe", "##ing", "<0x0A>"); empty where id is not in the
  // vocabulary.
  virtual std::string IdToToken(int32_t id) const = 0;
  // True for added tokens marked special and for [PAD], [CLS], [SEP], [MASK], [UNK] of WordPiece:
  // never masked, never inserted.
  virtual bool IsSpecial(int32_t id) const = 0;
  // True where a token continues a word ("##x" in WordPiece; no leading space marker in BPE): for
  // whole-word masking.
  virtual bool ContinuesWord(int32_t id) const = 0;

  // From tokenizer_config.json / special tokens / conventions; -1 where there is none.
  struct Specials {
    int32_t bos = -1, eos = -1, pad = -1, unk = -1, mask = -1, cls = -1, sep = -1;
  };
  virtual const Specials& specials() const = 0;

  // Hash of the files that decide the ids: stored beside tokenized data and compared when training.
  virtual const std::string& fingerprint() const = 0;
  // Things to tell the user that are not errors ("no merge rule exists", "two lines of vocab.txt
  // are equal").
  virtual const std::vector<std::string>& warnings() const = 0;
  // The files to copy beside an exported model (paths).
  virtual const std::vector<std::string>& files() const = 0;
};

}  // namespace tranche
