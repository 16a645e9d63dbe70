// Start values of parameters. An element's value is a function of (seed, parameter name, element)
// alone: not of the order in which parameters are made, nor of which rank makes which part.
#pragma once

#include <cstdint>

#include "model/param_spec.h"

namespace tranche {

// Writes elements [first, first + count) of the parameter, row-major, to `out`. Normal values are
// Box-Muller pairs of Philox numbers; truncated ones are drawn again outside the cutoff.
void InitialValues(const ParamSpec& spec, uint64_t seed, int64_t first, int64_t count, float* out);

}  // namespace tranche
