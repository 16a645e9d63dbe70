// How a source is cut into samples: which tokens stand in sample j, for every j at once and without
// order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/source.h"

namespace tranche {

enum class Packing { kConcat, kBestFit, kNone };

// Tokens [begin, begin + size) of a source's file as rows of a sample.
struct TokenRange {
  int64_t begin = 0;
  int64_t size = 0;
};

struct PackingOptions {
  Packing packing = Packing::kConcat;
  int64_t capacity = 0;       // rows of a sample
  int64_t wrap_rows = 0;      // of them around each piece: [CLS] and [SEP]
  bool split_pieces = false;  // concat: a new piece at each document
  // The last token of what is cut (the stream with concat, else each document) is only ever a
  // label: it is no row.
  bool last_is_label = false;
  int64_t smallest_piece = 1;  // none: a shorter rest of a document is left out
};

class SampleIndex {
 public:
  // One pass over the documents. Memory: concat nothing (8 bytes a sample where pieces are wrapped
  // and split), none 8 bytes for 64 documents, best_fit 16 bytes a piece and 8 a sample (twice that
  // while it is built).
  static std::unique_ptr<SampleIndex> Build(const Source& source, const PackingOptions& options);
  virtual ~SampleIndex() = default;

  virtual int64_t size() const = 0;
  // The pieces of sample j in [0, size()), in the order of the rows. With split_pieces, best_fit
  // and none each lies in one document.
  virtual void GetPieces(int64_t j, std::vector<TokenRange>* pieces) const = 0;

  // Tokens that take no part in the loss of an epoch: no label, and no row that has one.
  int64_t unused_tokens() const { return unused_tokens_; }

 protected:
  int64_t unused_tokens_ = 0;
};

}  // namespace tranche
