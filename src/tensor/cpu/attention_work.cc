#include "tensor/cpu/attention_work.h"

#include <omp.h>

#include <algorithm>

#include "base/check.h"
#include "tensor/cpu/kernels.h"
#include "tensor/dropout_mask.h"

namespace tranche::cpu {

void CheckAttention(const AttentionArgs& args, const Tensor& q, const Tensor& k, const Tensor& v) {
  TRANCHE_CHECK(args.heads > 0 && args.kv_heads > 0 && args.heads % args.kv_heads == 0)
      << args.heads << " heads, " << args.kv_heads << " key/value heads";
  TRANCHE_CHECK(args.head_dim > 0 && args.window >= 0);
  TRANCHE_CHECK(q.dtype == DType::kFloat32 || q.dtype == DType::kBFloat16);
  TRANCHE_CHECK(k.dtype == q.dtype && v.dtype == q.dtype);
  TRANCHE_CHECK_EQ(q.cols, args.heads * args.head_dim);
  TRANCHE_CHECK_EQ(k.cols, args.kv_heads * args.head_dim);
  TRANCHE_CHECK(v.cols == k.cols && v.rows == k.rows);
  for (const Tensor* offsets : {&args.query_offsets, &args.key_offsets}) {
    TRANCHE_CHECK(offsets->dtype == DType::kInt32 && offsets->cols >= args.segments + 1);
  }
  for (int64_t s = 0; s < args.segments; ++s) {
    const Segment segment = SegmentOf(args, s);
    TRANCHE_CHECK(segment.queries() >= 0 && segment.keys() >= 0) << "segment " << s;
  }
  if (args.segments > 0) {
    const Segment last = SegmentOf(args, args.segments - 1);
    TRANCHE_CHECK(last.query_end <= q.rows && last.key_end <= k.rows);
  }
  if (args.dropout.probability == 0) return;
  TRANCHE_CHECK(args.dropout.probability > 0 && args.dropout.probability < 1);
  TRANCHE_CHECK(args.dropout.token_keys.dtype == DType::kUInt64 &&
                args.dropout.token_keys.cols >= q.rows);
  TRANCHE_CHECK(AttentionDropoutElement(args.heads, 0) <= kDropoutMaxElements &&
                args.max_length <= int64_t{1} << kDropoutKeyIndexBits);
}

WorkList::WorkList(const AttentionArgs& args, Rows rows, int64_t block, int64_t heads,
                   int64_t* offsets)
    : args_(args), rows_(rows), block_(block), heads_(heads), offsets_(offsets) {
  offsets_[0] = 0;
  for (int64_t s = 0; s < args.segments; ++s) {
    offsets_[s + 1] = offsets_[s] + (Length(SegmentOf(args, s)) + block_ - 1) / block;
  }
}

int64_t WorkList::Length(const Segment& segment) const {
  switch (rows_) {
    case Rows::kQueries:
      return segment.queries();
    case Rows::kKeys:
      return segment.keys();
    case Rows::kWholeSegment:
      return 1;
  }
  return 0;
}

WorkList::Item WorkList::At(int64_t index) const {
  // offsets_ is not decreasing: the last segment that starts at or before the item holds it.
  const int64_t s =
      std::upper_bound(offsets_, offsets_ + args_.segments + 1, index / heads_) - offsets_ - 1;
  const int64_t blocks = offsets_[s + 1] - offsets_[s], local = index - offsets_[s] * heads_;
  const Segment segment = SegmentOf(args_, s);
  // A causal query block is heavier the later it stands, a key block the earlier.
  const int64_t place = local % blocks;
  const int64_t b = rows_ == Rows::kQueries ? blocks - 1 - place : place;
  return {segment, local / blocks, b * block_, std::min(Length(segment), (b + 1) * block_)};
}

AttentionScratch::AttentionScratch(Carver& carver, int64_t segments, int64_t tokens, int64_t heads,
                                   int64_t head_dim, DType dtype, int team) {
  Carver forward(nullptr), backward(nullptr);
  static_cast<void>(ForwardScratch{forward, head_dim});
  static_cast<void>(BackwardScratch{backward, head_dim});
  thread_bytes = std::max(forward.used(), backward.used());
  item_offsets = carver.Take<int64_t>(segments + 1);
  delta = carver.Take<float>(tokens * heads);
  const bool wide = dtype == DType::kFloat32;
  d_queries = wide ? nullptr : carver.Take<float>(tokens * heads * head_dim);
  threads = carver.Take<std::byte>(thread_bytes * team);
}

std::byte* AttentionScratch::OfThread() const {
  return threads + thread_bytes * omp_get_thread_num();
}

int64_t AttentionScratchBytes(const WorkspaceLimits& limits, int threads) {
  Carver carver(nullptr);
  AttentionScratch(carver, limits.max_segments, limits.max_tokens, limits.heads, limits.head_dim,
                   limits.dtype, threads);
  return carver.used();
}

}  // namespace tranche::cpu
