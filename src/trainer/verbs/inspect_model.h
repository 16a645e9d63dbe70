// What `tranche inspect` shows of a model: a Hugging Face folder, or a config.json alone.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/model_config.h"

namespace tranche {

// Architecture, sizes, resolved rotary settings, every tensor under its Hugging Face name with
// shape, type and the parameter that it is part of, the parameter count, the decay groups, and what
// a training run would warn of or lack. `path` may be a folder with or without weights, or a
// config.json. What a training run would refuse is an error here too. As text or JSON.
absl::StatusOr<std::string> InspectModel(const std::string& path, bool json);

// Of it the lines that say what the model is: sizes, blocks, positions, special tokens.
std::string ConfigurationText(const ModelConfig& config);

}  // namespace tranche
