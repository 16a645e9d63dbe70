// Activations on stretches of fp32: the one place where their vector code is compiled, for the
// operations of activation.cc and the epilogue of products.
#pragma once

#include <cstdint>

#include "tensor/backend.h"

namespace tranche::cpu {

// The longest vector of any instruction set. The functions below work on whole vectors: they read
// and write up to the next multiple of this behind `count`, whatever lies there.
inline constexpr int64_t kMaxVectorFloats = 16;

// x[i] = activation(x[i]).
void Activate(Activation kind, float* x, int64_t count);
// dy[i] *= activation'(x[i]).
void Differentiate(Activation kind, const float* x, float* dy, int64_t count);

}  // namespace tranche::cpu
