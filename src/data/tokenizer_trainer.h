// Makes a tokenizer from text: byte-level BPE or WordPiece, written in the Hugging Face file format
// (tokenizer.json and tokenizer_config.json; vocab.txt as well for WordPiece).
//
// The result depends on the multiset of documents and the options alone: not on threads, nor on the
// order of documents. In each step the pair of neighbouring tokens that occurs most often is
// joined; of pairs that occur equally often, the one whose left token has the smaller id, then the
// one whose right token has. Ids: special tokens in the order given, then bytes in the order of
// their stand-ins (BPE) or characters by code point, those that start words before those that
// continue them (WordPiece), then joined tokens in the order they are made.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/pretokenize_scan.h"

namespace tranche {

struct TrainerOptions {
  enum class Model { kByteLevelBpe, kWordPiece };
  Model model = Model::kByteLevelBpe;
  int64_t vocab_size =
      32000;  // special tokens included; fewer come out where the text has no more pairs
  int64_t min_frequency = 2;  // pairs that occur less often are not joined
  // First ids. Empty: <|endoftext|> for BPE; [PAD] [UNK] [CLS] [SEP] [MASK] for WordPiece, which
  // must be among them.
  std::vector<std::string> special_tokens;
  ScanPattern pattern =
      ScanPattern::kGpt2;       // BPE: what cuts text into pieces; kNone: documents are not cut
  bool lowercase = true;        // WordPiece: lower case without accents
  int64_t max_alphabet = 1000;  // WordPiece: this many of the most frequent characters
  int threads = 0;              // 0: one per core
};

// Gives the next document (valid UTF-8) in *text; false at the end.
using DocumentSource = std::function<absl::StatusOr<bool>(std::string* text)>;

struct TrainerReport {
  int64_t documents = 0, text_bytes = 0;
  int64_t pieces = 0;  // words in the text
  int64_t distinct_pieces = 0;
  int64_t vocab_size = 0, merges = 0;
};

// Writes into `folder` (made where it is absent). Errors: those of the source; options out of
// range; text without a word; a vocabulary too small for its characters; a full disk. Nothing is
// written before all is known. `progress` (may be empty) is called on the calling thread: text
// bytes counted while reading, then merges made of merges wanted.
absl::StatusOr<TrainerReport> TrainTokenizer(
    const TrainerOptions& options, const DocumentSource& source, const std::string& folder,
    const std::function<void(absl::string_view phase, int64_t done, int64_t total)>& progress = {});

}  // namespace tranche
