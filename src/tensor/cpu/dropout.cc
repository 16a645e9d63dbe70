// Dropout with masks from counter-based random numbers (tensor/dropout_mask.h).
#include "base/check.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/parallel.h"
#include "tensor/dropout_mask.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/dropout.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tensor/cpu/philox-inl.h"
#include "tensor/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

template <typename T>
void DropoutRow(const DropoutArgs& args, uint64_t token_key, const T* x, const T* residual, T* y,
                int64_t cols) {
  const DF d;
  const WordTag dw;
  const uint32_t threshold = DropoutThreshold(args.probability);
  const float kept = 1.0f / (1.0f - args.probability);
  const auto one = [&](VF factor, int64_t at, auto part) HWY_ATTR {
    const VF value = hn::Mul(Load(x + at, part), factor);
    Store(residual != nullptr ? hn::Add(value, Load(residual + at, part)) : value, y + at, part);
  };
  for (int64_t group = 0; group < cols; group += 64) {
    for (int64_t lane = 0; lane < 16; lane += kLanes) {
      auto c0 = hn::Set(dw, static_cast<uint32_t>(token_key));
      auto c1 = hn::Set(dw, static_cast<uint32_t>(token_key >> 32));
      auto c2 = hn::Iota(dw, static_cast<uint32_t>(group / 4 + lane));
      auto c3 = hn::Set(dw, args.site);
      PhiloxRounds(args.key, c0, c1, c2, c3);
      const WordVec words[4] = {c0, c1, c2, c3};
      for (int64_t w = 0; w < 4; ++w) {
        const int64_t at = group + w * 16 + lane;
        const VF factor = DropoutFactor(d, words[w], threshold, kept);
        if (at + kLanes <= cols) {
          one(factor, at, Whole());
        } else if (at < cols) {
          one(factor, at, Part{cols - at});
        }
      }
    }
  }
}

template <typename T>
void DropoutRows(const DropoutArgs& args, const Tensor& x, const Tensor& residual, const Tensor& y,
                 int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* extra = residual.defined() ? residual.Row<T>(row) : nullptr;
    if (args.probability > 0) {
      DropoutRow<T>(args, args.token_keys.Row<uint64_t>(0)[row], x.Row<T>(row), extra,
                    y.Row<T>(row), x.cols);
      continue;
    }
    const T* in = x.Row<T>(row);
    T* out = y.Row<T>(row);
    ForVectors(x.cols, [&](int64_t i, auto part) HWY_ATTR {
      const VF value = Load(in + i, part);
      Store(extra != nullptr ? hn::Add(value, Load(extra + i, part)) : value, out + i, part);
    });
  }
}

void DropoutRange(const DropoutArgs& args, const Tensor& x, const Tensor& residual, const Tensor& y,
                  int64_t begin, int64_t end) {
  if (x.dtype == DType::kFloat32) {
    DropoutRows<float>(args, x, residual, y, begin, end);
  } else {
    DropoutRows<BFloat16>(args, x, residual, y, begin, end);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {

HWY_EXPORT(DropoutRange);

void Dropout(const DropoutArgs& args, Tensor x, Tensor residual, Tensor y, int threads) {
  TRANCHE_CHECK(args.probability >= 0 && args.probability < 1) << args.probability;
  TRANCHE_CHECK(x.rows == y.rows && x.cols == y.cols && x.dtype == y.dtype);
  TRANCHE_CHECK(x.dtype == DType::kFloat32 || x.dtype == DType::kBFloat16);
  TRANCHE_CHECK_LT(x.cols, kDropoutMaxElements);
  if (residual.defined()) {
    TRANCHE_CHECK(residual.rows == x.rows && residual.cols == x.cols && residual.dtype == x.dtype);
  }
  if (args.probability > 0) {
    TRANCHE_CHECK(args.token_keys.dtype == DType::kUInt64 && args.token_keys.cols >= x.rows);
  }
  const auto range = HWY_DYNAMIC_DISPATCH(DropoutRange);
  ParallelFor(x.rows, RowGrain(x.cols), threads,
              [&](int64_t begin, int64_t end) { range(args, x, residual, y, begin, end); });
}

}  // namespace tranche::cpu
#endif  // HWY_ONCE
