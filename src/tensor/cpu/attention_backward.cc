// Attention backward. Per tile of queries and keys, with S = scale·Q·Kᵀ and P = exp(S −
// log_sum_exp):
//   d_V += Pᵀ·d_O,  d_P = d_O·Vᵀ,  d_S = P ∘ (d_P − delta),  d_K += scale·d_Sᵀ·Q,  d_Q +=
//   scale·d_S·K
// with delta = Σ d_O·O per query (Dao et al., "FlashAttention", 2022, appendix B). P and d_S are
// held with keys as rows. Two ways of sharing the work give the same bits, because each tile adds
// the same sums in the same order: whole heads at a time (five products), where these divide evenly
// among threads, otherwise d_K and d_V by tiles of keys and then d_Q by tiles of queries (seven
// products).
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "tensor/cpu/attention_tiles.h"
#include "tensor/cpu/attention_work.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/parallel.h"
#include "tensor/dropout_mask.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/attention_backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tensor/cpu/attention_product-inl.h"
#include "tensor/cpu/attention_tiles-inl.h"
#include "tensor/cpu/vector-inl.h"
#include "tensor/cpu/vector_math-inl.h"

#ifndef TRANCHE_TENSOR_CPU_ATTENTION_BACKWARD_CC_
#define TRANCHE_TENSOR_CPU_ATTENTION_BACKWARD_CC_
namespace tranche::cpu {

enum class BackwardPart { kWholeHead, kKeys, kQueries };

struct BackwardTask {
  const AttentionArgs* args;
  Tensor d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v;
  float* delta;     // [tokens, heads]
  Tensor d_q_sums;  // [tokens, heads·head_dim] fp32: d_q itself or scratch
};

}  // namespace tranche::cpu
#endif  // TRANCHE_TENSOR_CPU_ATTENTION_BACKWARD_CC_

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kStride = BackwardScratch::kStride;

template <typename T>
class Backward {
 public:
  Backward(const BackwardTask& task, const Segment& segment, const BackwardScratch& tiles)
      : task_(task),
        args_(*task.args),
        segment_(segment),
        see_(args_, segment.queries(), segment.keys()),
        t_(tiles),
        dim_(args_.head_dim),
        head_stride_(PaddedStride(args_.head_dim)),
        group_(args_.heads / args_.kv_heads) {}

  // d_K and d_V of the keys [key, key_end), at most a tile, from all queries; with `queries_too`
  // d_Q receives this tile's part.
  void KeyTile(int64_t kv_head, int64_t key, int64_t key_end, bool queries_too) {
    LoadKeys(kv_head, key, key_end);
    Clear(t_.key_sums, key_end - key);
    Clear(t_.value_sums, key_end - key);
    const int64_t first = see_.FirstQuery(key) / kQueryTile * kQueryTile;
    const int64_t end = see_.EndQuery(key_end - 1);
    for (int64_t head = kv_head * group_; head < (kv_head + 1) * group_; ++head) {
      Clear(t_.d_keys, key_end - key);
      Clear(t_.d_values, key_end - key);
      for (int64_t query = first; query < end; query += kQueryTile) {
        const int64_t query_end = std::min(query + kQueryTile, see_.queries);
        LoadQueries(head, query, query_end);
        ScoreGradients(head, query, query_end, key, key_end);
        AddToKeys(query, query_end, key, key_end);
        if (!queries_too) continue;
        float* sums = task_.d_q_sums.Row<float>(segment_.query_begin + query) + head * dim_;
        const int64_t stride = task_.d_q_sums.stride, count = query_end - query;
        LoadRows(sums, stride, count, dim_, 1.0f, t_.d_queries, head_stride_);
        AddToQueries(query, query_end, key, key_end);
        StoreRows(t_.d_queries, head_stride_, count, dim_, 1.0f, sums, stride);
      }
      AddRows(t_.d_keys, key_end - key, t_.key_sums);
      AddRows(t_.d_values, key_end - key, t_.value_sums);
    }
    const int64_t row = segment_.key_begin + key, column = kv_head * dim_;
    StoreRows(t_.key_sums, head_stride_, key_end - key, dim_, 1.0f, task_.d_k.Row<T>(row) + column,
              task_.d_k.stride);
    StoreRows(t_.value_sums, head_stride_, key_end - key, dim_, 1.0f,
              task_.d_v.Row<T>(row) + column, task_.d_v.stride);
  }

