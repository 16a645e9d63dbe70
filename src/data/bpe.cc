#include "data/bpe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "data/bpe_merge.h"
#include "data/unicode.h"

namespace tranche {
namespace {

constexpr size_t kShort = 48;  // symbols up to which looking through all pairs beats a heap

// A token's stand-ins as bytes; false where it holds other characters.
bool ToBytes(absl::string_view token, std::string* bytes) {
  bytes->clear();
  for (size_t position = 0; position < token.size();) {
    const int byte = StandInToByte(NextCodePoint(token, &position));
    if (byte < 0) return false;
    bytes->push_back(static_cast<char>(byte));
  }
  return true;
}

}  // namespace

MergeTable::MergeTable(size_t rules) {
  int bits = 8;
  while ((size_t{1} << bits) < rules * 5 / 2) ++bits;
  words_.assign(size_t{1} << bits, ~uint64_t{0});
  mask_ = words_.size() - 1;
  shift_ = 64 - bits;
}

void MergeTable::Set(int32_t left, int32_t right, uint32_t rank) {
  const uint64_t pair = static_cast<uint64_t>(left) << 21 | static_cast<uint64_t>(right);
  size_t slot = pair * 0x9E3779B97F4A7C15u >> shift_;
  while (words_[slot] != ~uint64_t{0} && words_[slot] >> 22 != pair) slot = (slot + 1) & mask_;
  words_[slot] = pair << 22 | rank;
}

BpeModel::BpeModel(const Vocabulary& vocabulary, const BpeOptions& options, size_t rules)
    : vocabulary_(vocabulary), options_(options), table_(rules) {
  byte_ids_.fill(-1);
}

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::Create(const Vocabulary& vocabulary,
                                                           const std::vector<Merge>& merges,
                                                           const BpeOptions& options) {
  if (merges.size() >= MergeTable::kNoRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("merges: ", merges.size(), " rules; at most 4 million are read"));
  }
  std::unique_ptr<BpeModel> model(new BpeModel(vocabulary, options, merges.size()));
  if (!options.unk_token.empty()) {
    model->unk_ = vocabulary.Id(options.unk_token);
    if (model->unk_ < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("unk_token: \"", options.unk_token, "\" is not in the vocabulary"));
    }
  }
  const size_t prefix = options.continuing_subword_prefix.size();
  model->merged_.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto& [left, right] = merges[i];
    if (right.size() < prefix) {
      return absl::InvalidArgumentError(
          absl::StrCat("merges[", i, "]: \"", right, "\" is shorter than the prefix \"",
                       options.continuing_subword_prefix, "\" of what continues a word"));
    }
    const std::string whole = absl::StrCat(left, absl::string_view(right).substr(prefix));
    for (const std::string* token : {&left, &right, &whole}) {
      if (vocabulary.Id(*token) < 0) {
        return absl::InvalidArgumentError(absl::StrCat("merges[", i, "]: \"", left, "\" and \"",
                                                       right, "\" are to be joined, but \"", *token,
                                                       "\" is not in the vocabulary"));
      }
    }
    model->table_.Set(vocabulary.Id(left), vocabulary.Id(right), static_cast<uint32_t>(i));
    model->merged_.push_back(vocabulary.Id(whole));
  }
  if (options.byte_level) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string text = ByteToStandIn(static_cast<uint8_t>(byte));
      model->byte_ids_[byte] = vocabulary.Id(text);
    }
    std::string bytes;
    vocabulary.ForEach([&](const std::string& token, int32_t id) {
      if (options.ignore_merges && ToBytes(token, &bytes)) model->bytes_to_id_.emplace(bytes, id);
    });
  } else {
    vocabulary.ForEach([&](const std::string& token, int32_t id) {
      if (token.empty() || Utf8Length(token[0]) != token.size()) return;
      size_t position = 0;
      model->character_ids_.emplace(NextCodePoint(token, &position), id);
    });
    model->all_bytes_ = options.byte_fallback;
    for (int byte = 0; byte < 256; ++byte) {
      model->byte_ids_[byte] = vocabulary.Id(absl::StrFormat("<0x%02X>", byte));
      model->all_bytes_ &= model->byte_ids_[byte] >= 0;
    }
  }
  return model;
}

bool BpeModel::MayCutBefore(absl::string_view marker) const {
  // The marker must be a symbol, so that unknown characters on both sides of a cut are not fused;
  // no rule may join across a cut.
  if (options_.byte_level || options_.ignore_merges || vocabulary_.Id(marker) < 0) return false;
  if (!options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty())
    return false;
  for (const int32_t id : merged_) {
    const std::string& whole = vocabulary_.Token(id);
    size_t at = 0;
    while (absl::string_view(whole).substr(at, marker.size()) == marker) at += marker.size();
    if (whole.find(std::string(marker), at) != std::string::npos) return false;
  }
  return true;
}

