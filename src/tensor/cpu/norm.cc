// Layer norm and RMS norm.
//
// With x̂ = (x − mean)·r, r = 1/√(variance + eps), and g = d_y·weight over a group of D components:
//   layer norm:  d_x = r·(g − Σg/D − x̂·Σ(g·x̂)/D)      RMS norm: the same with mean and Σg left out
//   d_weight = Σ d_y·x̂,  d_bias = Σ d_y                over all rows and groups.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/norm.cc"
#include "hwy/foreach_target.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "hwy/highway.h"
#include "tensor/cpu/column_sums.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

// Σ term(i, extent) over a group. Vectors behind the end are zero in the loads, but not in what is
// computed from them.
template <class Term>
HWY_INLINE float SumOver(int64_t n, const Term& term) {
  const DF d;
  VF sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = hn::Add(sum, term(i, Whole()));
  if (i < n) {
    const auto inside = hn::FirstN(d, static_cast<size_t>(n - i));
    sum = hn::Add(sum, hn::IfThenElseZero(inside, term(i, Part{n - i})));
  }
  return SumLanes(sum);
}

// Σ term(i) over a group, in one order for every instruction set, and with an error that hardly
// grows with the width: element i into sum i mod 32, where 16 such rounds make a sum of their own;
// the 32 by eights; then one after another, behind elements that fill no eight. PyTorch's `sum`
// takes this order: the scale of an RMS norm multiplies a whole row, its rounding is the largest in
// a small model, and in the same order it is the same. term is called with a vector's tag too.
template <class Term>
float CascadeSum(int64_t n, const Term& term) {
  constexpr int64_t kEight = 8, kRound = 4 * kEight, kLevel = 16 * kRound;
  const hn::CappedTag<float, kEight> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kWidth = static_cast<int64_t>(hn::MaxLanes(d));
  V level[kRound / kWidth], sums[kRound / kWidth];
  for (V& sum : sums) sum = hn::Zero(d);
  for (V& sum : level) sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kRound <= n; i += kRound) {
    if (i > 0 && i % kLevel == 0) {
      for (int64_t v = 0; v < kRound / kWidth; ++v) {
        sums[v] = hn::Add(sums[v], level[v]);
        level[v] = hn::Zero(d);
      }
    }
    for (int64_t v = 0; v < kRound / kWidth; ++v) {
      level[v] = hn::Add(level[v], term(d, i + v * kWidth));
    }
  }
  for (int64_t v = 0; v < kRound / kWidth; ++v) sums[v] = hn::Add(level[v], sums[v]);
  for (; i + kEight <= n; i += kEight) {
    for (int64_t v = 0; v < kEight / kWidth; ++v) {
      sums[v] = hn::Add(sums[v], term(d, i + v * kWidth));
    }
  }
  HWY_ALIGN float eight[kEight];
  for (int64_t v = 0; v < kEight / kWidth; ++v) {
    V sum = sums[v];
    for (int64_t w = v + kEight / kWidth; w < kRound / kWidth; w += kEight / kWidth) {
      sum = hn::Add(sum, sums[w]);
    }
    hn::Store(sum, d, eight + v * kWidth);
  }
  const hn::CappedTag<float, 1> one;
  float total = 0;
  for (; i < n; ++i) total += hn::GetLane(term(one, i));
  for (const float sum : eight) total += sum;
  return total;
}

template <typename T>
void NormRows(const NormArgs& args, const Tensor& x, const Tensor& y, const Tensor& statistics,
              int64_t begin, int64_t end) {
  const DF d;
  const int64_t width = x.cols / args.groups;
  const bool layer_norm = args.kind == NormKind::kLayerNorm;
  const T* weight = args.weight.Row<T>(0);
  const T* bias = args.bias.defined() ? args.bias.Row<T>(0) : nullptr;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t group = 0; group < args.groups; ++group) {
      const T* in = x.Row<T>(row) + group * width;
      T* out = y.Row<T>(row) + group * width;
      float mean = 0;
      if (layer_norm) {
        mean = SumOver(width, [&](int64_t i, auto extent) { return Load(in + i, extent); }) /
               static_cast<float>(width);
      }
      const VF center = hn::Set(d, mean);
      float squares;
      if (layer_norm) {
        squares = SumOver(width, [&](int64_t i, auto extent) {
          const VF c = hn::Sub(Load(in + i, extent), center);
          return hn::Mul(c, c);
        });
      } else {
        squares = CascadeSum(width, [&](auto tag, int64_t i) HWY_ATTR {
          const auto value = LoadAs(tag, in + i);
          return hn::Mul(value, value);
        });
      }
      const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + args.eps);
      const VF factor = hn::Set(d, scale);
      if (layer_norm) {
        ForVectors(width, [&](int64_t i, auto extent) {
          const VF hat = hn::Mul(hn::Sub(Load(in + i, extent), center), factor);
          const VF offset = bias != nullptr ? Load(bias + i, extent) : hn::Zero(d);
          Store(hn::MulAdd(hat, Load(weight + i, extent), offset), out + i, extent);
        });
      } else {
        ForVectors(width, [&](int64_t i, auto extent) {
          const VF hat = RoundTo<T>(hn::Mul(Load(in + i, extent), factor));
          const VF offset = bias != nullptr ? Load(bias + i, extent) : hn::Zero(d);
          Store(hn::MulAdd(hat, Load(weight + i, extent), offset), out + i, extent);
        });
      }
      float* kept = statistics.Row<float>(row) + 2 * group;
      kept[0] = mean;
      kept[1] = scale;
    }
  }
}

