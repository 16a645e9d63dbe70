// Activations and their derivatives on vectors, compiled once per instruction set. Relative error
// about 4e-7 where the value is not tiny, so that parity with libraries is limited by their
// rounding, not ours.

// clang-format off
#if defined(TRANCHE_TENSOR_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRANCHE_TENSOR_CPU_ACTIVATION_INL_H_
#undef TRANCHE_TENSOR_CPU_ACTIVATION_INL_H_
#else
#define TRANCHE_TENSOR_CPU_ACTIVATION_INL_H_
#endif
// clang-format on

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "tensor/backend.h"
#include "tensor/cpu/vector-inl.h"
#include "tensor/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE VF Constant(float value) { return hn::Set(DF(), value); }

// 1/(1 + e^-z) and 1 minus it, both without cancellation.
struct SigmoidPair {
  explicit HWY_INLINE SigmoidPair(VF z) {
    const DF d;
    const VF e = ExpNonPositive(d, hn::Neg(hn::Abs(z)));
    const VF large = hn::Div(Constant(1), hn::Add(Constant(1), e));
    const VF small = hn::Mul(e, large);
    const auto negative = hn::Lt(z, hn::Zero(d));
    value = hn::IfThenElse(negative, small, large);
    complement = hn::IfThenElse(negative, large, small);
  }
  VF value, complement;
};

// x·sigmoid(scale·x).
template <int kScaleThousandths>
struct SwishOp {
  static constexpr float kScale = kScaleThousandths / 1000.0f;
  static HWY_INLINE VF Value(VF x) {
    const VF e = ExpOfAny(DF(), hn::Mul(x, Constant(-kScale)));
    return hn::Div(x, hn::Add(Constant(1), e));
  }
  // Rounded where PyTorch's silu rounds.
  static HWY_INLINE VF Gradient(VF dy, VF x) {
    // Beyond 100 the derivative is 0 or 1 exactly, and nothing must overflow. NaN passes.
    const VF z = hn::Max(Constant(-100), hn::Min(Constant(100), hn::Mul(x, Constant(kScale))));
    const VF one = Constant(1);
    const VF s = hn::Div(one, hn::Add(one, ExpOfAny(DF(), hn::Neg(z))));
    return hn::Mul(hn::Mul(dy, s), hn::MulAdd(z, hn::Sub(one, s), one));
  }
};

// x·Φ(x), Φ the normal distribution. Its tail is e^(-x²/2) times a smooth function, here a
// polynomial in t = 1/(1 + 0.32·|x|) fitted for least relative error (3e-8).
struct GeluOp {
  // Φ(x) and its density, e^(-x²/2)/√(2π).
  struct Normal {
    explicit HWY_INLINE Normal(VF x) {
      const DF d;
      // Beyond 13.5 both are below the smallest normal number.
      const VF a = hn::Min(hn::Abs(x), Constant(13.5f));
      const VF square = hn::Mul(a, a);
      // What rounding took from the square matters in the exponent.
      const VF rest = hn::MulSub(a, a, square);
      const VF e = ExpNonPositive(d, hn::Mul(square, Constant(-0.5f)));
      const VF gauss = hn::NegMulAdd(hn::Mul(rest, Constant(0.5f)), e, e);
      const VF t = hn::Div(Constant(1), hn::MulAdd(a, Constant(0.32f), Constant(1)));
      VF p = hn::MulAdd(Constant(-0.0210781797f), t, Constant(0.0954073027f));
      p = hn::MulAdd(p, t, Constant(-0.146707532f));
      p = hn::MulAdd(p, t, Constant(0.0653280901f));
      p = hn::MulAdd(p, t, Constant(-0.00937760472f));
      p = hn::MulAdd(p, t, Constant(0.0586539768f));
      p = hn::MulAdd(p, t, Constant(0.0878290965f));
      p = hn::MulAdd(p, t, Constant(0.11462236f));
      p = hn::MulAdd(p, t, Constant(0.127660946f));
      p = hn::MulAdd(p, t, Constant(0.127661529f));
      const VF tail = hn::Mul(hn::Mul(p, t), gauss);
      distribution = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(Constant(1), tail));
      density = hn::Mul(gauss, Constant(0.39894228f));
    }
    VF distribution, density;
  };

  static HWY_INLINE VF Value(VF x) { return hn::Mul(x, Normal(x).distribution); }
  static HWY_INLINE VF Gradient(VF dy, VF x) {
    const Normal normal(x);
    return hn::Mul(dy, hn::MulAdd(x, normal.density, normal.distribution));
  }
};

// 0.5·x·(1 + tanh(u)) = x·sigmoid(2u), u = √(2/π)(x + 0.044715·x³).
struct GeluTanhOp {
  static constexpr float kTwice = 1.5957691216f;  // 2√(2/π)
  static constexpr float kCubic = 0.044715f * kTwice;
  static HWY_INLINE VF Value(VF x) {
    const VF square = hn::Mul(x, x);
    const VF z = hn::Mul(x, hn::MulAdd(square, Constant(kCubic), Constant(kTwice)));
    return hn::Mul(x, SigmoidPair(z).value);
  }
  static HWY_INLINE VF Gradient(VF dy, VF x) {
    // Beyond 20 the derivative is 0 or 1 exactly, and the square must not overflow. NaN passes.
    const VF clamped = hn::Max(Constant(-20), hn::Min(Constant(20), x));
    const VF square = hn::Mul(clamped, clamped);
    const SigmoidPair s(hn::Mul(clamped, hn::MulAdd(square, Constant(kCubic), Constant(kTwice))));
    const VF slope = hn::MulAdd(square, Constant(3 * kCubic), Constant(kTwice));
    return hn::Mul(dy,
                   hn::MulAdd(hn::Mul(clamped, slope), hn::Mul(s.value, s.complement), s.value));
  }
};

struct ReluOp {
  // As max(0, x) would, but NaN stays NaN.
  static HWY_INLINE VF Value(VF x) { return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(DF())), x); }
  static HWY_INLINE VF Gradient(VF dy, VF x) {
    return hn::IfThenElseZero(hn::Gt(x, hn::Zero(DF())), dy);
  }
};

struct TanhOp {
  static HWY_INLINE VF Value(VF x) { return hn::Tanh(DF(), x); }
  static HWY_INLINE VF Gradient(VF dy, VF x) {
    const VF t = Value(x);
    return hn::Mul(dy, hn::NegMulAdd(t, t, Constant(1)));
  }
};

struct IdentityOp {
  static HWY_INLINE VF Value(VF x) { return x; }
  static HWY_INLINE VF Gradient(VF dy, VF) { return dy; }
};

// Calls body with the operation of `kind`.
template <class Body>
HWY_INLINE void WithActivation(Activation kind, const Body& body) {
  switch (kind) {
    case Activation::kNone:
      return body(IdentityOp());
    case Activation::kGelu:
      return body(GeluOp());
    case Activation::kGeluTanh:
      return body(GeluTanhOp());
    case Activation::kSilu:
      return body(SwishOp<1000>());
    case Activation::kQuickGelu:
      return body(SwishOp<1702>());
    case Activation::kRelu:
      return body(ReluOp());
    case Activation::kTanh:
      return body(TanhOp());
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#endif  // TRANCHE_TENSOR_CPU_ACTIVATION_INL_H_
