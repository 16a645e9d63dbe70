#include "data/tokenizer.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "data/bert_runs.h"
#include "data/tokenizer_cache.h"
#include "data/tokenizer_parts.h"
#include "data/unicode.h"

namespace tranche {
namespace {

constexpr absl::string_view kMetaspace = "\u2581";

std::vector<AddedToken> OnlyNormalized(const TokenizerParts& parts, bool normalized) {
  std::vector<AddedToken> tokens;
  // Of equal texts the special token counts: it comes first.
  for (const bool special : {true, false}) {
    for (AddedToken token : parts.added) {
      if (token.normalized != normalized || token.special != special) continue;
      if (normalized && parts.normalizer != nullptr) {
        std::string text;
        parts.normalizer->Append(token.content, &text);
        token.content = std::move(text);
      }
      tokens.push_back(std::move(token));
    }
  }
  return tokens;
}

class TokenizerImpl : public Tokenizer {
 public:
  explicit TokenizerImpl(TokenizerParts parts)
      : parts_(std::move(parts)),
        raw_tokens_(OnlyNormalized(parts_, false)),
        normalized_tokens_(OnlyNormalized(parts_, true)) {
    for (const AddedToken& token : parts_.added) {
      added_texts_[token.id] = token.content;
      // The library decodes an added token to the text that it looks for, its normalized form
      // ("▁<s>").
      std::string decoded = token.content;
      if (token.normalized && parts_.normalizer != nullptr) {
        decoded.clear();
        parts_.normalizer->Append(token.content, &decoded);
      }
      decoded_texts_[token.id] = std::move(decoded);
      added_ids_[token.content] = token.id;
      if (token.special) special_ids_.insert(token.id);
    }
    vocab_size_ = parts_.vocabulary->max_id() + 1;
    for (const AddedToken& token : parts_.added) vocab_size_ = std::max(vocab_size_, token.id + 1);
    skipped_ids_ = special_ids_;
    special_ids_.insert(parts_.reserved.begin(), parts_.reserved.end());
    cut_at_metaspace_ = parts_.pre_tokenizer.cuts_nothing() && !parts_.pre_tokenizer.byte_level() &&
                        parts_.model->MayCutBefore(kMetaspace);
    bert_runs_ = parts_.normalizer != nullptr && parts_.normalizer->bert() != nullptr &&
                 parts_.pre_tokenizer.only_bert() && normalized_tokens_.empty();
    // A continuation is what does not start with the space, however this tokenizer writes it.
    space_marker_ =
        parts_.pre_tokenizer.byte_level() ? ByteToStandIn(' ') : std::string(kMetaspace);
  }

  void Encode(absl::string_view text, bool add_special, std::vector<int32_t>* ids) const override {
    if (add_special) ids->insert(ids->end(), parts_.before.begin(), parts_.before.end());
    Loan cache(this);
    const auto push = [&](int32_t id) { ids->push_back(id); };
    std::string normalized;
    raw_tokens_.Split(
        text,
        [&](size_t begin, size_t end) {
          absl::string_view segment = text.substr(begin, end - begin);
          if (bert_runs_) return AppendBertRuns(segment, cache.get(), ids);
          const bool at_start = begin == 0;
          if (parts_.normalizer != nullptr) {
            normalized.clear();
            parts_.normalizer->Append(segment, &normalized);
            segment = normalized;
          }
          normalized_tokens_.Split(
              segment,
              [&](size_t b, size_t e) {
                AppendPieces(segment.substr(b, e - b), at_start && b == 0, cache.get(), ids);
              },
              push);
        },
        push);
    if (add_special) ids->insert(ids->end(), parts_.after.begin(), parts_.after.end());
  }

  std::string Decode(const std::vector<int32_t>& ids, bool skip_special) const override {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (const int32_t id : ids) {
      if (skip_special && skipped_ids_.contains(id)) continue;
      const auto added = decoded_texts_.find(id);
      const std::string& token =
          added != decoded_texts_.end() ? added->second : parts_.vocabulary->Token(id);
      if (!token.empty() || parts_.vocabulary->Id("") == id) tokens.push_back(token);
    }
    std::string text;
    if (parts_.decoder != nullptr) {
      parts_.decoder->Decode(&tokens);
      for (const std::string& token : tokens) text += token;
    } else {
      for (size_t i = 0; i < tokens.size(); ++i) text += (i == 0 ? "" : " ") + tokens[i];
    }
    return text;
  }

  int32_t vocab_size() const override { return vocab_size_; }

  int32_t TokenToId(absl::string_view token) const override {
    const auto added = added_ids_.find(token);
    return added != added_ids_.end() ? added->second : parts_.vocabulary->Id(token);
  }

  std::string IdToToken(int32_t id) const override {
    const auto added = added_texts_.find(id);
    return added != added_texts_.end() ? added->second : parts_.vocabulary->Token(id);
  }

  bool IsSpecial(int32_t id) const override { return special_ids_.contains(id); }

