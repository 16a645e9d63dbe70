#include <string>
#include <utility>
#include <vector>

#include "model/config_families.h"
#include "model/model_config.h"
#include "nlohmann/json.hpp"

namespace tranche {

using Json = nlohmann::ordered_json;

namespace {

bool HasValue(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

// The scaling dictionary as both generations read it. transformers 4 wants phi3's to hold `type`
// and the two lists and nothing that stands at top level as well.
Json ScalingOf(const Json& parameters, bool phi3) {
  Json scaling = Json::object();
  for (const auto& [key, value] : parameters.items()) {
    if (value.is_null() || key == "rope_theta" || key == "partial_rotary_factor" || key == "type" ||
        key == "rope_type")
      continue;
    if (phi3 && key == "original_max_position_embeddings") continue;
    scaling[key] = value;
  }
  const char* key = HasValue(parameters, "rope_type") ? "rope_type" : "type";
  if (!HasValue(parameters, key) || parameters[key] == "default") return nullptr;
  scaling["type"] = parameters[key];
  if (!phi3) scaling["rope_type"] = parameters[key];
  return scaling;
}

// Adds to `json` the spelling that is missing, so that both generations of transformers read
// config.ropes from it.
void CompleteRopeKeys(const ModelConfig& config, Json& json) {
  // Where null is read as absent here, transformers fails.
  for (const char* key :
       {"rope_theta", "global_rope_theta", "local_rope_theta", "partial_rotary_factor"}) {
    if (const auto found = json.find(key); found != json.end() && found->is_null())
      json.erase(found);
  }
  const bool phi3 = config.model_type == "phi3";
  const auto scaling = json.find("rope_scaling");
  // transformers 4 takes phi3's under its older key alone.
  if (phi3 && scaling != json.end() && scaling->is_object() && !HasValue(*scaling, "type")) {
    *scaling = ScalingOf(*scaling, phi3);
  }
  const auto found = json.find("rope_parameters");
  // The older spelling alone is read by both generations.
  if (found == json.end() || !found->is_object()) return;
  const Json parameters = *found;
  const auto complete = [&](const char* key, Json value) {
    if (!HasValue(json, key)) json[key] = std::move(value);
  };
  if (config.ropes.size() == 2) {
    complete("global_rope_theta", config.ropes[0].theta);
    complete("local_rope_theta", config.ropes[1].theta);
    return;
  }
  const RopeConfig& rope = config.ropes[0];
  complete("rope_theta", rope.theta);
  complete("rope_scaling", ScalingOf(parameters, phi3));
  if (const auto fraction = parameters.find("partial_rotary_factor");
      fraction != parameters.end()) {
    complete("partial_rotary_factor", *fraction);
  }
  if (phi3 && rope.original_max_positions > 0)
    complete("original_max_position_embeddings", rope.original_max_positions);
}

}  // namespace

Json ExportedConfig(const Json& source, const ModelConfig& config, absl::string_view dtype) {
  Json json = source;
  bool declared = false;
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (json.contains(key)) json[key] = std::string(dtype), declared = true;
  }
  if (!declared) json["torch_dtype"] = std::string(dtype);
  if (!HasValue(json, "model_type")) json["model_type"] = config.model_type;
  // An export holds the head, also where the folder was a bare body's.
  const std::vector<std::string>& names = FindFamily(config.model_type)->architectures;
  if (config.architecture == names.back()) {
    json["architectures"] = Json::array({names.front()});
  } else if (!HasValue(json, "architectures")) {
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
