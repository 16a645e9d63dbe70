// What `tranche inspect` shows of a model: a Hugging Face folder, or a config.json alone.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tranche {

// Architecture, sizes, resolved rotary settings, every tensor under its Hugging Face name with
// shape and type, the parameter count, the decay groups, and what a training run would warn of or
// lack. `path` may be a folder with or without weights, or a config.json. What a training run would
// refuse is an error here too. As text or JSON.
absl::StatusOr<std::string> InspectModel(const std::string& path, bool json);

}  // namespace tranche