// A chunk's share of the gradients of weight and bias, [D] of fp32 each. kSumRows terms make a sum
// of their own, which is added to the others': for accuracy, and in the order of PyTorch's `sum`.
struct WeightSums {
  WeightSums(float* memory, int64_t cols) : sums(memory), part(memory + 2 * cols), cols(cols) {
    std::memset(memory, 0, static_cast<size_t>(4 * cols) * sizeof(float));
  }
  void AddPart() {
    ForVectors(2 * cols, [&](int64_t i, auto extent) {
      Store(hn::Add(Load(sums + i, extent), Load(part + i, extent)), sums + i, extent);
      Store(hn::Zero(DF()), part + i, extent);
    });
    terms = 0;
  }
  void AfterTerm() {
    if (++terms == kSumRows) AddPart();
  }

  float* const sums;  // weight [D], bias [D]
  float* const part;  // of the current terms
  const int64_t cols;
  int64_t terms = 0;
};

template <typename T>
void NormBackwardRows(const NormArgs& args, const Tensor& d_y, const Tensor& x,
                      const Tensor& statistics, const Tensor& d_x, const Tensor& residual,
                      int64_t begin, int64_t end, float* sums) {
  const DF d;
  const int64_t width = x.cols / args.groups;
  const bool layer_norm = args.kind == NormKind::kLayerNorm;
  const bool with_bias = args.bias.defined();
  const T* weight = args.weight.Row<T>(0);
  WeightSums weight_sums(sums, width);
  float* const d_weight = weight_sums.part;
  float* const d_bias = d_weight + width;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t group = 0; group < args.groups; ++group) {
      const int64_t at = group * width;
      const T* gradient = d_y.Row<T>(row) + at;
      const T* in = x.Row<T>(row) + at;
      const T* extra = residual.defined() ? residual.Row<T>(row) + at : nullptr;
      T* out = d_x.Row<T>(row) + at;
      const float* kept = statistics.Row<float>(row) + 2 * group;
      const VF center = hn::Set(d, kept[0]), factor = hn::Set(d, kept[1]);
      VF sum = hn::Zero(d), product = hn::Zero(d);
      ForVectors(width, [&](int64_t i, auto extent) {
        const VF dy = Load(gradient + i, extent);
        const VF hat = hn::Mul(hn::Sub(Load(in + i, extent), center), factor);
        if (layer_norm) {
          // Behind the end dy and weight are zero, so nothing needs a mask.
          const VF g = hn::Mul(dy, Load(weight + i, extent));
          sum = hn::Add(sum, g);
          product = hn::MulAdd(g, hat, product);
        }
        const VF so_far = Load(d_weight + i, extent);
        // Rounded as a library's derivatives are: RMS norms are written out there.
        Store(layer_norm ? hn::MulAdd(dy, hat, so_far) : hn::Add(hn::Mul(dy, hat), so_far),
              d_weight + i, extent);
        if (with_bias) Store(hn::Add(dy, Load(d_bias + i, extent)), d_bias + i, extent);
      });
      if (!layer_norm) weight_sums.AfterTerm();
      if (!layer_norm) {
        // Rounded where a library's derivatives of x · (mean(x²) + eps)^-½ round: of the sums of
        // such gradients some are nearly zero.
        const float g_x = CascadeSum(width, [&](auto tag, int64_t i) HWY_ATTR {
          const auto g = hn::Mul(LoadAs(tag, gradient + i), LoadAs(tag, weight + i));
          return hn::Mul(g, LoadAs(tag, in + i));
        });
        const float cube = kept[1] * kept[1] * kept[1];
        const VF slope = hn::Set(d, 2 * (-0.5f * g_x * cube / static_cast<float>(width)));
        ForVectors(width, [&](int64_t i, auto extent) {
          const VF g = hn::Mul(Load(gradient + i, extent), Load(weight + i, extent));
          VF result = hn::Mul(g, factor);
          if (extra != nullptr) result = hn::Add(Load(extra + i, extent), result);
          Store(hn::Add(result, hn::Mul(slope, Load(in + i, extent))), out + i, extent);
        });
        continue;
      }
      const float share = 1.0f / static_cast<float>(width);
      const VF mean_g = hn::Set(d, SumLanes(sum) * share);
      const VF mean_product = hn::Set(d, SumLanes(product) * share);
      ForVectors(width, [&](int64_t i, auto extent) {
        const VF hat = hn::Mul(hn::Sub(Load(in + i, extent), center), factor);
        const VF g = hn::Mul(Load(gradient + i, extent), Load(weight + i, extent));
        VF result = hn::Mul(hn::NegMulAdd(hat, mean_product, hn::Sub(g, mean_g)), factor);
        if (extra != nullptr) result = hn::Add(result, Load(extra + i, extent));
        Store(result, out + i, extent);
      });
    }
  }
  weight_sums.AddPart();
}

