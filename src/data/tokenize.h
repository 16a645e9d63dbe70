// Text to a tokenized dataset, on all cores, as a stream: memory does not grow with the corpus (but
// for 4 bytes a document), and the result does not depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file.h"
#include "data/text_reader.h"
#include "data/tokenizer.h"

namespace tranche {

struct TokenizeOptions {
  std::vector<std::string> inputs;  // as ExpandInputs takes them
  TextOptions text;
  std::string output;       // PREFIX of PREFIX.bin, PREFIX.idx, PREFIX.meta.json
  bool append_eos = false;  // every document ends with exactly one EOS
  bool add_bos = false;     // every document begins with exactly one BOS
  // > 0: two datasets, PREFIX-train and PREFIX-valid. A document's text decides where it goes (by
  // its hash, below this share: valid), so equal documents stay together and a grown corpus keeps
  // its split.
  double validation_fraction = 0;
  int threads = 0;  // 0: one per core
  bool overwrite = false;
  // Called from the calling thread now and then: bytes of the input files done and in all, tokens
  // written.
  std::function<void(int64_t done, int64_t total, int64_t tokens)> progress;
};

struct TokenizeReport {
  struct Output {
    std::string prefix;
    int64_t documents = 0, tokens = 0, text_bytes = 0;
  };
  std::vector<Output> outputs;
  TextStats text;
  int64_t empty_documents = 0;  // no token before BOS and EOS: dropped
  std::string token_type;
  int threads = 0;
};

// Documents are encoded without what the tokenizer's post-processor would put around them:
// append_eos and add_bos alone decide. Errors leave nothing behind and earlier datasets as they
// were: an output that exists (without overwrite), input that cannot be read, a full disk, no
// document with a token, an EOS or BOS that the tokenizer does not have.
absl::StatusOr<TokenizeReport> TokenizeCorpus(const Tokenizer& tokenizer,
                                              const TokenizeOptions& options,
                                              FileSystem& files = FileSystem::Real());

}  // namespace tranche
