// WordPiece: the longest token that starts a word, then the longest that continues it, and so on; a
// word that cannot be put together so is unknown as a whole.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "data/bpe.h"

namespace tranche {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  std::string continuing_subword_prefix = "##";
  int64_t max_input_chars_per_word = 100;  // longer words are unknown
};

class WordPieceModel : public PieceModel {
 public:
  // Error: the unknown token is not in the vocabulary.
  static absl::StatusOr<std::unique_ptr<WordPieceModel>> Create(const Vocabulary& vocabulary,
                                                                const WordPieceOptions& options);

  void Append(absl::string_view piece, std::vector<int32_t>* ids) const override;
  bool MayCutBefore(absl::string_view) const override { return false; }

 private:
  WordPieceModel() = default;
  void AddToTrie(int32_t root, absl::string_view text, int32_t id);

  static constexpr int32_t kStartRoot = 0, kContinueRoot = 1;
  absl::flat_hash_map<uint64_t, int32_t> children_;  // (node, byte) -> node
  std::vector<int32_t> token_at_;                    // [node] id, or -1
  int32_t unk_ = -1;
  int64_t max_characters_ = 0;
};

}  // namespace tranche
