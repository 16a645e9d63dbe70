// Which sample of which source is sample g of a run: a function of (seed, g) alone.
#pragma once

#include <cstdint>
#include <vector>

namespace tranche {

struct SampleId {
  int64_t source = 0;
  int64_t sample = 0;    // in the source's index
  int64_t order = 0;     // which of the run's orders it stands in: the source's own, or 0 where all
                         // sources share one
  int64_t epoch = 0;     // of that order
  int64_t position = 0;  // in that epoch
};

class Sampler {
 public:
  // sizes: samples of each source, each >= 1. weights: shares (any scale, each > 0), or empty: all
  // sources are one, an epoch holds every sample once and shuffles across sources.
  Sampler(std::vector<int64_t> sizes, const std::vector<double>& weights, bool shuffle,
          uint64_t seed);

  // O(sources * log sources).
  SampleId At(int64_t g) const;
  // The sample beside it in its order: the two of a pair name each other; the last of an odd number
  // names itself.
  SampleId Partner(const SampleId& id) const;
  int64_t samples_per_epoch() const { return total_; }
  double share(int64_t source) const;

 private:
  // Samples of a source that are due by time t, where a unit of time is one sample of the run:
  // round(t * share).
  uint64_t Due(int64_t source, uint64_t t) const;
  SampleId AtWeighted(int64_t g) const;
  SampleId InSource(int64_t source, int64_t epoch, int64_t position) const;
  SampleId InAll(int64_t epoch, int64_t position) const;

  const std::vector<int64_t> sizes_;
  std::vector<uint64_t> shares_;  // in 2^-32, sum 2^32; empty without weights
  const bool shuffle_;
  const uint64_t key_;
  int64_t total_ = 0;
};

}  // namespace tranche
