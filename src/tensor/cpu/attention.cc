// Attention forward. A work item is a block of queries of one head of one segment; it walks over
// the tiles of keys it can see and keeps, per query, the running maximum, the sum of exponentials
// and the weighted sum of values. Scores are held with keys as rows and queries as lanes: maxima
// and sums are then elementwise, and no lane needs its neighbours.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "tensor/cpu/attention_tiles.h"
#include "tensor/cpu/attention_work.h"
#include "tensor/cpu/kernels.h"
#include "tensor/dropout_mask.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tensor/cpu/attention_product-inl.h"
#include "tensor/cpu/attention_tiles-inl.h"
#include "tensor/cpu/vector-inl.h"
#include "tensor/cpu/vector_math-inl.h"

#ifndef TRANCHE_TENSOR_CPU_ATTENTION_CC_
#define TRANCHE_TENSOR_CPU_ATTENTION_CC_
namespace tranche::cpu {

struct ForwardTask {
  const AttentionArgs* args;
  Tensor q, k, v, out, log_sum_exp;
};

}  // namespace tranche::cpu
#endif  // TRANCHE_TENSOR_CPU_ATTENTION_CC_

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

// The lanes query, query + 1, … whose last key is in the tile [key, key_end).
HWY_INLINE VF LastTile(const Visibility& see, int64_t query, int64_t key, int64_t key_end) {
  HWY_ALIGN float last[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    const int64_t end = query + i < see.queries ? see.EndKey(query + i) : 0;
    last[i] = end > key && end <= key_end ? 1.0f : 0.0f;
  }
  return hn::Load(DF(), last);
}

// Σ of rows [begin, end) of a column of scores. Row j goes into sum j mod 16, and these are added
// as a tree.
HWY_INLINE VF SumRows(const float* column, int64_t begin, int64_t end) {
  return SumRowsOf(begin, end, [&](int64_t j) HWY_ATTR {
    return hn::LoadU(DF(), column + j * ForwardScratch::kStride);
  });
}

// Softmax of V vectors of queries over one tile of keys: scores become probabilities
// (relative to the running maximum), the running maximum and sum move on, rescale receives what
// earlier sums must be multiplied by. In the tile of a query's last key both are divided by the
// sum: where that is the first tile too, probabilities are rounded before they meet values, as a
// softmax by itself would be. keys is what any of these queries sees of the tile; rows outside
// become zero.
template <int V, bool kMasked>
HWY_INLINE void SoftmaxColumns(const ForwardScratch& t, int64_t column, int64_t query,
                               const Visibility& see, int64_t key_begin, int64_t key_end,
                               Range keys, float factor) {
  constexpr int64_t kStride = ForwardScratch::kStride;
  const DF d;
  const VF minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  const VF scale = hn::Set(d, factor);
  float* const scores = t.scores + column;
  VF max[V], reference[V], rescale[V];
  for (int v = 0; v < V; ++v) max[v] = hn::LoadU(d, t.max + column + v * kLanes);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    for (int v = 0; v < V; ++v) {
      float* const at = scores + j * kStride + v * kLanes;
      VF s = hn::Mul(hn::LoadU(d, at), scale);
      if constexpr (kMasked) {
        s = hn::IfThenElse(VisibleLanes(see, query + v * kLanes, key_begin + j), s, minus_infinity);
      }
      hn::StoreU(s, d, at);
      max[v] = hn::Max(max[v], s);
    }
  }
  for (int v = 0; v < V; ++v) {
    // A query that has seen no key yet keeps its maximum of -inf; its exponents are taken from 0.
    reference[v] = hn::IfThenZeroElse(hn::Eq(max[v], minus_infinity), max[v]);
    const VF old = hn::LoadU(d, t.max + column + v * kLanes);
    rescale[v] = ExpNonPositive(d, hn::Sub(old, reference[v]));
    hn::StoreU(max[v], d, t.max + column + v * kLanes);
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    for (int v = 0; v < V; ++v) {
      float* const at = scores + j * kStride + v * kLanes;
      hn::StoreU(ExpNonPositive(d, hn::Sub(hn::LoadU(d, at), reference[v])), d, at);
    }
  }
  for (int v = 0; v < V; ++v) {
    const VF sum = hn::MulAdd(hn::LoadU(d, t.sum + column + v * kLanes), rescale[v],
                              SumRows(scores + v * kLanes, keys.begin, keys.end));
    hn::StoreU(sum, d, t.sum + column + v * kLanes);
    const auto last = hn::Ne(LastTile(see, query + v * kLanes, key_begin, key_end), hn::Zero(d));
    if (hn::AllFalse(d, last)) {
      hn::StoreU(rescale[v], d, t.rescale + column + v * kLanes);
      continue;
    }
    const VF one = hn::Set(d, 1.0f);
    const VF inverse = hn::IfThenElse(last, hn::Div(one, sum), one);
    hn::StoreU(hn::Mul(rescale[v], inverse), d, t.rescale + column + v * kLanes);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      float* const at = scores + j * kStride + v * kLanes;
      hn::StoreU(hn::Mul(hn::LoadU(d, at), inverse), d, at);
    }
  }
  for (int v = 0; v < V; ++v) {
    if constexpr (kMasked) {
      for (int64_t j = 0; j < kKeyTile; ++j) {
        if (j >= keys.begin && j < keys.end) continue;
        hn::StoreU(hn::Zero(d), d, scores + j * kStride + v * kLanes);
      }
    }
  }
}

