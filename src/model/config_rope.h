// The rotary settings of a config.json: transformers 4 (`rope_theta`, `partial_rotary_factor`,
// `rope_scaling`) and 5
// (`rope_parameters`), resolved to RopeConfigs; where both speak they must agree.
#pragma once

#include <string>
#include <vector>

#include "model/config_families.h"
#include "model/config_reader.h"
#include "model/model_config.h"

namespace tranche {

// Reads the settings of `family` from `reader` into config.ropes. head_dim, max_positions must be
// set. Faults go to the reader.
void ParseRope(const ConfigReader& reader, const ConfigFamily& family, ModelConfig& config);

}  // namespace tranche
