// What a config.json decides beside sizes and tokens, family by family: norms, biases, dropout,
// windows, head.
#pragma once

#include "absl/strings/string_view.h"
#include "model/config_reader.h"
#include "model/model_config.h"

namespace tranche {

// Larger sizes than any model has: they keep products of two of them inside 64 bits and hostile
// files small in memory.
inline constexpr int64_t kMaxWidth = int64_t{1} << 24;
inline constexpr int64_t kMaxRows = int64_t{1} << 31;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxToken = int64_t{1} << 40;

// The activation that `key` names, or `otherwise` does where it is absent.
Activation ReadActivation(const ConfigReader& reader, absl::string_view key,
                          absl::string_view otherwise);

// Reads the choices of config.model_type. Sizes, tokens and config.layers (of its number) must be
// set. Faults go to the reader.
void ReadChoices(const ConfigReader& reader, ModelConfig& config);

}  // namespace tranche