template <int V>
HWY_INLINE void SoftmaxPanel(const ForwardScratch& t, int64_t column, int64_t query,
                             const Visibility& see, int64_t key_begin, int64_t key_end,
                             float factor) {
  const int64_t query_end = std::min(query + V * kLanes, see.queries);
  const Range keys = VisibleKeys(see, query, query_end, key_begin, key_end);
  if (AllVisible(see, query, query + V * kLanes, key_begin, key_end)) {
    SoftmaxColumns<V, false>(t, column, query, see, key_begin, key_end, keys, factor);
  } else {
    SoftmaxColumns<V, true>(t, column, query, see, key_begin, key_end, keys, factor);
  }
}

void DropProbabilities(const ForwardScratch& t, const DropoutArgs& args, int64_t head,
                       int64_t count, int64_t key_begin, int64_t keys) {
  const DF d;
  for (int64_t column = 0; column < count; column += kLanes) {
    ForDropoutFactors(args, head, key_begin, t.token_low + column, t.token_high + column,
                      [&](int64_t j, VF factor) HWY_ATTR {
                        if (j >= keys) return;
                        float* const at = t.scores + j * ForwardScratch::kStride + column;
                        hn::StoreU(hn::Mul(hn::LoadU(d, at), factor), d, at);
                      });
  }
}

