// Geometry of attention that does not depend on the instruction set: who sees whom, how work is
// cut, and how scratch memory is laid out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tensor/backend.h"

namespace tranche::cpu {

// Keys are processed in tiles counted from the start of their segment; the running maximum moves
// once per tile, so this number is part of what a result's bits depend on. A multiple of 64, the
// stride of dropout blocks.
inline constexpr int64_t kKeyTile = 64;
// Queries of a forward item, at most; results do not depend on it.
inline constexpr int64_t kQueryBlock = 192;
inline constexpr int64_t kMinQueryBlock = 48;
// Queries of a tile in backward.
inline constexpr int64_t kQueryTile = 64;

// Leading dimensions are odd multiples of a cache line, so that columns spread over the cache's
// sets.
inline constexpr int64_t kLineFloats = 16;
constexpr int64_t PaddedStride(int64_t cols) {
  const int64_t lines = (cols + kLineFloats - 1) / kLineFloats;
  return (lines | 1) * kLineFloats;
}

// Query i of a segment stands at position i + keys − queries and sees the keys from position − left
// to position + right. Both ends move on with i.
struct Visibility {
  int64_t queries, keys, shift, left, right;

  Visibility(const AttentionArgs& args, int64_t segment_queries, int64_t segment_keys)
      : queries(segment_queries), keys(segment_keys), shift(segment_keys - segment_queries) {
    left = std::min<int64_t>(args.window, int64_t{1} << 40);
    right = args.causal ? 0 : left;
  }
  int64_t FirstKey(int64_t query) const { return std::max<int64_t>(0, query + shift - left); }
  int64_t EndKey(int64_t query) const { return std::min(keys, query + shift + right + 1); }
  int64_t FirstQuery(int64_t key) const { return std::max<int64_t>(0, key - right - shift); }
  int64_t EndQuery(int64_t key) const { return std::min(queries, key + left - shift + 1); }
};

// One segment's rows.
struct Segment {
  int64_t query_begin, query_end, key_begin, key_end;
  int64_t queries() const { return query_end - query_begin; }
  int64_t keys() const { return key_end - key_begin; }
};

inline Segment SegmentOf(const AttentionArgs& args, int64_t s) {
  const int32_t* q = args.query_offsets.Row<int32_t>(0);
  const int32_t* k = args.key_offsets.Row<int32_t>(0);
  return {q[s], q[s + 1], k[s], k[s + 1]};
}

// Hands out 256-byte lines of a scratch area; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <typename T>
  T* Take(int64_t count) {
    std::byte* const at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

// What one thread of a forward pass needs: {carver, head_dim}, the rest takes its memory. Rows of
// heads are `head_stride` floats apart.
struct ForwardScratch {
  static constexpr int64_t kStride = PaddedStride(kQueryBlock);
  Carver& carver;
  int64_t head_dim;
  int64_t head_stride = PaddedStride(head_dim);
  float* queries = carver.Take<float>(head_dim * kStride);  // transposed
  // Scores, then probabilities; keys are rows.
  float* scores = carver.Take<float>(kKeyTile * kStride);
  float* keys = carver.Take<float>(kKeyTile * head_stride);
  float* values = carver.Take<float>(kKeyTile * head_stride);
  float* sums = carver.Take<float>(kQueryBlock * head_stride);  // Σ p·v, not yet divided
  float* max = carver.Take<float>(kQueryBlock);
  float* sum = carver.Take<float>(kQueryBlock);
  float* rescale = carver.Take<float>(kQueryBlock);
  uint32_t* token_low = carver.Take<uint32_t>(kQueryBlock);
  uint32_t* token_high = carver.Take<uint32_t>(kQueryBlock);
};

// What one thread of a backward pass needs, likewise.
struct BackwardScratch {
  static constexpr int64_t kStride = PaddedStride(kQueryTile);
  Carver& carver;
  int64_t head_dim;
  int64_t head_stride = PaddedStride(head_dim);
  float* queries = carver.Take<float>(kQueryTile * head_stride);
  float* d_out = carver.Take<float>(kQueryTile * head_stride);
  float* queries_transposed = carver.Take<float>(head_dim * kStride);
  float* d_out_transposed = carver.Take<float>(head_dim * kStride);
  float* keys = carver.Take<float>(kKeyTile * head_stride);
  float* values = carver.Take<float>(kKeyTile * head_stride);
  float* d_keys = carver.Take<float>(kKeyTile * head_stride);
  float* d_values = carver.Take<float>(kKeyTile * head_stride);
  float* key_sums = carver.Take<float>(kKeyTile * head_stride);  // d_keys of several heads
  float* value_sums = carver.Take<float>(kKeyTile * head_stride);
  float* d_queries = carver.Take<float>(kQueryTile * head_stride);
  float* probabilities = carver.Take<float>(kKeyTile * kStride);
  float* d_scores = carver.Take<float>(kKeyTile * kStride);
  float* kept = carver.Take<float>(kKeyTile * kStride);  // dropout: 0 or 1/(1 − p)
  float* log_sum_exp = carver.Take<float>(kQueryTile);
  float* delta = carver.Take<float>(kQueryTile);
  uint32_t* token_low = carver.Take<uint32_t>(kQueryTile);
  uint32_t* token_high = carver.Take<uint32_t>(kQueryTile);
};

}  // namespace tranche::cpu
