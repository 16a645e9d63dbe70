// Filling the tiles of attention from rows of fp32 or bf16, and the mask of a tile, compiled once
// per instruction set.
#if defined(TRANCHE_TENSOR_CPU_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRANCHE_TENSOR_CPU_ATTENTION_TILES_INL_H_
#undef TRANCHE_TENSOR_CPU_ATTENTION_TILES_INL_H_
#else
#define TRANCHE_TENSOR_CPU_ATTENTION_TILES_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "tensor/cpu/attention_tiles.h"
#include "tensor/cpu/philox-inl.h"
#include "tensor/cpu/vector-inl.h"
#include "tensor/dropout_mask.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t RoundUpToVectors(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// to[r, c] = factor · from[r, c]; columns up to a whole vector are zero.
template <typename T>
void LoadRows(const T* from, int64_t from_stride, int64_t rows, int64_t cols, float factor,
              float* to, int64_t to_stride) {
  const VF scale = hn::Set(DF(), factor);
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = from + r * from_stride;
    float* out = to + r * to_stride;
    ForVectors(cols, [&](int64_t i, auto part) HWY_ATTR {
      Store(hn::Mul(Load(row + i, part), scale), out + i, Whole());
    });
  }
}

// Rows of a head lie far apart, where hardware does not foresee them.
template <typename T>
HWY_INLINE void PrefetchRows(const T* from, int64_t from_stride, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; c += 64 / static_cast<int64_t>(sizeof(T))) {
      hwy::Prefetch(from + r * from_stride + c);
    }
  }
}

// to[r, c] = factor · from[r, c], to T.
template <typename T>
void StoreRows(const float* from, int64_t from_stride, int64_t rows, int64_t cols, float factor,
               T* to, int64_t to_stride) {
  const VF scale = hn::Set(DF(), factor);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = from + r * from_stride;
    T* out = to + r * to_stride;
    ForVectors(cols, [&](int64_t i, auto part)
                         HWY_ATTR { Store(hn::Mul(Load(row + i, part), scale), out + i, part); });
  }
}

// to[c, r] = factor · from[r, c]; rows up to a whole vector are zero.
template <typename T>
void LoadTransposed(const T* from, int64_t from_stride, int64_t rows, int64_t cols, float factor,
                    float* to, int64_t to_stride) {
  int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR  // which has no vectors of four
  const hn::FixedTag<float, 4> d;
  const auto scale = hn::Set(d, factor);
  for (; r + 4 <= rows; r += 4) {
    const T* row = from + r * from_stride;
    int64_t c = 0;
    for (; c + 4 <= cols; c += 4) {
      const auto r0 = hn::Mul(LoadAs(d, row + c), scale);
      const auto r1 = hn::Mul(LoadAs(d, row + from_stride + c), scale);
      const auto r2 = hn::Mul(LoadAs(d, row + 2 * from_stride + c), scale);
      const auto r3 = hn::Mul(LoadAs(d, row + 3 * from_stride + c), scale);
      const auto low01 = hn::InterleaveLower(d, r0, r1), high01 = hn::InterleaveUpper(d, r0, r1);
      const auto low23 = hn::InterleaveLower(d, r2, r3), high23 = hn::InterleaveUpper(d, r2, r3);
      float* column = to + c * to_stride + r;
      hn::StoreU(hn::ConcatLowerLower(d, low23, low01), d, column);
      hn::StoreU(hn::ConcatUpperUpper(d, low23, low01), d, column + to_stride);
      hn::StoreU(hn::ConcatLowerLower(d, high23, high01), d, column + 2 * to_stride);
      hn::StoreU(hn::ConcatUpperUpper(d, high23, high01), d, column + 3 * to_stride);
    }
    for (; c < cols; ++c) {
      for (int64_t i = 0; i < 4; ++i) {
        to[c * to_stride + r + i] = factor * static_cast<float>(row[i * from_stride + c]);
      }
    }
  }
#endif
  const int64_t padded = RoundUpToVectors(rows);
  for (; r < padded; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      to[c * to_stride + r] =
          r < rows ? factor * static_cast<float>(from[r * from_stride + c]) : 0.0f;
    }
  }
}