template <typename T>
void ForwardBlock(const ForwardTask& task, const Segment& segment, int64_t head, int64_t query,
                  int64_t query_end, const ForwardScratch& t) {
  const AttentionArgs& args = *task.args;
  const int64_t dim = args.head_dim, head_stride = PaddedStride(dim);
  const int64_t kv_head = head / (args.heads / args.kv_heads);
  const int64_t count = query_end - query, columns = RoundUpToVectors(count);
  const Visibility see(args, segment.queries(), segment.keys());
  constexpr int64_t kStride = ForwardScratch::kStride;

  LoadTransposed(task.q.Row<T>(segment.query_begin + query) + head * dim, task.q.stride, count, dim,
                 1.0f, t.queries, kStride);
  std::fill_n(t.max, columns, -std::numeric_limits<float>::infinity());
  std::fill_n(t.sum, columns, 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    std::fill_n(t.sums + i * head_stride, RoundUpToVectors(dim), 0.0f);
  }
  if (args.dropout.probability > 0) {
    LoadTokenKeys(args.dropout, segment.query_begin + query, count, columns, t.token_low,
                  t.token_high);
  }

  const int64_t first_key = see.FirstKey(query), end_key = see.EndKey(query_end - 1);
  for (int64_t key = first_key / kKeyTile * kKeyTile; key < end_key; key += kKeyTile) {
    const int64_t key_end = std::min(key + kKeyTile, see.keys);
    const int64_t keys = key_end - key;
    const T* k_rows = task.k.Row<T>(segment.key_begin + key) + kv_head * dim;
    const T* v_rows = task.v.Row<T>(segment.key_begin + key) + kv_head * dim;
    LoadRows(k_rows, task.k.stride, keys, dim, 1.0f, t.keys, head_stride);
    LoadRows(v_rows, task.v.stride, keys, dim, 1.0f, t.values, head_stride);
    const int64_t next = std::clamp<int64_t>(end_key - key_end, 0, kKeyTile);
    PrefetchRows(k_rows + keys * task.k.stride, task.k.stride, next, dim);
    PrefetchRows(v_rows + keys * task.v.stride, task.v.stride, next, dim);
    Product<Start::kZero, false>(
        {t.keys, head_stride, t.queries, kStride, t.scores, kStride, nullptr}, keys, columns,
        [&](int64_t j, int64_t j_end, int64_t i, int64_t i_end) HWY_ATTR {
          const Range seen =
              VisibleKeys(see, query + i, std::min(query + i_end, query_end), key, key_end);
          return j < seen.end && seen.begin < j_end ? Range{0, dim} : Range{0, 0};
        });
    for (int64_t i = 0; i < columns; i += 2 * kLanes) {
      if (i + kLanes < columns) {
        SoftmaxPanel<2>(t, i, query + i, see, key, key_end, args.scale);
      } else {
        SoftmaxPanel<1>(t, i, query + i, see, key, key_end, args.scale);
      }
    }
    if (args.dropout.probability > 0) {
      DropProbabilities(t, args.dropout, head, count, key, keys);
    }
    Product<Start::kScale, true>(
        {t.scores, kStride, t.values, head_stride, t.sums, head_stride, t.rescale}, count, dim,
        [&](int64_t i, int64_t i_end, int64_t, int64_t)
            HWY_ATTR { return VisibleKeys(see, query + i, query + i_end, key, key_end); });
  }

  const DF d;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = segment.query_begin + query + i;
    const float* sums = t.sums + i * head_stride;
    T* out = task.out.Row<T>(row) + head * dim;
    ForVectors(
        dim, [&](int64_t c, auto part) HWY_ATTR { Store(hn::LoadU(d, sums + c), out + c, part); });
    const double sum = static_cast<double>(t.sum[i]);
    task.log_sum_exp.Row<float>(row)[head] =
        static_cast<float>(static_cast<double>(t.max[i]) + std::log(sum));
  }
}

void ForwardItem(const ForwardTask& task, const Segment& segment, int64_t head, int64_t query,
                 int64_t query_end, std::byte* scratch) {
  Carver carver(scratch);
  const ForwardScratch tiles{carver, task.args->head_dim};
  if (task.q.dtype == DType::kFloat32) {
    ForwardBlock<float>(task, segment, head, query, query_end, tiles);
  } else {
    ForwardBlock<BFloat16>(task, segment, head, query, query_end, tiles);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {

HWY_EXPORT(ForwardItem);

void Attention(const AttentionArgs& args, Tensor q, Tensor k, Tensor v, Tensor out,
               Tensor log_sum_exp, std::byte* scratch, int threads) {
  CheckAttention(args, q, k, v);
  TRANCHE_CHECK(out.rows == q.rows && out.cols == q.cols && out.dtype == q.dtype);
  TRANCHE_CHECK(log_sum_exp.dtype == DType::kFloat32 && log_sum_exp.rows == q.rows &&
                log_sum_exp.cols == args.heads);
  Carver carver(scratch);
  const AttentionScratch areas(carver, args.segments, q.rows, args.heads, args.head_dim, q.dtype,
                               threads);
  const ForwardTask task{&args, q, k, v, out, log_sum_exp};
  const auto item = HWY_DYNAMIC_DISPATCH(ForwardItem);
  // Long blocks read keys and values less often; short ones give every thread work.
  const auto list = [&](int64_t block) {
    return WorkList(args, WorkList::Rows::kQueries, block, args.heads, areas.item_offsets);
  };
  int64_t block = kQueryBlock;
  while (block > kMinQueryBlock && list(block).items() < 8 * threads) block /= 2;
  const WorkList work = list(block);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < work.items(); ++i) {
    const WorkList::Item w = work.At(i);
    item(task, w.segment, w.head, w.begin, w.end, areas.OfThread());
  }
}

}  // namespace tranche::cpu
#endif  // HWY_ONCE
