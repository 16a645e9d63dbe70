#include <string>
#include <vector>

#include "model/config_families.h"
#include "model/config_rope.h"
#include "model/model_config.h"
#include "nlohmann/json.hpp"

namespace tranche {

using Json = nlohmann::ordered_json;

Json ExportedConfig(const Json& source, const ModelConfig& config, absl::string_view dtype) {
  Json json = source;
  bool declared = false;
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (json.contains(key)) json[key] = std::string(dtype), declared = true;
  }
  if (!declared) json["torch_dtype"] = std::string(dtype);
  const auto lacks = [&](const char* key) { return !json.contains(key) || json[key].is_null(); };
  if (lacks("model_type")) json["model_type"] = config.model_type;
  // An export holds the head, also where the folder was a bare body's.
  const std::vector<std::string>& names = FindFamily(config.model_type)->architectures;
  if (config.architecture == names.back()) {
    json["architectures"] = Json::array({names.front()});
  } else if (lacks("architectures")) {
    json["architectures"] = Json::array({config.architecture});
  }
  CompleteRopeKeys(config, json);
  return json;
}

std::string ConfigText(const Json& config) {
  return config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

const char* Name(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kSilu:
      return "silu";
    case Activation::kQuickGelu:
      return "quick_gelu";
    case Activation::kRelu:
      return "relu";
    case Activation::kTanh:
      return "tanh";
    case Activation::kNone:
      return "none";
  }
  return "";
}

const char* Name(RopeType type) {
  switch (type) {
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kDynamic:
      return "dynamic";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
    case RopeType::kLongRope:
      return "longrope";
  }
  return "";
}

}  // namespace tranche
