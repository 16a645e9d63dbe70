// The kinds of activation functions and norms: vocabulary that backends and model configurations
// share.
#pragma once

#include <cstdint>

namespace tranche {

// gelu is the exact (erf) one, gelu_tanh its tanh approximation, quick_gelu x·σ(1.702x).
enum class Activation : uint8_t { kNone, kGelu, kGeluTanh, kSilu, kQuickGelu, kRelu, kTanh };
enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };

}  // namespace tranche
