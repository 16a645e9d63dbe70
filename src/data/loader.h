// Micro-batches from tokenized corpora, in an order that is a function of (seed, global sample
// index) alone: no rank, thread, worker or restart changes it, and any step can be asked for
// directly. The state of a run is its step number.
//
// A sample is one sequence of at most sequence_length rows. Sample g of a run belongs to step g /
// global_batch_size. Within a step, micro-batch `slot` holds samples [slot * micro_batch_size,
// (slot + 1) * micro_batch_size) of the global batch; of R ranks, rank r takes slots r, r + R, r +
// 2R, … .
//
// What a sample is, with L = sequence_length:
//   concat    clm: rows [j L, (j+1) L) of the source's token stream, the next token as label; the
//             last sample is shorter, nothing is lost.
//             mlm: [CLS], L - 2 tokens, [SEP]; with document_mask each document's part is wrapped
//             by itself.
//   best_fit  documents cut into pieces that fit, pieces packed together by best fit decreasing.
//   none      a piece of one document each.
// Labels of best_fit and none stay inside the document; those of concat do so where document_mask
// is on. A document's first token is then never a label, so an epoch predicts sum(length - 1)
// tokens. Documents come from the index, never from the EOS id.
//
// A blend without weights is one long source: an epoch is every sample once. With weights, sample g
// comes from the source whose share is due, so every prefix of the run holds the sources in
// proportion to within one sample per source; each source goes through epochs of its own. Every
// epoch is shuffled anew.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/batch.h"
#include "data/packing.h"
#include "data/source.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

namespace tranche {

enum class Objective { kClm, kMlm };

struct SourceOptions {
  std::string path;   // PREFIX, PREFIX.bin or PREFIX.idx
  double weight = 0;  // share in the blend; 0 in all sources: by size
};

// The [data] section of a recipe, and what the loader must know from other sections.
struct LoaderOptions {
  std::vector<SourceOptions> sources;
  TokenFormat format = TokenFormat::kAuto;
  std::string token_dtype;      // of bare ids: "uint16", "uint32" or "int32"; else empty or "auto"
  int64_t sequence_length = 0;  // rows, with [CLS] and [SEP]
  Objective objective = Objective::kClm;
  double mlm_probability = 0.15;  // (0, 1]
  bool whole_word_mask = false;   // choose words, not tokens
  bool next_sentence = false;     // mlm: [CLS] A [SEP] B [SEP]; needs shuffle and packing none
  Packing packing = Packing::kConcat;
  bool document_mask = false;  // attention and positions begin anew at each document
  bool eod_loss = true;        // false: the EOS that ends a document is not a label
  bool shuffle = true;
  uint64_t seed = 0;  // of order and masks
  DataSplit split = DataSplit::kAll;
  double validation_fraction = 0;  // of each source's tokens, see Source
  int64_t epochs = 0;  // > 0: samples from epochs * samples_per_epoch on are absent; 0: without end
  int64_t global_batch_size = 0;  // sequences
  int64_t micro_batch_size = 0;   // sequences; divides global_batch_size
  int64_t vocab_rows = 0;         // rows of the model's embedding; ids from here on are refused
  // Not owned, outlives the loader, may be null. Needed by mlm, and by eod_loss = false where the
  // data do not say their EOS; data made with another tokenizer are refused.
  const Tokenizer* tokenizer = nullptr;
};

// From the options alone: no file is opened.
BatchBounds ComputeBatchBounds(const LoaderOptions& options);

// Immutable after Create; every method is const and thread-safe.
class Loader {
 public:
  virtual ~Loader() = default;

  // Opens and checks every source: sizes, offsets, types, ids below vocab_rows, the tokenizer it
  // was made with.
  static absl::StatusOr<std::unique_ptr<Loader>> Create(const LoaderOptions& options);

  // slot in [0, slots()).
  virtual absl::StatusOr<MicroBatch> Get(int64_t step, int64_t slot) const = 0;
  int64_t slots() const { return options_.global_batch_size / options_.micro_batch_size; }

  // Labels in the whole global batch of a step, and in one slot: what the loss is divided by. Zero
  // is legal.
  virtual absl::StatusOr<int64_t> PredictedTokens(int64_t step) const = 0;
  virtual absl::StatusOr<int64_t> PredictedTokens(int64_t step, int64_t slot) const = 0;

  virtual int64_t samples_per_epoch() const = 0;  // of all sources together
  int64_t steps_per_epoch() const;                // rounded up
  BatchBounds bounds() const { return ComputeBatchBounds(options_); }
  const LoaderOptions& options() const { return options_; }

  // Where sample g comes from.
  struct SampleInfo {
    struct Part {
      int64_t row = 0;       // in the sample
      int64_t document = 0;  // in the file
      int64_t begin = 0;     // token in the document
      int64_t size = 0;      // tokens; without [CLS], [SEP] and the label behind the last
      bool ends_document = false;
    };
    std::string path;
    int64_t source = 0, sample = 0;
    int64_t epoch = 0;        // of the source; of the whole blend where it has no weights
    std::vector<Part> parts;  // in the order of the rows; one per document
  };
  virtual SampleInfo Describe(int64_t g) const = 0;

  // What an epoch holds and what it leaves out, for the start of a run.
  struct SourceReport {
    std::string path;
    double share = 0;  // of the samples
    int64_t tokens = 0, documents = 0, samples = 0;
    int64_t unused_tokens = 0;   // no part in an epoch's loss: no label, no row with one
    std::string unused_reason;   // empty where none is unused
    double bytes_per_token = 0;  // from PREFIX.meta.json; 0 unknown
  };
  virtual const std::vector<SourceReport>& report() const = 0;
  // XXH3-128 over names, sizes and options that decide the order: a resumed run compares it.
  virtual const std::string& fingerprint() const = 0;

 protected:
  explicit Loader(LoaderOptions options) : options_(std::move(options)) {}
  LoaderOptions options_;
};

}  // namespace tranche