  bool ContinuesWord(int32_t id) const override {
    if (special_ids_.contains(id)) return false;
    const std::string token = IdToToken(id);
    if (token.empty()) return false;
    if (!parts_.continues_word_prefix.empty()) {
      return token.size() > parts_.continues_word_prefix.size() &&
             absl::StartsWith(token, parts_.continues_word_prefix);
    }
    return !absl::StartsWith(token, space_marker_);
  }

  const Specials& specials() const override { return parts_.specials; }
  const std::string& fingerprint() const override { return parts_.fingerprint; }
  const std::vector<std::string>& warnings() const override { return parts_.warnings; }
  const std::vector<std::string>& files() const override { return parts_.files; }

 private:
  // A cache for the time of one call. Caches outlive calls, so that each thread finds a warm one;
  // there are as many as threads.
  class Loan {
   public:
    explicit Loan(const TokenizerImpl* owner) : owner_(owner) {
      const absl::MutexLock lock(&owner_->mutex_);
      if (owner_->caches_.empty()) {
        cache_ = std::make_unique<PieceCache>();
      } else {
        cache_ = std::move(owner_->caches_.back());
        owner_->caches_.pop_back();
      }
    }
    ~Loan() {
      const absl::MutexLock lock(&owner_->mutex_);
      owner_->caches_.push_back(std::move(cache_));
    }
    PieceCache* get() { return cache_.get(); }

   private:
    const TokenizerImpl* owner_;
    std::unique_ptr<PieceCache> cache_;
  };

  void AppendBertRuns(absl::string_view text, PieceCache* cache, std::vector<int32_t>* ids) const {
    const char* const text_end = text.data() + text.size();
    std::string normalized;
    const auto tokenize = [&](absl::string_view run) {
      normalized.clear();
      parts_.normalizer->Append(run, &normalized);
      parts_.pre_tokenizer.Cut(normalized, false, [&](absl::string_view piece, bool) {
        parts_.model->Append(piece, ids);
      });
    };
    ForEachBertRun(text, parts_.normalizer->bert()->handle_chinese_chars,
                   [&](size_t begin, size_t end) {
                     AppendCached(text.substr(begin, end - begin), text_end, cache, ids, tokenize);
                   });
  }

  void AppendPieces(absl::string_view text, bool at_start, PieceCache* cache,
                    std::vector<int32_t>* ids) const {
    const char* const text_end = text.data() + text.size();
    const ScanPattern pattern = parts_.pre_tokenizer.only_pattern();
    if (pattern != ScanPattern::kNone) {
      ScanAll(pattern, text, [&](size_t begin, size_t end) {
        AppendPiece(text.substr(begin, end - begin), text_end, cache, ids);
      });
    } else if (cut_at_metaspace_) {
      size_t begin = 0;
      for (size_t at = 1; begin < text.size(); ++at) {
        at = text.find(kMetaspace.data(), at, kMetaspace.size());
        if (at == absl::string_view::npos) at = text.size();
        if (at == text.size() || !absl::EndsWith(text.substr(0, at), kMetaspace)) {
          AppendPiece(text.substr(begin, at - begin), text_end, cache, ids);
          begin = at;
        }
      }
    } else {
      parts_.pre_tokenizer.Cut(text, at_start, [&](absl::string_view piece, bool) {
        AppendPiece(piece, piece.data() + piece.size(), cache, ids);
      });
    }
  }

  void AppendPiece(absl::string_view piece, const char* readable_end, PieceCache* cache,
                   std::vector<int32_t>* ids) const {
    AppendCached(piece, readable_end, cache, ids,
                 [&](absl::string_view text) { parts_.model->Append(text, ids); });
  }

  // tokenize(piece) appends the ids of a piece that the cache does not know.
  template <typename Tokenize>
  static void AppendCached(absl::string_view piece, const char* readable_end, PieceCache* cache,
                           std::vector<int32_t>* ids, Tokenize tokenize) {
    if (piece.size() > PieceCache::kMaxPieceBytes) return tokenize(piece);
    const PieceCache::Key key = PieceCache::MakeKey(piece, readable_end);
    if (cache->AppendIds(piece, key, ids)) return;
    const size_t before = ids->size();
    tokenize(piece);
    cache->Insert(piece, key, ids->data() + before, ids->size() - before);
  }

  const TokenizerParts parts_;
  const AddedTokenMatcher raw_tokens_, normalized_tokens_;
  absl::flat_hash_map<int32_t, std::string> added_texts_, decoded_texts_;
  absl::flat_hash_map<std::string, int32_t> added_ids_;
  absl::flat_hash_set<int32_t> special_ids_, skipped_ids_;
  int32_t vocab_size_ = 0;
  bool cut_at_metaspace_ = false;
  bool bert_runs_ = false;  // see bert_runs.h
  std::string space_marker_;

  mutable absl::Mutex mutex_;
  mutable std::vector<std::unique_ptr<PieceCache>> caches_;
};

}  // namespace

std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerParts parts) {
  return std::make_unique<TokenizerImpl>(std::move(parts));
}

}  // namespace tranche