  // d_Q of the queries [query, query_end), at most a tile, from all keys.
  void QueryTile(int64_t head, int64_t query, int64_t query_end) {
    LoadQueries(head, query, query_end);
    Clear(t_.d_queries, query_end - query);
    const int64_t first = see_.FirstKey(query) / kKeyTile * kKeyTile;
    const int64_t end = see_.EndKey(query_end - 1);
    for (int64_t key = first; key < end; key += kKeyTile) {
      const int64_t key_end = std::min(key + kKeyTile, see_.keys);
      LoadKeys(head / group_, key, key_end);
      ScoreGradients(head, query, query_end, key, key_end);
      AddToQueries(query, query_end, key, key_end);
    }
    StoreRows(t_.d_queries, head_stride_, query_end - query, dim_, 1.0f,
              task_.d_q.Row<T>(segment_.query_begin + query) + head * dim_, task_.d_q.stride);
  }

  // Everything of the query heads that share a key head.
  void WholeHead(int64_t kv_head) {
    const int64_t column = kv_head * group_ * dim_, columns = group_ * dim_;
    for (int64_t row = segment_.query_begin; row < segment_.query_end; ++row) {
      std::fill_n(task_.d_q_sums.Row<float>(row) + column, columns, 0.0f);
    }
    for (int64_t key = 0; key < see_.keys; key += kKeyTile) {
      KeyTile(kv_head, key, std::min(key + kKeyTile, see_.keys), true);
    }
    StoreRows(task_.d_q_sums.Row<float>(segment_.query_begin) + column, task_.d_q_sums.stride,
              segment_.queries(), columns, 1.0f, task_.d_q.Row<T>(segment_.query_begin) + column,
              task_.d_q.stride);
  }

