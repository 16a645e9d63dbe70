#include "data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/numeric/int128.h"
#include "base/check.h"
#include "base/rng.h"

namespace tranche {
namespace {

constexpr uint64_t kOrderPurpose = 0x6f72646572;  // "order"
constexpr uint64_t kOne = uint64_t{1} << 32;

}  // namespace

Sampler::Sampler(std::vector<int64_t> sizes, const std::vector<double>& weights, bool shuffle,
                 uint64_t seed)
    : sizes_(std::move(sizes)),
      shuffle_(shuffle),
      key_(DeriveKey(seed, kOrderPurpose)),
      total_(std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0})) {
  if (weights.empty()) return;
  TRANCHE_CHECK_EQ(weights.size(), sizes_.size());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  uint64_t given = 0;
  for (const double weight : weights) {
    shares_.push_back(std::max<uint64_t>(
        1, static_cast<uint64_t>(std::llround(weight / sum * static_cast<double>(kOne)))));
    given += shares_.back();
  }
  // What rounding left over, at most one unit a source, goes to the largest.
  *std::max_element(shares_.begin(), shares_.end()) += kOne - given;
}

double Sampler::share(int64_t source) const {
  const size_t s = static_cast<size_t>(source);
  if (shares_.empty()) return static_cast<double>(sizes_[s]) / static_cast<double>(total_);
  return static_cast<double>(shares_[s]) / static_cast<double>(kOne);
}

uint64_t Sampler::Due(int64_t source, uint64_t t) const {
  const absl::uint128 exact = absl::uint128(t) * shares_[static_cast<size_t>(source)];
  return static_cast<uint64_t>((exact + kOne / 2) / kOne);
}

SampleId Sampler::InSource(int64_t source, int64_t epoch, int64_t position) const {
  SampleId id{source, position, source, epoch, position};
  const uint64_t size = static_cast<uint64_t>(sizes_[static_cast<size_t>(source)]);
  if (shuffle_) {
    const uint64_t key =
        DeriveKey(DeriveKey(key_, static_cast<uint64_t>(source)), static_cast<uint64_t>(epoch));
    id.sample = static_cast<int64_t>(PermutedIndex(static_cast<uint64_t>(position), size, key));
  }
  return id;
}

// Sample k of a source with share w is due at time (k + 1/2) / w. The run is all of them in the
// order of their times, so the first g samples hold about g w of each source.
SampleId Sampler::AtWeighted(int64_t g) const {
  const int64_t sources = static_cast<int64_t>(sizes_.size());
  const auto due_by = [&](uint64_t t) {
    uint64_t sum = 0;
    for (int64_t s = 0; s < sources; ++s) sum += Due(s, t);
    return sum;
  };
  // The largest whole time by which at most g samples are due. Rounding moves each source by half a
  // sample at most.
  const uint64_t target = static_cast<uint64_t>(g), slack = static_cast<uint64_t>(sources) + 1;
  uint64_t low = target > slack ? target - slack : 0,
           high = target + slack;  // due_by(low) <= g < due_by(high)
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (due_by(middle) <= target ? low : high) = middle;
  }
  // Within one unit of time every source has at most one sample due.
  std::vector<int64_t> due;
  for (int64_t s = 0; s < sources; ++s) {
    if (Due(s, low + 1) > Due(s, low)) due.push_back(s);
  }
  std::sort(due.begin(), due.end(), [&](int64_t a, int64_t b) {
    const absl::uint128 time_a =
        absl::uint128(2 * Due(a, low) + 1) * shares_[static_cast<size_t>(b)];
    const absl::uint128 time_b =
        absl::uint128(2 * Due(b, low) + 1) * shares_[static_cast<size_t>(a)];
    return time_a != time_b ? time_a < time_b : a < b;
  });
  const int64_t source = due[static_cast<size_t>(target - due_by(low))];
  const int64_t k = static_cast<int64_t>(Due(source, low)),
                size = sizes_[static_cast<size_t>(source)];
  return InSource(source, k / size, k % size);
}

SampleId Sampler::InAll(int64_t epoch, int64_t position) const {
  SampleId id{0, position, 0, epoch, position};
  if (shuffle_) {
    id.sample = static_cast<int64_t>(PermutedIndex(static_cast<uint64_t>(position),
                                                   static_cast<uint64_t>(total_),
                                                   DeriveKey(key_, static_cast<uint64_t>(epoch))));
  }
  while (id.sample >= sizes_[static_cast<size_t>(id.source)])
    id.sample -= sizes_[static_cast<size_t>(id.source++)];
  return id;
}

SampleId Sampler::At(int64_t g) const {
  TRANCHE_CHECK(g >= 0) << g;
  return shares_.empty() ? InAll(g / total_, g % total_) : AtWeighted(g);
}

SampleId Sampler::Partner(const SampleId& id) const {
  const int64_t size = shares_.empty() ? total_ : sizes_[static_cast<size_t>(id.source)];
  const int64_t other = id.position ^ 1;
  if (other >= size) return id;
  return shares_.empty() ? InAll(id.epoch, other) : InSource(id.source, id.epoch, other);
}

}  // namespace tranche
