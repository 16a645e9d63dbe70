#include "tensor/cpu/gemm_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/gemm_kernels.cc"
#include "hwy/foreach_target.h"

#include <algorithm>

#include "hwy/highway.h"
#include "tensor/cpu/activation_rows.h"
#include "tensor/cpu/gemm_pack-inl.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

// The inner kernel keeps kPanelRows × kPanelVectors sums in registers: 12 of 16 on AVX2, 28 of 32
// on AVX-512.
inline constexpr int kPanelVectors = 2;
inline constexpr int kPanelRows = HWY_TARGET == HWY_AVX3 ? 14 : HWY_TARGET == HWY_AVX2 ? 6 : 4;
inline constexpr int64_t kPanelCols = kPanelVectors * kLanes;
static_assert(kPanelRows <= kMaxPanelRows && kPanelCols <= kMaxPanelCols);

// out[r][0 … kPanelCols) (= or +=) Σ_k a[k][r]·b[k][…] for kRows rows of a panel of a. Asks the
// caches for `out` and for next_count floats from `next` on, a part of the panel of b that follows:
// nothing else announces either to the machine.
template <int kRows>
HWY_NOINLINE void Inner(int64_t depth, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                        const float* next, int64_t next_count, bool add, float* HWY_RESTRICT out,
                        int64_t out_stride) {
  const DF d;
  VF sums[kRows][kPanelVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    Prefetch(out + r * out_stride);
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  for (int64_t i = 0; i < next_count; i += kLineFloats) Prefetch(next + i);
#pragma GCC unroll 4
  for (int64_t k = 0; k < depth; ++k) {
    const VF b0 = hn::Load(d, b), b1 = hn::Load(d, b + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const VF x = hn::Set(d, a[r]);
      sums[r][0] = hn::MulAdd(x, b0, sums[r][0]);
      sums[r][1] = hn::MulAdd(x, b1, sums[r][1]);
    }
    a += kPanelRows;
    b += kPanelCols;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      float* to = out + r * out_stride + v * kLanes;
      hn::StoreU(add ? hn::Add(hn::LoadU(d, to), sums[r][v]) : sums[r][v], d, to);
    }
  }
}

// All rows of a block of a by one panel of b. Meanwhile the next panel of b comes nearer.
void InnerRows(int64_t rows, int64_t depth, const float* block, const float* panel,
               const float* next_panel, bool add, float* out, int64_t out_stride) {
  int64_t i = 0;
  const int64_t count_next =
      next_panel == nullptr
          ? 0
          : (depth * kPanelCols * kPanelRows / rows / kLineFloats + 1) * kLineFloats;
  const auto run = [&](auto count, auto kernel) {
    for (; i + count <= rows; i += count) {
      // A group of rows never straddles a panel: panels are whole but for the last, whose rest is
      // cut by falling powers of two.
      const int64_t from = i / kPanelRows * count_next;
      const int64_t left = std::min(count_next, depth * kPanelCols - from);
      kernel(depth, block + i / kPanelRows * (kPanelRows * kDepth) + i % kPanelRows, panel,
             next_panel + (left > 0 ? from : 0), left, add, out + i * out_stride, out_stride);
    }
  };
  run(int64_t{kPanelRows}, Inner<kPanelRows>);
  if constexpr (kPanelRows > 8) run(int64_t{8}, Inner<8>);
  if constexpr (kPanelRows > 4) run(int64_t{4}, Inner<4>);
  run(int64_t{2}, Inner<2>);
  run(int64_t{1}, Inner<1>);
}

template <typename T>
void PackB(const MatMulArgs& args, int64_t block, int64_t col, int64_t cols, float* to) {
  const auto [k, depth] = GemmBlocks(args)[block];
  if (args.transpose_b) {
    PackTransposed<kPanelCols>(args.b.Row<T>(col) + k, args.b.stride, cols, depth, to);
  } else {
    PackColumns<kPanelCols>(args.b.Row<T>(k) + col, args.b.stride, cols, depth, to);
  }
}

void RunPackB(const MatMulArgs& args, int64_t block, int64_t col, int64_t cols, float* to) {
  args.b.dtype == DType::kFloat32 ? PackB<float>(args, block, col, cols, to)
                                  : PackB<BFloat16>(args, block, col, cols, to);
}