 private:
  void Clear(float* tile, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      std::fill_n(tile + r * head_stride_, RoundUpToVectors(dim_), 0.0f);
    }
  }

  void AddRows(const float* tile, int64_t rows, float* sums) {
    for (int64_t i = 0; i < rows * head_stride_; i += kLanes) {
      hn::StoreU(hn::Add(hn::LoadU(DF(), sums + i), hn::LoadU(DF(), tile + i)), DF(), sums + i);
    }
  }

  void LoadKeys(int64_t kv_head, int64_t key, int64_t key_end) {
    const int64_t row = segment_.key_begin + key, column = kv_head * dim_, count = key_end - key;
    LoadRows(task_.k.Row<T>(row) + column, task_.k.stride, count, dim_, 1.0f, t_.keys,
             head_stride_);
    LoadRows(task_.v.Row<T>(row) + column, task_.v.stride, count, dim_, 1.0f, t_.values,
             head_stride_);
  }

  void LoadQueries(int64_t head, int64_t query, int64_t query_end) {
    const int64_t row = segment_.query_begin + query, count = query_end - query;
    const T* q = task_.q.Row<T>(row) + head * dim_;
    const T* d_out = task_.d_out.Row<T>(row) + head * dim_;
    LoadRows(q, task_.q.stride, count, dim_, 1.0f, t_.queries, head_stride_);
    LoadRows(d_out, task_.d_out.stride, count, dim_, 1.0f, t_.d_out, head_stride_);
    LoadTransposed(t_.queries, head_stride_, count, dim_, 1.0f, t_.queries_transposed, kStride);
    LoadTransposed(t_.d_out, head_stride_, count, dim_, 1.0f, t_.d_out_transposed, kStride);
    for (int64_t i = 0; i < RoundUpToVectors(count); ++i) {
      t_.log_sum_exp[i] = i < count ? task_.log_sum_exp.Row<float>(row + i)[head] : 0.0f;
      t_.delta[i] = i < count ? task_.delta[(row + i) * args_.heads + head] : 0.0f;
    }
    if (args_.dropout.probability > 0) {
      LoadTokenKeys(args_.dropout, row, count, RoundUpToVectors(count), t_.token_low,
                    t_.token_high);
    }
  }

  // Fills probabilities (after dropout) and d_scores for the tile; zero where a query does not see
  // a key.
  void ScoreGradients(int64_t head, int64_t query, int64_t query_end, int64_t key,
                      int64_t key_end) {
    const int64_t keys = key_end - key, columns = RoundUpToVectors(query_end - query);
    const auto range = [&](int64_t j, int64_t j_end, int64_t i, int64_t i_end) HWY_ATTR {
      const Range seen =
          VisibleKeys(see_, query + i, std::min(query + i_end, query_end), key, key_end);
      return j < seen.end && seen.begin < j_end ? Range{0, dim_} : Range{0, 0};
    };
    Product<Start::kZero, false>(
        {t_.keys, head_stride_, t_.queries_transposed, kStride, t_.probabilities, kStride, nullptr},
        keys, columns, range);
    Product<Start::kZero, false>(
        {t_.values, head_stride_, t_.d_out_transposed, kStride, t_.d_scores, kStride, nullptr},
        keys, columns, range);
    const bool dropout = args_.dropout.probability > 0;
    for (int64_t column = 0; column < columns; column += kLanes) {
      if (dropout) {
        ForDropoutFactors(args_.dropout, head, key, t_.token_low + column, t_.token_high + column,
                          [&](int64_t j, VF factor) HWY_ATTR {
                            hn::StoreU(factor, DF(), t_.kept + j * kStride + column);
                          });
      }
      const bool masked = !AllVisible(see_, query + column, query + column + kLanes, key, key_end);
      if (dropout) {
        masked ? GradientColumn<true, true>(query, key, keys, column)
               : GradientColumn<false, true>(query, key, keys, column);
      } else {
        masked ? GradientColumn<true, false>(query, key, keys, column)
               : GradientColumn<false, false>(query, key, keys, column);
      }
    }
  }

  template <bool kMasked, bool kDropout>
  HWY_INLINE void GradientColumn(int64_t query, int64_t key, int64_t keys, int64_t column) {
    const DF d;
    const VF scale = hn::Set(d, args_.scale);
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t at = j * kStride + column;
      VF score = hn::Mul(hn::LoadU(d, t_.probabilities + at), scale);
      VF d_p = hn::LoadU(d, t_.d_scores + at);
      if constexpr (kDropout) d_p = hn::Mul(d_p, hn::LoadU(d, t_.kept + at));
      if constexpr (kMasked) {
        const auto visible = VisibleLanes(see_, query + column, key + j);
        const VF none = hn::Set(d, -std::numeric_limits<float>::infinity());
        score = hn::IfThenElse(visible, score, none);
        d_p = hn::IfThenElseZero(visible, d_p);
      }
      hn::StoreU(score, d, t_.probabilities + at);
      hn::StoreU(d_p, d, t_.d_scores + at);
    }
    VF factor, delta;
    Exponentials(OnlyTile(query + column, key, key + keys), keys, column, &factor, &delta);
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t at = j * kStride + column;
      VF p = hn::Mul(hn::LoadU(d, t_.probabilities + at), factor);
      const VF d_p = hn::LoadU(d, t_.d_scores + at);
      const VF d_s = hn::Mul(hn::Mul(hn::Sub(d_p, delta), p), scale);
      if constexpr (kDropout) p = hn::Mul(p, hn::LoadU(d, t_.kept + at));
      hn::StoreU(p, d, t_.probabilities + at);
      hn::StoreU(d_s, d, t_.d_scores + at);
    }
  }

  // The lanes query, query + 1, … all of whose keys are in the tile [key, key_end).
  HWY_INLINE VF OnlyTile(int64_t query, int64_t key, int64_t key_end) const {
    HWY_ALIGN float only[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
      const int64_t at = query + i;
      const bool inside =
          at < see_.queries && see_.FirstKey(at) >= key && see_.EndKey(at) <= key_end;
      only[i] = inside ? 1.0f : 0.0f;
    }
    return hn::Load(DF(), only);
  }

  // Scores become exponentials, to be multiplied by `factor`. Where a lane is not zero in `only`,
  // all of its query's scores are here: the softmax and its derivative are taken from them alone,
  // and Σ d_S of the query is zero but for the last bits, as it should be.
  HWY_INLINE void Exponentials(VF only, int64_t keys, int64_t column, VF* factor, VF* delta) const {
    const DF d;
    float* const scores = t_.probabilities + column;
    const auto score = [&](int64_t j) HWY_ATTR { return hn::LoadU(d, scores + j * kStride); };
    const auto here = hn::Ne(only, hn::Zero(d));
    const bool any = !hn::AllFalse(d, here);
    VF reference = hn::LoadU(d, t_.log_sum_exp + column);
    if (any) {
      VF max = score(0);
      for (int64_t j = 1; j < keys; ++j) max = hn::Max(max, score(j));
      reference = hn::IfThenElse(here, max, reference);
    }
    for (int64_t j = 0; j < keys; ++j) {
      hn::StoreU(ExpNonPositive(d, hn::Sub(score(j), reference)), d, scores + j * kStride);
    }
    *factor = hn::Set(d, 1.0f);
    *delta = hn::LoadU(d, t_.delta + column);
    if (!any) return;
    const VF inverse = hn::Div(*factor, SumRowsOf(0, keys, score));
    const VF sum = SumRowsOf(0, keys, [&](int64_t j) HWY_ATTR {
      const VF d_p = hn::LoadU(d, t_.d_scores + column + j * kStride);
      return hn::Mul(d_p, hn::Mul(score(j), inverse));
    });
    *factor = hn::IfThenElse(here, inverse, *factor);
    *delta = hn::IfThenElse(here, sum, *delta);
  }

  // d_V += Pᵀ·d_O and d_K += d_Sᵀ·Q, over the queries that see any key of a group of rows.
  void AddToKeys(int64_t query, int64_t query_end, int64_t key, int64_t key_end) {
    const auto range = [&](int64_t j, int64_t j_end, int64_t, int64_t) HWY_ATTR {
      return Range{std::max(see_.FirstQuery(key + j), query) - query,
                   std::min(see_.EndQuery(key + j_end - 1), query_end) - query};
    };
    Product<Start::kAdd, false>(
        {t_.probabilities, kStride, t_.d_out, head_stride_, t_.d_values, head_stride_, nullptr},
        key_end - key, dim_, range);
    Product<Start::kAdd, false>(
        {t_.d_scores, kStride, t_.queries, head_stride_, t_.d_keys, head_stride_, nullptr},
        key_end - key, dim_, range);
  }

  // d_Q += d_S·K, without the scale, over the keys that any query of a group of rows sees.
  void AddToQueries(int64_t query, int64_t query_end, int64_t key, int64_t key_end) {
    Product<Start::kAdd, true>(
        {t_.d_scores, kStride, t_.keys, head_stride_, t_.d_queries, head_stride_, nullptr},
        query_end - query, dim_, [&](int64_t i, int64_t i_end, int64_t, int64_t) HWY_ATTR {
          return VisibleKeys(see_, query + i, query + i_end, key, key_end);
        });
  }

  const BackwardTask& task_;
  const AttentionArgs& args_;
  const Segment& segment_;
  const Visibility see_;
  const BackwardScratch& t_;
  const int64_t dim_, head_stride_, group_;
};