// Σ row(j) over [begin, end): row j goes into sum j mod 16, and these are added as a tree, in the
// order of a sum along vectors of 16.
template <class Row>
HWY_INLINE VF SumRowsOf(int64_t begin, int64_t end, const Row& row) {
  constexpr int64_t kSums = 16;
  VF sums[kSums];
  for (VF& sum : sums) sum = hn::Zero(DF());
  for (int64_t j = begin; j < end; ++j) sums[j % kSums] = hn::Add(sums[j % kSums], row(j));
  for (int64_t half = kSums / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) sums[i] = hn::Add(sums[i], sums[i + half]);
  }
  return sums[0];
}

// The lanes query, query + 1, … that see `key`.
HWY_INLINE hn::Mask<DF> VisibleLanes(const Visibility& see, int64_t query, int64_t key) {
  const hn::RebindToSigned<DF> di;
  const int64_t first = std::clamp<int64_t>(see.FirstQuery(key) - query, 0, kLanes);
  const int64_t end = std::clamp<int64_t>(see.EndQuery(key) - query, 0, kLanes);
  const auto lane = hn::Iota(di, 0);
  const auto before = hn::Lt(lane, hn::Set(di, static_cast<int>(first)));
  const auto inside = hn::Lt(lane, hn::Set(di, static_cast<int>(end)));
  return hn::RebindMask(DF(), hn::AndNot(before, inside));
}

// The keys of the tile [key_begin, key_end) that some query of [query, query_end) sees, relative to
// key_begin.
HWY_INLINE Range VisibleKeys(const Visibility& see, int64_t query, int64_t query_end,
                             int64_t key_begin, int64_t key_end) {
  return {std::max(see.FirstKey(query), key_begin) - key_begin,
          std::min(see.EndKey(query_end - 1), key_end) - key_begin};
}

// Whether each query of [query, query_end) sees each key of [key, key_end).
HWY_INLINE bool AllVisible(const Visibility& see, int64_t query, int64_t query_end, int64_t key,
                           int64_t key_end) {
  return query_end <= see.queries && see.FirstKey(query_end - 1) <= key &&
         see.EndKey(query) >= key_end;
}

// Calls each(row, factor vector) for the 64 keys from key_begin (a multiple of 64) and the lanes of
// one vector of queries, whose token keys are given: 0 where dropped, otherwise 1/(1 − p).
template <class Each>
HWY_INLINE void ForDropoutFactors(const DropoutArgs& args, int64_t head, int64_t key_begin,
                                  const uint32_t* token_low, const uint32_t* token_high,
                                  const Each& each) {
  const DF d;
  const WordTag dw;
  const uint32_t threshold = DropoutThreshold(args.probability);
  const float kept = 1.0f / (1.0f - args.probability);
  const uint64_t block = AttentionDropoutElement(head, key_begin) / 4;
  for (int64_t row = 0; row < 16; ++row) {
    WordVec c0 = hn::LoadU(dw, token_low), c1 = hn::LoadU(dw, token_high);
    WordVec c2 = hn::Set(dw, static_cast<uint32_t>(block + static_cast<uint64_t>(row)));
    WordVec c3 = hn::Set(dw, args.site);
    PhiloxRounds(args.key, c0, c1, c2, c3);
    each(row, DropoutFactor(d, c0, threshold, kept));
    each(row + 16, DropoutFactor(d, c1, threshold, kept));
    each(row + 32, DropoutFactor(d, c2, threshold, kept));
    each(row + 48, DropoutFactor(d, c3, threshold, kept));
  }
}

HWY_INLINE void LoadTokenKeys(const DropoutArgs& args, int64_t row, int64_t count, int64_t capacity,
                              uint32_t* low, uint32_t* high) {
  const uint64_t* keys = args.token_keys.Row<uint64_t>(0) + row;
  for (int64_t i = 0; i < capacity; ++i) {
    const uint64_t key = i < count ? keys[i] : 0;
    low[i] = static_cast<uint32_t>(key);
    high[i] = static_cast<uint32_t>(key >> 32);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#endif  // TRANCHE_TENSOR_CPU_ATTENTION_TILES_INL_H_
