// What [optimizer] says of single parameters: which of them decay, and with which rates of their
// own.
#pragma once

#include <string>
#include <vector>

#include "model/param_spec.h"
#include "trainer/recipe.h"

namespace tranche {

// Whether a parameter is what optimizer.no_decay calls `kind`: "bias" (a norm's too), "norm" (gain
// and bias), "embedding" (tokens, positions, token types; a tied decoder is its embedding).
bool IsOfKind(const ParamSpec& spec, const std::string& kind);

// Whether a pattern of optimizer.param_groups means the parameter of that name.
bool MatchesParam(const std::string& pattern, const std::string& name);

// Writes decay, weight_decay and lr_scale into the specs.
void SetParamUpdates(const OptimizerRecipe& optimizer, std::vector<ParamSpec>* specs);

}  // namespace tranche