template <typename T>
void BackwardItemOf(const BackwardTask& task, BackwardPart part, const WorkList::Item& w,
                    std::byte* scratch) {
  Carver carver(scratch);
  const BackwardScratch tiles{carver, task.args->head_dim};
  Backward<T> backward(task, w.segment, tiles);
  switch (part) {
    case BackwardPart::kWholeHead:
      return backward.WholeHead(w.head);
    case BackwardPart::kKeys:
      return backward.KeyTile(w.head, w.begin, w.end, false);
    case BackwardPart::kQueries:
      return backward.QueryTile(w.head, w.begin, w.end);
  }
}

void BackwardItem(const BackwardTask& task, BackwardPart part, const WorkList::Item& item,
                  std::byte* scratch) {
  if (task.q.dtype == DType::kFloat32) {
    BackwardItemOf<float>(task, part, item, scratch);
  } else {
    BackwardItemOf<BFloat16>(task, part, item, scratch);
  }
}

template <typename T>
void DeltaRowsOf(const BackwardTask& task, int64_t begin, int64_t end) {
  const int64_t heads = task.args->heads, dim = task.args->head_dim;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      const T* out = task.out.Row<T>(row) + head * dim;
      const T* d_out = task.d_out.Row<T>(row) + head * dim;
      VF sum = hn::Zero(DF());
      ForVectors(dim, [&](int64_t i, auto part) HWY_ATTR {
        sum = hn::MulAdd(Load(out + i, part), Load(d_out + i, part), sum);
      });
      task.delta[row * heads + head] = SumLanes(sum);
    }
  }
}

