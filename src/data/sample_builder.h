// Turns samples into rows of a micro-batch: token ids, positions, segments, labels, masks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "data/batch.h"
#include "data/loader.h"
#include "data/masking.h"
#include "data/packing.h"
#include "data/sampler.h"
#include "data/source.h"

namespace tranche {

struct LoadedSource {
  std::unique_ptr<Source> source;
  std::unique_ptr<SampleIndex> index;  // refers to *source
  int32_t eos = -1;                    // the id that ends its documents; -1 unknown
  double bytes_per_token = 0;
};

// How the options cut samples; also what BatchBounds follow from.
PackingOptions PackingOf(const LoaderOptions& options);

// Immutable and thread-safe.
class SampleBuilder {
 public:
  // All referenced objects outlive the builder.
  SampleBuilder(const LoaderOptions& options, const std::vector<LoadedSource>& sources,
                const Sampler& sampler);

  // Appends sample g to *batch.
  absl::Status Add(int64_t g, MicroBatch* batch) const;
  // Labels of sample g, without reading ids where the packing alone decides.
  absl::StatusOr<int64_t> CountPredicted(int64_t g) const;
  // The token ranges of sample g in the order of its rows, and the source each is from.
  struct Part {
    const LoadedSource* from;
    TokenRange piece;
  };
  std::vector<Part> PartsOf(const SampleId& id, bool* swapped) const;

 private:
  absl::Status AddCausal(const std::vector<Part>& parts, MicroBatch* batch) const;
  absl::Status AddMasked(const SampleId& id, const std::vector<Part>& parts,
                         MicroBatch* batch) const;
  absl::Status AppendIds(const Part& part, MicroBatch* batch) const;
  void EndSegment(MicroBatch* batch) const;
  bool LastRowHasLabel(const Part& part) const;

  const LoaderOptions& options_;
  const std::vector<LoadedSource>& sources_;
  const Sampler& sampler_;
  const uint64_t mask_key_, pair_key_;
  int32_t cls_ = -1, sep_ = -1;
  std::unique_ptr<TokenMasker> masker_;
};

}  // namespace tranche