void BpeModel::Append(absl::string_view piece, std::vector<int32_t>* ids) const {
  if (options_.ignore_merges) {
    const auto whole = options_.byte_level ? bytes_to_id_.find(piece) : bytes_to_id_.end();
    const int32_t id = options_.byte_level ? (whole == bytes_to_id_.end() ? -1 : whole->second)
                                           : vocabulary_.Id(piece);
    if (id >= 0) {
      ids->push_back(id);
      return;
    }
  }
  const size_t from = ids->size();
  if (options_.byte_level) {
    AppendBytes(piece, ids);
  } else {
    AppendCharacters(piece, ids);
  }
  if (ids->size() - from <= kShort) {
    MergeShort(ids, from);
  } else {
    MergeByRank([this](int32_t left, int32_t right) { return table_.Rank(left, right); },
                MergeTable::kNoRank, merged_, ids, from);
  }
}

void BpeModel::AppendBytes(absl::string_view piece, std::vector<int32_t>* symbols) const {
  const bool plain =
      options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  bool pending_unk = false;
  for (size_t i = 0; i < piece.size(); ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    int32_t id = byte_ids_[byte];
    std::string text;
    if (!plain) {
      text = absl::StrCat(i == 0 ? "" : options_.continuing_subword_prefix, ByteToStandIn(byte),
                          i + 1 == piece.size() ? options_.end_of_word_suffix : "");
      id = vocabulary_.Id(text);
    }
    if (id >= 0) {
      if (pending_unk) symbols->push_back(unk_);
      pending_unk = false;
      symbols->push_back(id);
    } else if (unk_ >= 0) {
      if (pending_unk && !options_.fuse_unk) symbols->push_back(unk_);
      pending_unk = true;
    }
  }
  if (pending_unk) symbols->push_back(unk_);
}

void BpeModel::AppendCharacters(absl::string_view piece, std::vector<int32_t>* symbols) const {
  const bool plain =
      options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  // The reference library holds an unknown token back until a known character comes, also past
  // bytes; so does this.
  bool pending_unk = false;
  std::string decorated;
  for (size_t position = 0; position < piece.size();) {
    const size_t start = position;
    const uint32_t c = NextCodePoint(piece, &position);
    absl::string_view text = piece.substr(start, position - start);
    int32_t id = -1;
    if (plain) {
      const auto known = character_ids_.find(c);
      if (known != character_ids_.end()) id = known->second;
    } else {
      decorated = absl::StrCat(start == 0 ? "" : options_.continuing_subword_prefix, text,
                               position == piece.size() ? options_.end_of_word_suffix : "");
      text = decorated;
      id = vocabulary_.Id(text);
    }
    if (id >= 0) {
      if (pending_unk) symbols->push_back(unk_);
      pending_unk = false;
      symbols->push_back(id);
      continue;
    }
    if (options_.byte_fallback) {
      const bool all_known = all_bytes_ || std::all_of(text.begin(), text.end(), [&](char byte) {
                               return byte_ids_[static_cast<uint8_t>(byte)] >= 0;
                             });
      if (all_known) {
        for (const char byte : text) symbols->push_back(byte_ids_[static_cast<uint8_t>(byte)]);
        continue;
      }
    }
    if (unk_ >= 0) {
      if (pending_unk && !options_.fuse_unk) symbols->push_back(unk_);
      pending_unk = true;
    }
  }
  if (pending_unk) symbols->push_back(unk_);
}

void BpeModel::MergeShort(std::vector<int32_t>* symbols, size_t from) const {
  int32_t* const symbol = symbols->data() + from;
  size_t count = symbols->size() - from;
  if (count < 2) return;
  uint32_t rank[kShort];  // [i] of the pair (i, i + 1)
  for (size_t i = 0; i + 1 < count; ++i) rank[i] = table_.Rank(symbol[i], symbol[i + 1]);
  for (;;) {
    size_t best = 0;
    uint32_t lowest = MergeTable::kNoRank;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (rank[i] < lowest) {
        lowest = rank[i];
        best = i;
      }
    }
    if (lowest == MergeTable::kNoRank) break;
    symbol[best] = merged_[lowest];
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbol[i] = symbol[i + 1];
      rank[i] = rank[i + 1];
    }
    if (best > 0) rank[best - 1] = table_.Rank(symbol[best - 1], symbol[best]);
    if (best + 1 < count) rank[best] = table_.Rank(symbol[best], symbol[best + 1]);
  }
  symbols->resize(from + count);
}

}  // namespace tranche
