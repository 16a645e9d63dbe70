// The global norm and the AdamW update. The norm's fixed-point sums are associative, so threads,
// slices and ranks may add in any order (see Backend::SquaredNorm).
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/optimizer.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tensor/cpu/vector-inl.h"

#ifndef TRANCHE_TENSOR_CPU_OPTIMIZER_CC_
#define TRANCHE_TENSOR_CPU_OPTIMIZER_CC_
namespace tranche::cpu {

__extension__ using Fixed128 = unsigned __int128;
inline constexpr int kFractionBits = 72;
inline constexpr int64_t kLine = 64;

struct NormSum {
  Fixed128 squares = 0;
  // Elements that are not finite, lines too large for the fixed point, and carries out of it: each
  // makes the norm unusable, and each is counted the same wherever slices are cut.
  uint64_t faults = 0;

  void Add(const NormSum& other) {
    squares += other.squares;
    faults += other.faults + (squares < other.squares ? 1 : 0);
  }
};

// sum >= 0 and finite; bits below 2^-72 are dropped.
inline NormSum ToFixed(double sum) {
  if (sum >= 0x1p56) return {0, 1};
  const uint64_t raw = std::bit_cast<uint64_t>(sum);
  const int exponent = static_cast<int>(raw >> 52);
  if (exponent == 0) return {};
  const Fixed128 mantissa = (raw & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);
  const int shift = exponent - 1075 + kFractionBits;
  if (shift >= 0) return {mantissa << shift, 0};
  return {shift > -64 ? mantissa >> -shift : 0, 0};
}

struct AdamWFactors {
  float gradient_scale, decay, one_minus_beta1, beta2, one_minus_beta2, step_size;
  float inverse_root_correction2, eps;
};

}  // namespace tranche::cpu
#endif  // TRANCHE_TENSOR_CPU_OPTIMIZER_CC_

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

