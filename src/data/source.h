// The part of a token file that a loader draws from: all of it, or one side of a train/validation
// cut.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "data/token_file.h"

namespace tranche {

enum class DataSplit { kAll, kTrain, kValidation };

// Token and document numbers are those of the file. Documents are whole where the file knows them;
// a file without an index is cut at a token and its part counts as one document.
class Source {
 public:
  // kTrain: what is before the cut, kValidation: what is behind it. The cut stands at the first
  // document that begins in the last `validation_fraction` of the tokens.
  Source(std::unique_ptr<TokenFile> file, DataSplit split, double validation_fraction);

  const TokenFile& file() const { return *file_; }
  int64_t token_begin() const { return token_begin_; }
  int64_t token_end() const { return token_end_; }
  int64_t num_tokens() const { return token_end_ - token_begin_; }

  int64_t document_begin() const { return document_begin_; }
  int64_t document_end() const { return document_end_; }
  // First token of document d in [document_begin(), document_end()]; that of the last is
  // token_end().
  int64_t FirstToken(int64_t d) const;
  // The document that holds a token of this part.
  int64_t DocumentAt(int64_t token) const;

 private:
  std::unique_ptr<TokenFile> file_;
  int64_t token_begin_ = 0, token_end_ = 0, document_begin_ = 0, document_end_ = 0;
};

}  // namespace tranche
