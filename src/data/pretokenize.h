// The pre-tokenizer of a tokenizer: cuts text into the pieces that the model sees one by one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/pretokenize_scan.h"
#include "data/tokenizer_json.h"

namespace tranche {

// Takes a piece; `at_start`: it starts where the whole input starts. The view lives during the call
// only.
using PieceSink = absl::FunctionRef<void(absl::string_view piece, bool at_start)>;

class PreTokenizeStep {
 public:
  virtual ~PreTokenizeStep() = default;
  // Cuts one piece; never hands out empty ones.
  virtual void Cut(absl::string_view piece, bool at_start, PieceSink sink) const = 0;
};

class PreTokenizer {
 public:
  // `node` as in tokenizer.json; a null node cuts nothing.
  static absl::StatusOr<PreTokenizer> Read(const JsonNode& node);
  static PreTokenizer Bert();
  static PreTokenizer ByteLevel(ScanPattern pattern);

  void Cut(absl::string_view text, bool at_start, PieceSink sink) const {
    CutFrom(0, text, at_start, sink);
  }

  // True where the last step writes bytes as stand-ins. It is left out of Cut: pieces are plain
  // bytes then, and a model works on bytes (which comes to the same).
  bool byte_level() const { return byte_level_; }
  // The one pattern that does all the cutting, or kNone where more is to be done.
  ScanPattern only_pattern() const { return only_pattern_; }
  // True where BERT's cut at white space and punctuation is all there is.
  bool only_bert() const { return only_bert_; }
  // True where a text is one piece, unchanged.
  bool cuts_nothing() const { return steps_.empty(); }

 private:
  static constexpr size_t kMaxSteps = 100;
  absl::Status Add(const JsonNode& node);
  void CutFrom(size_t step, absl::string_view text, bool at_start, PieceSink sink) const;

  std::vector<std::unique_ptr<PreTokenizeStep>> steps_;
  bool byte_level_ = false;
  bool only_bert_ = false;
  ScanPattern only_pattern_ = ScanPattern::kNone;
};

}  // namespace tranche
