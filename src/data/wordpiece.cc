#include "data/wordpiece.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tranche {

absl::StatusOr<std::unique_ptr<WordPieceModel>> WordPieceModel::Create(
    const Vocabulary& vocabulary, const WordPieceOptions& options) {
  std::unique_ptr<WordPieceModel> model(new WordPieceModel());
  model->unk_ = vocabulary.Id(options.unk_token);
  if (model->unk_ < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("unk_token: \"", options.unk_token, "\" is not in the vocabulary"));
  }
  model->max_characters_ = options.max_input_chars_per_word;
  model->token_at_.assign(2, -1);
  const std::string& prefix = options.continuing_subword_prefix;
  vocabulary.ForEach([&](const std::string& token, int32_t id) {
    model->AddToTrie(kStartRoot, token, id);
    if (absl::StartsWith(token, prefix))
      model->AddToTrie(kContinueRoot, absl::string_view(token).substr(prefix.size()), id);
  });
  return model;
}

void WordPieceModel::AddToTrie(int32_t node, absl::string_view text, int32_t id) {
  if (text.empty()) return;
  for (const char c : text) {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(c);
    const auto [child, is_new] = children_.emplace(key, static_cast<int32_t>(token_at_.size()));
    if (is_new) token_at_.push_back(-1);
    node = child->second;
  }
  token_at_[node] = id;
}

void WordPieceModel::Append(absl::string_view piece, std::vector<int32_t>* ids) const {
  int64_t characters = 0;
  for (const char c : piece) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  const size_t from = ids->size();
  size_t start = 0;
  while (characters <= max_characters_ && start < piece.size()) {
    int32_t node = start == 0 ? kStartRoot : kContinueRoot, token = -1;
    size_t end = start;
    for (size_t i = start; i < piece.size(); ++i) {
      const auto child =
          children_.find(static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(piece[i]));
      if (child == children_.end()) break;
      node = child->second;
      if (token_at_[node] >= 0) {
        token = token_at_[node];
        end = i + 1;
      }
    }
    if (token < 0) break;
    ids->push_back(token);
    start = end;
  }
  if (start < piece.size()) {
    ids->resize(from);
    ids->push_back(unk_);
  }
}

}  // namespace tranche
