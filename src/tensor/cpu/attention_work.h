// How attention is checked, cut into items of work and given its scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/backend.h"
#include "tensor/cpu/attention_tiles.h"

namespace tranche::cpu {

// Shapes, types and offsets; a fault is the programmer's.
void CheckAttention(const AttentionArgs& args, const Tensor& q, const Tensor& k, const Tensor& v);

// Blocks of at most `block` rows (queries or keys) of each segment and head, or one item for a
// whole segment and head. Items of a segment and head follow each other, so that keys and values
// are found in cache, the heaviest of a causal segment first.
class WorkList {
 public:
  enum class Rows { kQueries, kKeys, kWholeSegment };
  struct Item {
    Segment segment;
    int64_t head, begin, end;  // rows of the segment
  };

  // `block` counts for nothing with kWholeSegment. `offsets` has room for segments + 1 numbers and
  // lives as long as the list.
  WorkList(const AttentionArgs& args, Rows rows, int64_t block, int64_t heads, int64_t* offsets);
  int64_t items() const { return offsets_[args_.segments] * heads_; }
  Item At(int64_t index) const;

 private:
  int64_t Length(const Segment& segment) const;

  const AttentionArgs& args_;
  Rows rows_;
  int64_t block_, heads_;
  int64_t* offsets_;
};

// The areas of AttentionScratchBytes(limits, threads).
struct AttentionScratch {
  int64_t* item_offsets;  // [segments + 1]
  float* delta;           // [tokens, heads]: Σ d_out·out of backward
  float* d_queries;    // [tokens, heads·head_dim]: sums in fp32 where d_q is bf16, otherwise null
  std::byte* threads;  // thread_bytes per thread
  int64_t thread_bytes;

  AttentionScratch(Carver& carver, int64_t segments, int64_t tokens, int64_t heads,
                   int64_t head_dim, DType dtype, int threads);
  std::byte* OfThread() const;
};

}  // namespace tranche::cpu
