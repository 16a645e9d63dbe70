#include "tensor/cpu/activation_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/activation_rows.cc"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "tensor/cpu/activation-inl.h"
#include "tensor/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

void RunActivate(Activation kind, float* x, int64_t count) {
  WithActivation(kind, [&](auto op) {
    for (int64_t i = 0; i < count; i += kLanes) {
      Store(decltype(op)::Value(Load(x + i, Whole())), x + i, Whole());
    }
  });
}

void RunDifferentiate(Activation kind, const float* x, float* dy, int64_t count) {
  WithActivation(kind, [&](auto op) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const VF gradient = decltype(op)::Gradient(Load(dy + i, Whole()), Load(x + i, Whole()));
      Store(gradient, dy + i, Whole());
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tranche::cpu {

HWY_EXPORT(RunActivate);
HWY_EXPORT(RunDifferentiate);

void Activate(Activation kind, float* x, int64_t count) {
  if (kind != Activation::kNone) HWY_DYNAMIC_DISPATCH(RunActivate)(kind, x, count);
}

void Differentiate(Activation kind, const float* x, float* dy, int64_t count) {
  HWY_DYNAMIC_DISPATCH(RunDifferentiate)(kind, x, dy, count);
}

}  // namespace tranche::cpu
#endif  // HWY_ONCE
