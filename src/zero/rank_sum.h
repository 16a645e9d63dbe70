// The one sum of reduce-scatter: taken in rank order in fp32, whatever carries the parts.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "tensor/dtype.h"

namespace tranche {

// out [n] = parts[0] + parts[1] + …, from the left, each [n] of fp32 or bf16 (widened); out + that
// sum where `accumulate`. out may be one of the parts of fp32. One thread.
void SumInRankOrder(float* out, absl::Span<const void* const> parts, DType dtype, int64_t n,
                    bool accumulate);

}  // namespace tranche