void DeltaRows(const BackwardTask& task, int64_t begin, int64_t end) {
  if (task.q.dtype == DType::kFloat32) {
    DeltaRowsOf<float>(task, begin, end);
  } else {
    DeltaRowsOf<BFloat16>(task, begin, end);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {
namespace {

HWY_EXPORT(BackwardItem);
HWY_EXPORT(DeltaRows);

// Whole heads cost 5 products a tile and keep a thread busy for long; tiles cost 7 and divide
// finely. The time of whole heads is that of the fullest thread when items are handed out in order.
bool WholeHeadsAreFaster(const AttentionArgs& args, int threads) {
  constexpr int kMaxThreads = 512;
  if (threads == 1) return true;
  if (threads > kMaxThreads) return false;
  const auto cost = [&](int64_t s) {
    const Segment segment = SegmentOf(args, s);
    return static_cast<double>(segment.queries()) * static_cast<double>(segment.keys());
  };
  double total = 0, largest = 0;
  for (int64_t s = 0; s < args.segments; ++s) {
    total += cost(s) * static_cast<double>(args.kv_heads);
    largest = std::max(largest, cost(s));
  }
  const double tiles = 7 * total / threads;
  if (5 * (total / threads + largest) <= tiles) return true;
  double busy[kMaxThreads] = {};
  for (int64_t s = 0; s < args.segments; ++s) {
    for (int64_t head = 0; head < args.kv_heads; ++head) {
      *std::min_element(busy, busy + threads) += cost(s);
    }
  }
  return 5 * *std::max_element(busy, busy + threads) <= tiles;
}

void ForItems(const BackwardTask& task, BackwardPart part, const WorkList& work,
              const AttentionScratch& areas, int threads) {
  const auto item = HWY_DYNAMIC_DISPATCH(BackwardItem);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < work.items(); ++i) item(task, part, work.At(i), areas.OfThread());
}

}  // namespace

void AttentionBackward(const AttentionArgs& args, Tensor d_out, Tensor q, Tensor k, Tensor v,
                       Tensor out, Tensor log_sum_exp, Tensor d_q, Tensor d_k, Tensor d_v,
                       std::byte* scratch, int threads) {
  CheckAttention(args, q, k, v);
  for (const Tensor* like_q : {&d_out, &out, &d_q}) {
    TRANCHE_CHECK(like_q->rows == q.rows && like_q->cols == q.cols && like_q->dtype == q.dtype);
  }
  for (const Tensor* like_k : {&d_k, &d_v}) {
    TRANCHE_CHECK(like_k->rows == k.rows && like_k->cols == k.cols && like_k->dtype == q.dtype);
  }
  Carver carver(scratch);
  const AttentionScratch areas(carver, args.segments, q.rows, args.heads, args.head_dim, q.dtype,
                               threads);
  BackwardTask task{&args, d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v, areas.delta, d_q};
  if (areas.d_queries != nullptr) {
    task.d_q_sums = MakeTensor(areas.d_queries, DType::kFloat32, q.rows, q.cols);
  }
  const auto delta = HWY_DYNAMIC_DISPATCH(DeltaRows);
  ParallelFor(q.rows, RowGrain(q.cols), threads,
              [&](int64_t begin, int64_t end) { delta(task, begin, end); });
  const auto list = [&](WorkList::Rows rows, int64_t block, int64_t heads) {
    return WorkList(args, rows, block, heads, areas.item_offsets);
  };
  if (WholeHeadsAreFaster(args, threads)) {
    ForItems(task, BackwardPart::kWholeHead, list(WorkList::Rows::kWholeSegment, 1, args.kv_heads),
             areas, threads);
    return;
  }
  ForItems(task, BackwardPart::kKeys, list(WorkList::Rows::kKeys, kKeyTile, args.kv_heads), areas,
           threads);
  ForItems(task, BackwardPart::kQueries, list(WorkList::Rows::kQueries, kQueryTile, args.heads),
           areas, threads);
}

}  // namespace tranche::cpu
#endif  // HWY_ONCE
