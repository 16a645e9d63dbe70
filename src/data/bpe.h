// Byte-pair encoding: a piece starts as characters (or bytes), and of the neighbours that a merge
// rule joins, those of the lowest rank are joined first, leftmost first, until no rule applies
// (Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units", ACL
// 2016).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/tokenizer_vocab.h"

namespace tranche {

// What a tokenizer does to one piece. Thread-safe.
class PieceModel {
 public:
  virtual ~PieceModel() = default;
  // Appends the ids of a piece, which is not empty.
  virtual void Append(absl::string_view piece, std::vector<int32_t>* ids) const = 0;
  // True where a text may be cut before each `marker` that another character precedes, and the
  // parts taken as pieces of their own.
  virtual bool MayCutBefore(absl::string_view marker) const = 0;
};

struct BpeOptions {
  std::string unk_token;  // empty: unknown characters vanish
  bool fuse_unk = false;
  bool byte_fallback = false;  // unknown characters become <0xNN> tokens
  bool ignore_merges = false;  // a piece in the vocabulary is one token whatever the rules say
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool byte_level = false;  // pieces are bytes; the vocabulary spells them with stand-ins
};

// (left id, right id) -> rank, in one word a rule.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = (1 << 22) - 1;

  explicit MergeTable(size_t rules);
  // The later of two equal pairs counts.
  void Set(int32_t left, int32_t right, uint32_t rank);
  uint32_t Rank(int32_t left, int32_t right) const {
    const uint64_t pair = static_cast<uint64_t>(left) << 21 | static_cast<uint64_t>(right);
    for (size_t slot = pair * 0x9E3779B97F4A7C15u >> shift_;; slot = (slot + 1) & mask_) {
      const uint64_t word = words_[slot];
      if (word >> 22 == pair) return static_cast<uint32_t>(word & kNoRank);
      if (word == ~uint64_t{0}) return kNoRank;
    }
  }

 private:
  std::vector<uint64_t> words_;
  size_t mask_;
  int shift_;
};

class BpeModel : public PieceModel {
 public:
  using Merge = std::pair<std::string, std::string>;
  // Errors name the merge by its number from 0 ("merges[3]: …"); the caller adds the file.
  static absl::StatusOr<std::unique_ptr<BpeModel>> Create(const Vocabulary& vocabulary,
                                                          const std::vector<Merge>& merges,
                                                          const BpeOptions& options);

  void Append(absl::string_view piece, std::vector<int32_t>* ids) const override;
  bool MayCutBefore(absl::string_view marker) const override;

 private:
  BpeModel(const Vocabulary& vocabulary, const BpeOptions& options, size_t rules);

  void AppendBytes(absl::string_view piece, std::vector<int32_t>* symbols) const;
  void AppendCharacters(absl::string_view piece, std::vector<int32_t>* symbols) const;
  // As MergeByRank, for few symbols.
  void MergeShort(std::vector<int32_t>* symbols, size_t from) const;

  const Vocabulary& vocabulary_;
  const BpeOptions options_;
  MergeTable table_;
  std::vector<int32_t> merged_;  // [rank] the id that the rule makes
  int32_t unk_ = -1;
  std::array<int32_t, 256> byte_ids_;  // of single bytes (byte_level), or of <0xNN> (byte_fallback)
  bool all_bytes_ = false;             // every <0xNN> is in the vocabulary
  absl::flat_hash_map<uint32_t, int32_t> character_ids_;
  absl::flat_hash_map<std::string, int32_t> bytes_to_id_;  // byte_level and ignore_merges: by bytes
};

}  // namespace tranche