// Eight partial sums, element i of the line in sum i mod 8, then a tree: the same order for every
// vector length. The square of a float is exact in double, so fused and separate products agree.
HWY_INLINE double LineSum(const float* x) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  constexpr size_t kDoubles = hn::MaxLanes(d);
  HWY_ALIGN double sums[8];
  for (size_t lane = 0; lane < 8; lane += kDoubles) {
    auto sum = hn::Zero(d);
    for (size_t i = lane; i < kLine; i += 8) {
      const auto value = hn::PromoteTo(d, hn::LoadU(df, x + i));
      sum = hn::MulAdd(value, value, sum);
    }
    hn::Store(sum, d, sums + lane);
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// begin is a multiple of kLine.
NormSum SumSquares(const float* x, int64_t begin, int64_t end) {
  NormSum total;
  for (int64_t i = begin; i < end; i += kLine) {
    const int64_t count = std::min(kLine, end - i);
    double sum;
    if (count == kLine) {
      sum = LineSum(x + i);
    } else {
      float padded[kLine] = {};
      std::memcpy(padded, x + i, static_cast<size_t>(count) * sizeof(float));
      sum = LineSum(padded);
    }
    if (std::isfinite(sum)) {
      total.Add(ToFixed(sum));
    } else {
      for (int64_t j = i; j < i + count; ++j) total.faults += std::isfinite(x[j]) ? 0 : 1;
    }
  }
  return total;
}

void AdamWRange(const AdamWFactors& f, float* master, BFloat16* weights, const float* gradients,
                float* m, float* v, int64_t begin, int64_t end) {
  const DF d;
  const VF gradient_scale = hn::Set(d, f.gradient_scale), decay = hn::Set(d, f.decay);
  const VF one_minus_beta1 = hn::Set(d, f.one_minus_beta1);
  const VF beta2 = hn::Set(d, f.beta2), one_minus_beta2 = hn::Set(d, f.one_minus_beta2);
  const VF step_size = hn::Set(d, f.step_size), eps = hn::Set(d, f.eps);
  const VF correction2 = hn::Set(d, f.inverse_root_correction2);
  ForVectors(end - begin, [&](int64_t offset, auto part) HWY_ATTR {
    const int64_t i = begin + offset;
    const VF g = hn::Mul(Load(gradients + i, part), gradient_scale);
    const VF old_m = Load(m + i, part);
    const VF new_m = hn::MulAdd(one_minus_beta1, hn::Sub(g, old_m), old_m);
    const VF squared = hn::Mul(g, g);
    const VF new_v = hn::MulAdd(beta2, Load(v + i, part), hn::Mul(one_minus_beta2, squared));
    const VF denominator = hn::MulAdd(hn::Sqrt(new_v), correction2, eps);
    const VF update = hn::Div(hn::Mul(step_size, new_m), denominator);
    const VF p = hn::Sub(hn::Mul(Load(master + i, part), decay), update);
    Store(new_m, m + i, part);
    Store(new_v, v + i, part);
    Store(p, master + i, part);
    if (weights != nullptr) Store(p, weights + i, part);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {

HWY_EXPORT(SumSquares);
HWY_EXPORT(AdamWRange);

void SquaredNorm(Tensor gradients, Tensor norm_state, int threads) {
  TRANCHE_CHECK(gradients.dtype == DType::kFloat32 && gradients.rows == 1);
  TRANCHE_CHECK(norm_state.dtype == DType::kUInt64 && norm_state.cols == 4);
  const auto range = HWY_DYNAMIC_DISPATCH(SumSquares);
  const float* x = gradients.Row<float>(0);
  uint64_t* state = norm_state.Row<uint64_t>(0);
  NormSum total{(Fixed128{state[1]} << 64) | state[0], state[2]};
  ParallelFor(gradients.cols, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    const NormSum sum = range(x, begin, end);
#pragma omp critical(tranche_squared_norm)
    total.Add(sum);
  });
  state[0] = static_cast<uint64_t>(total.squares);
  state[1] = static_cast<uint64_t>(total.squares >> 64);
  state[2] = total.faults;
}

void SumRecords(Tensor records, Tensor total) {
  TRANCHE_CHECK(records.dtype == DType::kUInt64 && total.dtype == DType::kUInt64);
  TRANCHE_CHECK(total.cols == records.cols && records.cols >= 4);
  NormSum norm;
  uint64_t count = 0;
  for (int64_t row = 0; row < records.rows; ++row) {
    const uint64_t* record = records.Row<uint64_t>(row);
    norm.Add({(Fixed128{record[1]} << 64) | record[0], record[2]});
    count += record[3];
  }
  uint64_t* out = total.Row<uint64_t>(0);
  for (int64_t column = 4; column < records.cols; ++column) {
    double sum = 0;
    for (int64_t row = 0; row < records.rows; ++row) {
      sum += std::bit_cast<double>(records.Row<uint64_t>(row)[column]);
    }
    out[column] = std::bit_cast<uint64_t>(sum);
  }
  out[0] = static_cast<uint64_t>(norm.squares);
  out[1] = static_cast<uint64_t>(norm.squares >> 64);
  out[2] = norm.faults;
  out[3] = count;
}

void FinishNorm(Tensor norm_state, Tensor loss_sum, float max_norm, Tensor control) {
  TRANCHE_CHECK(norm_state.dtype == DType::kUInt64 && norm_state.cols == 4);
  TRANCHE_CHECK(loss_sum.dtype == DType::kFloat64);
  TRANCHE_CHECK(control.dtype == DType::kFloat32 && control.cols == 4);
  const uint64_t* state = norm_state.Row<uint64_t>(0);
  float* out = control.Row<float>(0);
  const double squares = std::ldexp(static_cast<double>(state[1]), 64 - kFractionBits) +
                         std::ldexp(static_cast<double>(state[0]), -kFractionBits);
  const double norm = std::sqrt(squares);
  const bool usable = state[2] == 0 && std::isfinite(*loss_sum.Row<double>(0));
  out[0] = usable ? static_cast<float>(norm) : std::numeric_limits<float>::quiet_NaN();
  const double limit = static_cast<double>(max_norm);
  out[1] = usable && max_norm > 0 ? static_cast<float>(std::min(1.0, limit / (norm + 1e-6))) : 1.0f;
  out[2] = usable ? 1.0f : 0.0f;
  out[3] = 0.0f;
}

void AdamW(const AdamWArgs& args, int threads) {
  const int64_t n = args.master.cols;
  for (const Tensor* t : {&args.master, &args.gradients, &args.m, &args.v}) {
    TRANCHE_CHECK(t->dtype == DType::kFloat32 && t->rows == 1 && t->cols == n);
  }
  if (args.weights.defined()) {
    TRANCHE_CHECK(args.weights.dtype == DType::kBFloat16 && args.weights.cols == n);
  }
  TRANCHE_CHECK(args.control.dtype == DType::kFloat32 && args.control.cols == 4);
  TRANCHE_CHECK_LE(1, args.step);
  const float* control = args.control.Row<float>(0);
  if (control[2] == 0.0f) return;
  // Scalars in double, rounded once, as torch does with Python floats.
  const double t = static_cast<double>(args.step);
  const AdamWFactors factors{
      .gradient_scale = control[1],
      .decay = static_cast<float>(1 - args.learning_rate * args.weight_decay),
      .one_minus_beta1 = static_cast<float>(1 - args.beta1),
      .beta2 = static_cast<float>(args.beta2),
      .one_minus_beta2 = static_cast<float>(1 - args.beta2),
      .step_size = static_cast<float>(args.learning_rate / (1 - std::pow(args.beta1, t))),
      .inverse_root_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(args.beta2, t))),
      .eps = static_cast<float>(args.eps)};
  const auto range = HWY_DYNAMIC_DISPATCH(AdamWRange);
  BFloat16* weights = args.weights.defined() ? args.weights.Row<BFloat16>(0) : nullptr;
  ParallelFor(n, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    range(factors, args.master.Row<float>(0), weights, args.gradients.Row<float>(0),
          args.m.Row<float>(0), args.v.Row<float>(0), begin, end);
  });
}

}  // namespace tranche::cpu
#endif  // HWY_ONCE