void RunNorm(const NormArgs& args, const Tensor& x, const Tensor& y, const Tensor& statistics,
             int64_t begin, int64_t end) {
  x.dtype == DType::kFloat32 ? NormRows<float>(args, x, y, statistics, begin, end)
                             : NormRows<BFloat16>(args, x, y, statistics, begin, end);
}

void RunNormBackward(const NormArgs& args, const Tensor& d_y, const Tensor& x,
                     const Tensor& statistics, const Tensor& d_x, const Tensor& residual,
                     int64_t begin, int64_t end, float* sums) {
  x.dtype == DType::kFloat32
      ? NormBackwardRows<float>(args, d_y, x, statistics, d_x, residual, begin, end, sums)
      : NormBackwardRows<BFloat16>(args, d_y, x, statistics, d_x, residual, begin, end, sums);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {
namespace {

HWY_EXPORT(RunNorm);
HWY_EXPORT(RunNormBackward);

// Partial sums of the weight gradients: two (weight, bias) pairs of rows per chunk of rows. The
// number of chunks is a function of the width alone, so that it does not depend on threads and the
// scratch has one size for all widths.
constexpr int64_t kPartialFloats = int64_t{1} << 19;
constexpr int64_t kMaxChunks = 64;

int64_t PartialChunks(int64_t width) {
  TRANCHE_CHECK_LE(4 * width, kPartialFloats);
  return std::min(kMaxChunks, kPartialFloats / (4 * width));
}

}  // namespace

int64_t NormScratchBytes(const WorkspaceLimits&, int) {
  return kPartialFloats * static_cast<int64_t>(sizeof(float));
}

void Norm(const NormArgs& args, Tensor x, Tensor y, Tensor statistics, int threads) {
  ParallelFor(x.rows, RowGrain(x.cols), threads, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RunNorm)(args, x, y, statistics, begin, end);
  });
}

void NormBackward(const NormArgs& args, Tensor d_y, Tensor x, Tensor statistics, Tensor d_x,
                  Tensor residual, Tensor d_weight, Tensor d_bias, std::byte* scratch,
                  int threads) {
  if (x.rows == 0) return;
  const int64_t width = x.cols / args.groups;
  const int64_t chunk_rows =
      std::max(RowGrain(x.cols), (x.rows + PartialChunks(width) - 1) / PartialChunks(width));
  const int64_t rows_per_chunk = (chunk_rows + kSumRows - 1) / kSumRows * kSumRows;
  float* partials = reinterpret_cast<float*>(scratch);
  ParallelFor(x.rows, rows_per_chunk, threads, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RunNormBackward)
    (args, d_y, x, statistics, d_x, residual, begin, end,
     partials + begin / rows_per_chunk * 4 * width);
  });
  const int64_t chunks = (x.rows + rows_per_chunk - 1) / rows_per_chunk;
  const auto add = [&](float* total, const float* first) {
    ParallelFor(width, 256, threads, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        for (int64_t i = begin; i < end; ++i) total[i] += first[chunk * 4 * width + i];
      }
    });
  };
  add(d_weight.Row<float>(0), partials);
  if (d_bias.defined()) add(d_bias.Row<float>(0), partials + width);
}

}  // namespace tranche::cpu
#endif  // HWY_ONCE
