#include "data/source.h"

#include <cmath>

namespace tranche {

Source::Source(std::unique_ptr<TokenFile> file, DataSplit split, double validation_fraction)
    : file_(std::move(file)),
      token_end_(file_->num_tokens()),
      document_end_(file_->num_documents()) {
  if (split == DataSplit::kAll || token_end_ == 0) return;
  int64_t cut = token_end_ - std::llround(static_cast<double>(token_end_) * validation_fraction);
  int64_t cut_document = 0;
  if (file_->has_index()) {
    cut_document = document_end_;
    if (cut < token_end_) {
      cut_document = file_->DocumentAt(cut);
      if (file_->DocumentBegin(cut_document) < cut) ++cut_document;
    }
    cut = file_->DocumentBegin(cut_document);
  }
  if (split == DataSplit::kTrain) {
    token_end_ = cut;
    if (file_->has_index()) document_end_ = cut_document;
  } else {
    token_begin_ = cut;
    document_begin_ = cut_document;
  }
}

int64_t Source::FirstToken(int64_t d) const {
  if (!file_->has_index()) return d == document_begin_ ? token_begin_ : token_end_;
  return file_->DocumentBegin(d);
}

int64_t Source::DocumentAt(int64_t token) const {
  return file_->has_index() ? file_->DocumentAt(token) : document_begin_;
}

}  // namespace tranche