template <typename T>
void PackA(const MatMulArgs& args, GemmBlocks::Block block, int64_t row, int64_t rows, float* to) {
  const auto [k, depth] = block;
  if (args.transpose_a) {
    PackColumns<kPanelRows>(args.a.Row<T>(k) + row, args.a.stride, rows, depth, to);
  } else {
    PackTransposed<kPanelRows>(args.a.Row<T>(row) + k, args.a.stride, rows, depth, to);
  }
}

#if HWY_TARGET != HWY_SCALAR  // which has no vectors to interleave
// Four k of as many rows as d has lanes, by blocks of four: block i of the result is k … k + 3 of
// row 4·i.
template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const T* at, int64_t stride) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return LoadAs(d, at);
  } else {
    const hn::Half<D> half;
    const int64_t rows = static_cast<int64_t>(hn::MaxLanes(half));
    return hn::Combine(d, LoadBlocks(half, at + rows * stride, stride),
                       LoadBlocks(half, at, stride));
  }
}

// Four k of kLanes columns of the product, which are rows of b, to rows of `to`.
template <typename T>
HWY_INLINE void TransposeFour(const T* b, int64_t stride, float* HWY_RESTRICT to) {
  const DF d;
  const hn::Repartition<uint64_t, DF> pairs;
  const VF r0 = LoadBlocks(d, b, stride), r1 = LoadBlocks(d, b + stride, stride);
  const VF r2 = LoadBlocks(d, b + 2 * stride, stride), r3 = LoadBlocks(d, b + 3 * stride, stride);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
  hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, to);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, to + kPanelCols);
  hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, to + 2 * kPanelCols);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, to + 3 * kPanelCols);
}

