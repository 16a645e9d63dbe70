// Cross entropy, in place: logits become gradients. Two passes over a row that stays in cache: the
// maximum, then the sum of exponentials; a third writes the gradient, from the logarithm of the
// probabilities as a library's log-softmax does.
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
// not grow with the vocabulary. Element i goes into sum i mod 16 whatever the length of vectors;
// the sixteen are added as a tree.
template <typename T>
double SumExp(const T* x, int64_t cols, float max) {
  constexpr int64_t kSums = 16;
  const DF d;
  const VF shift = hn::Set(d, max);
  double sum = 0;
  HWY_ALIGN float sums[kSums];
  for (int64_t block = 0; block < cols; block += 1024) {
    const T* const from = x + block;
    VF partial[kSums / kLanes];
    for (VF& s : partial) s = hn::Zero(d);
    ForVectors(std::min<int64_t>(1024, cols - block), [&](int64_t i, auto part) HWY_ATTR {
      VF& s = partial[i / kLanes % (kSums / kLanes)];
      s = hn::Add(s, ExpNonPositive(d, hn::Sub(LoadLogits(from + i, part), shift)));
    });
    for (int64_t v = 0; v < kSums / kLanes; ++v) hn::Store(partial[v], d, sums + v * kLanes);
    for (int64_t half = kSums / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    sum += static_cast<double>(sums[0]);
  }
  return sum;
}

template <typename T>
double RowLoss(T* x, int32_t label, int64_t cols, bool gradient, float scale) {
  const DF d;
  const float max = RowMax(x, cols);
  const float target = static_cast<float>(x[label]);
  const double log_sum = std::log(SumExp(x, cols, max));
  if (gradient) {
    const VF shift = hn::Set(d, max), norm = hn::Set(d, static_cast<float>(log_sum));
    const VF factor = hn::Set(d, scale);
    const auto probability = [&](VF logit) HWY_ATTR {
      return ExpNonPositive(d, hn::Sub(hn::Sub(logit, shift), norm));
    };
    const VF of_target = probability(hn::Set(d, target));
    ForVectors(cols, [&](int64_t i, auto part) HWY_ATTR {
      Store(hn::Mul(probability(Load(x + i, part)), factor), x + i, part);
    });
    x[label] = static_cast<T>(hn::GetLane(hn::MulSub(of_target, factor, factor)));
  }
  return log_sum + (static_cast<double>(max) - static_cast<double>(target));
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
