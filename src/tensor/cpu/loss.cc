// Cross entropy, in place: logits become gradients. Two passes over a row that stays in cache: the
// maximum, then the exponentials and their sum; a third writes the gradient.
#include <cmath>
#include <limits>

#include "base/check.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/loss.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tensor/cpu/vector-inl.h"
#include "tensor/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

// A padded lane must not win the maximum nor count in the sum.
template <typename T>
HWY_INLINE VF LoadLogits(const T* from, Whole part) {
  return Load(from, part);
}
template <typename T>
HWY_INLINE VF LoadLogits(const T* from, Part part) {
  const DF d;
  return hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(part.count)), Load(from, part),
                        hn::Set(d, -std::numeric_limits<float>::infinity()));
}

template <typename T>
float RowMax(const T* x, int64_t cols) {
  const DF d;
  VF a = hn::Set(d, -std::numeric_limits<float>::infinity()), b = a, c = a, e = a;
  int64_t i = 0;
  for (; i + 4 * kLanes <= cols; i += 4 * kLanes) {
    a = hn::Max(a, Load(x + i, Whole()));
    b = hn::Max(b, Load(x + i + kLanes, Whole()));
    c = hn::Max(c, Load(x + i + 2 * kLanes, Whole()));
    e = hn::Max(e, Load(x + i + 3 * kLanes, Whole()));
  }
  ForVectors(cols - i,
             [&](int64_t j, auto part) HWY_ATTR { a = hn::Max(a, LoadLogits(x + i + j, part)); });
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(a, b), hn::Max(c, e))));
}

// Σ exp(x - max): fp32 over 1024 elements at a time, these sums in double, so that the error does
// not grow with the vocabulary. With `keep` the exponentials replace the logits.
template <bool kKeep, typename T>
double SumExp(T* x, int64_t cols, float max) {
  const DF d;
  const VF shift = hn::Set(d, max);
  double sum = 0;
  for (int64_t block = 0; block < cols; block += 1024) {
    VF partial = hn::Zero(d);
    T* const from = x + block;
    ForVectors(std::min<int64_t>(1024, cols - block), [&](int64_t i, auto part) HWY_ATTR {
      const VF e = ExpNonPositive(d, hn::Sub(LoadLogits(from + i, part), shift));
      partial = hn::Add(partial, e);
      if constexpr (kKeep) Store(e, from + i, part);
    });
    sum += static_cast<double>(SumLanes(partial));
  }
  return sum;
}

template <typename T>
double RowLoss(T* x, int32_t label, int64_t cols, bool gradient, float scale) {
  const DF d;
  const float max = RowMax(x, cols);
  const float target = static_cast<float>(x[label]);
  constexpr bool kKeep = sizeof(T) == sizeof(float);  // bf16 would round the exponentials
  const double sum = gradient && kKeep ? SumExp<true>(x, cols, max) : SumExp<false>(x, cols, max);
  if (gradient) {
    const VF factor = hn::Set(d, static_cast<float>(static_cast<double>(scale) / sum));
    const VF shift = hn::Set(d, max);
    ForVectors(cols, [&](int64_t i, auto part) HWY_ATTR {
      VF e = Load(x + i, part);
      if constexpr (!kKeep) e = ExpNonPositive(d, hn::Sub(e, shift));
      Store(hn::Mul(e, factor), x + i, part);
    });
    const double probability =
        std::exp(static_cast<double>(target) - static_cast<double>(max)) / sum;
    x[label] = static_cast<T>(static_cast<float>((probability - 1.0) * static_cast<double>(scale)));
  }
  return std::log(sum) + (static_cast<double>(max) - static_cast<double>(target));
}

void RowLosses(const Tensor& logits, const Tensor& labels, bool gradient, float scale,
               double* losses, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int32_t label = labels.Row<int32_t>(0)[row];
    TRANCHE_CHECK(label >= 0 && label < logits.cols) << label << " of " << logits.cols;
    losses[row] = logits.dtype == DType::kFloat32
                      ? RowLoss(logits.Row<float>(row), label, logits.cols, gradient, scale)
                      : RowLoss(logits.Row<BFloat16>(row), label, logits.cols, gradient, scale);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {

HWY_EXPORT(RowLosses);

int64_t CrossEntropyScratchBytes(const WorkspaceLimits& limits) {
  return limits.max_tokens * static_cast<int64_t>(sizeof(double));
}

void CrossEntropy(Tensor logits, Tensor labels, bool gradient, float scale, Tensor loss_sum,
                  Tensor row_losses, std::byte* scratch, int threads) {
  TRANCHE_CHECK(logits.dtype == DType::kFloat32 || logits.dtype == DType::kBFloat16);
  TRANCHE_CHECK(labels.dtype == DType::kInt32 && labels.cols >= logits.rows);
  TRANCHE_CHECK(loss_sum.dtype == DType::kFloat64 && loss_sum.defined());
  double* losses = reinterpret_cast<double*>(scratch);
  const auto range = HWY_DYNAMIC_DISPATCH(RowLosses);
  ParallelFor(logits.rows, RowGrain(logits.cols), threads, [&](int64_t begin, int64_t end) {
    range(logits, labels, gradient, scale, losses, begin, end);
  });
  double sum = *loss_sum.Row<double>(0);
  for (int64_t row = 0; row < logits.rows; ++row) sum += losses[row];
  *loss_sum.Row<double>(0) = sum;
  if (!row_losses.defined()) return;
  TRANCHE_CHECK(row_losses.dtype == DType::kFloat32 && row_losses.cols >= logits.rows);
  for (int64_t row = 0; row < logits.rows; ++row) {
    row_losses.Row<float>(0)[row] = static_cast<float>(losses[row]);
  }
}

}  // namespace tranche::cpu
#endif  // HWY_ONCE
