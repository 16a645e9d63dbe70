#include "trainer/param_updates.h"

#include <fnmatch.h>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"

namespace tranche {

// By Tranche's own names, which BuildParamSpecs alone gives.
bool IsOfKind(const ParamSpec& spec, const std::string& kind) {
  const bool norm = absl::StrContains(spec.name, "norm.");
  if (kind == "bias") return absl::EndsWith(spec.name, ".bias");
  if (kind == "norm") return norm;
  return !norm && absl::StartsWith(spec.name, "embeddings.");
}

bool MatchesParam(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

void SetParamUpdates(const OptimizerRecipe& optimizer, std::vector<ParamSpec>* specs) {
  for (ParamSpec& spec : *specs) {
    spec.decay = absl::c_none_of(optimizer.no_decay,
                                 [&](const std::string& kind) { return IsOfKind(spec, kind); });
    for (const ParamGroup& group : optimizer.param_groups) {
      if (!MatchesParam(group.match, spec.name)) continue;
      if (group.lr_scale) spec.lr_scale = static_cast<float>(*group.lr_scale);
      if (group.weight_decay) spec.weight_decay = static_cast<float>(*group.weight_decay);
    }
  }
}

}  // namespace tranche