// The sums of a panel of columns where b's rows are contiguous and a has but kRows rows: packing
// would cost more than the product, so b is read in one pass over its memory. The order of each sum
// is that of Inner over all blocks.
template <int kRows, typename T>
HWY_NOINLINE void SumFewRows(const MatMulArgs& args, const GemmTile& tile, int64_t col,
                             float* sums) {
  static_assert(kPanelVectors == 2);
  constexpr int64_t kStep = kLineFloats, kAhead = 4 * kLineFloats;
  const DF d;
  const int64_t depth = args.b.cols, stride = args.b.stride;
  const int64_t next_k = args.transpose_a ? args.a.stride : 1;
  const int64_t next_row = args.transpose_a ? 1 : args.a.stride;
  const T* a = args.a.Row<T>(0) + tile.row * next_row;
  const T* b = args.b.Row<T>(tile.col + col);
  const GemmBlocks blocks(args);
  for (int64_t block = 0; block < blocks.count(); ++block) {
    const int64_t begin = blocks[block].begin, end = begin + blocks[block].depth;
    VF left[kRows], right[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) left[r] = right[r] = hn::Zero(d);
    for (int64_t k = begin; k < end; k += kStep) {
      HWY_ALIGN float line[kStep * kPanelCols];
      const int64_t count = std::min(kStep, end - k);
      if (count == kStep) {
        // Where b is read soon, in the next panel if need be.
        const int64_t ahead = k + kAhead;
        const T* soon = b + (ahead < depth ? ahead : kPanelCols * stride + ahead - depth);
        // A few rows at a time are read for a whole line, since lines of many may share a set of
        // the cache.
#pragma GCC unroll 2
        for (int64_t j = 0; j < kPanelCols; j += kLanes) {
          for (int64_t i = j; i < j + kLanes; ++i) PrefetchFar(soon + i * stride);
#pragma GCC unroll 4
          for (int64_t p = 0; p < kStep; p += 4) {
            TransposeFour(b + j * stride + k + p, stride, line + p * kPanelCols + j);
          }
        }
      } else {
        for (int64_t j = 0; j < kPanelCols; ++j) {
          for (int64_t p = 0; p < count; ++p) {
            line[p * kPanelCols + j] = static_cast<float>(b[j * stride + k + p]);
          }
        }
      }
      for (int64_t p = 0; p < count; ++p) {
        const VF b0 = hn::Load(d, line + p * kPanelCols);
        const VF b1 = hn::Load(d, line + p * kPanelCols + kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const VF x = hn::Set(d, static_cast<float>(a[r * next_row + (k + p) * next_k]));
          left[r] = hn::MulAdd(x, b0, left[r]);
          right[r] = hn::MulAdd(x, b1, right[r]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      float* to = sums + r * kPanelCols;
      hn::StoreU(block > 0 ? hn::Add(hn::LoadU(d, to), left[r]) : left[r], d, to);
      to += kLanes;
      hn::StoreU(block > 0 ? hn::Add(hn::LoadU(d, to), right[r]) : right[r], d, to);
    }
  }
}
#endif

// Whether SumFewRows has done a panel.
template <typename T>
bool TryFewRows(const MatMulArgs& args, const GemmTile& tile, int64_t col,
                [[maybe_unused]] float* sums) {
  if (!args.transpose_b || tile.packed_b != nullptr || tile.col + col + kPanelCols > args.b.rows) {
    return false;
  }
#if HWY_TARGET != HWY_SCALAR
  switch (tile.rows) {
    case 1:
      SumFewRows<1, T>(args, tile, col, sums);
      return true;
    case 2:
      SumFewRows<2, T>(args, tile, col, sums);
      return true;
    case 3:
      SumFewRows<3, T>(args, tile, col, sums);
      return true;
  }
#endif
  return false;
}

// The epilogue of a tile whose sums lie in panels [tile.rows][kPanelCols], row by row: each step
// passes over a row that is in the cache.
template <typename T, typename C>
void Epilogue(const MatMulArgs& args, const GemmTile& tile, const float* sums) {
  const int64_t cols = tile.cols;
  const T* bias = args.bias.defined() ? args.bias.Row<T>(0) + tile.col : nullptr;
  HWY_ALIGN float x[kMaxTileCols], input[kMaxTileCols];
  for (int64_t i = tile.row; i < tile.row + tile.rows; ++i, sums += kPanelCols) {
    const float* from = sums;
    for (int64_t j = 0; j < cols; j += kPanelCols, from += tile.rows * kPanelCols) {
      Prefetch(from + 4 * kPanelCols);  // of a later row
      for (int64_t v = 0; v < kPanelCols; v += kLanes) {
        Store(Load(from + v, Whole()), x + j + v, Whole());
      }
    }
    const auto add = [&](const T* addend) {
      ForVectors(cols, [&](int64_t j, auto extent) {
        Store(hn::Add(Load(x + j, extent), Load(addend + j, extent)), x + j, extent);
      });
    };
    if (bias != nullptr) add(bias);
    if (args.pre_activation.defined()) {
      T* kept = args.pre_activation.Row<T>(i) + tile.col;
      // The activation is taken of what is kept, so that making it again from there gives its bits.
      ForVectors(cols, [&](int64_t j, auto extent) {
        Store(Load(x + j, extent), kept + j, extent);
        Store(Load(kept + j, extent), x + j, extent);
      });
    }
    Activate(args.activation, x, cols);
    if (args.derivative != Activation::kNone) {
      const T* from = args.derivative_input.Row<T>(i) + tile.col;
      ForVectors(cols,
                 [&](int64_t j, auto extent) { Store(Load(from + j, extent), input + j, extent); });
      Differentiate(args.derivative, input, x, cols);
    }
    if (args.residual.defined()) add(args.residual.Row<T>(i) + tile.col);
    C* c = args.c.Row<C>(i) + tile.col;
    if (args.accumulate) {
      ForVectors(cols, [&](int64_t j, auto extent) {
        Store(hn::Add(Load(c + j, extent), Load(x + j, extent)), c + j, extent);
      });
    } else {
      ForVectors(cols, [&](int64_t j, auto extent) { Store(Load(x + j, extent), c + j, extent); });
    }
  }
}

bool IsPlain(const MatMulArgs& args) {
  return args.c.dtype == DType::kFloat32 && !args.bias.defined() &&
         !args.pre_activation.defined() && args.activation == Activation::kNone &&
         args.derivative == Activation::kNone && !args.residual.defined();
}

template <typename T>
void ComputeTile(const MatMulArgs& args, const GemmTile& tile, float* scratch) {
  float* block_a = scratch;
  float* block_b = block_a + (kMaxTileRows + kMaxPanelRows) * kDepth;
  float* sums = block_b + kMaxPanelCols * kDepth;
  const int64_t panels = (tile.cols + kPanelCols - 1) / kPanelCols;
  const GemmBlocks blocks(args);
  int64_t done = 0;  // panels
  while (done < panels &&
         TryFewRows<T>(args, tile, done * kPanelCols, sums + done * kPanelCols * tile.rows))
    ++done;
  // Sums go straight to c where they need no second visit: elsewhere they stay in panels, which lie
  // well in the caches and pages.
  const bool direct =
      IsPlain(args) && blocks.count() == 1 && done == 0 && tile.cols % kPanelCols == 0;
  for (int64_t block = 0; done < panels && block < blocks.count(); ++block) {
    const bool add = block > 0 || (direct && args.accumulate);
    PackA<T>(args, blocks[block], tile.row, tile.rows, block_a);
    for (int64_t panel = done; panel < panels; ++panel) {
      const int64_t col = panel * kPanelCols;
      const float *b = block_b, *next = nullptr;
      if (tile.packed_b != nullptr) {
        b = tile.packed_b + block * tile.block_stride + col * kDepth;
        if (panel + 1 < panels) next = b + kPanelCols * kDepth;
      } else {
        PackB<T>(args, block, tile.col + col, std::min(kPanelCols, tile.cols - col), block_b);
      }
      float* out = direct ? args.c.Row<float>(tile.row) + tile.col + col : sums + col * tile.rows;
      InnerRows(tile.rows, blocks[block].depth, block_a, b, next, add, out,
                direct ? args.c.stride : kPanelCols);
    }
  }
  if (direct) return;
  args.c.dtype == DType::kFloat32 ? Epilogue<T, float>(args, tile, sums)
                                  : Epilogue<T, BFloat16>(args, tile, sums);
}

void RunComputeTile(const MatMulArgs& args, const GemmTile& tile, float* scratch) {
  args.a.dtype == DType::kFloat32 ? ComputeTile<float>(args, tile, scratch)
                                  : ComputeTile<BFloat16>(args, tile, scratch);
}

GemmGeometry RunPanels() { return {kPanelRows, kPanelCols}; }

const char* RunInstructionSet() {
  return HWY_TARGET == HWY_AVX3 ? "AVX-512" : hwy::TargetName(HWY_TARGET);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {

HWY_EXPORT(RunPanels);
HWY_EXPORT(RunPackB);
HWY_EXPORT(RunComputeTile);
HWY_EXPORT(RunInstructionSet);

GemmBlocks::GemmBlocks(const MatMulArgs& args) {
  constexpr int64_t kLine = 16;
  int64_t end = args.transpose_a ? args.a.rows : args.a.cols;
  Part* part = parts_;
  const auto take = [&](int64_t begin) {
    const int64_t depth = end - begin, blocks = std::max<int64_t>(1, (depth + kDepth - 1) / kDepth);
    *part++ = {begin, end, blocks, ((depth + blocks - 1) / blocks + kLine - 1) / kLine * kLine};
    end = begin;
  };
  if (args.seams[1] > 0) take(args.seams[1]);
  if (args.seams[0] > 0) take(args.seams[0]);
  take(0);
}

GemmBlocks::Block GemmBlocks::operator[](int64_t block) const {
  const Part* part = parts_;
  for (; block >= part->blocks; ++part) block -= part->blocks;
  const int64_t begin = part->begin + block * part->block_depth;
  return {begin, std::min(part->block_depth, part->end - begin)};
}

GemmGeometry GemmPanels() { return HWY_DYNAMIC_DISPATCH(RunPanels)(); }

void GemmPackB(const MatMulArgs& args, int64_t block, int64_t col, int64_t cols, float* to) {
  HWY_DYNAMIC_DISPATCH(RunPackB)(args, block, col, cols, to);
}

void GemmComputeTile(const MatMulArgs& args, const GemmTile& tile, float* scratch) {
  HWY_DYNAMIC_DISPATCH(RunComputeTile)(args, tile, scratch);
}

const char* InstructionSet() { return HWY_DYNAMIC_DISPATCH(RunInstructionSet)(); }

}  // namespace tranche::cpu
#endif  // HWY_ONCE
