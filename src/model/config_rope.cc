#include "model/config_rope.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace tranche {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxTheta = 1e30;
constexpr int64_t kMaxPositions = int64_t{1} << 40;

// One place in the file where a setting may stand: an object and the key there.
struct Place {
  const ConfigReader* reader;
  std::string key;
};

// The value of the places that have one; a fault where two differ.
const Json* Agreed(const std::vector<Place>& places, const ConfigReader** where, std::string* key) {
  const Json* found = nullptr;
  for (const Place& place : places) {
    if (place.reader == nullptr) continue;
    const Json* value = place.reader->Find(place.key);
    if (value == nullptr) continue;
    if (found == nullptr) {
      found = value, *where = place.reader, *key = place.key;
    } else if (*found != *value) {
      place.reader->Error(place.key,
                          absl::StrCat(ShortJson(*value), " contradicts ", (*where)->prefix(), *key,
                                       ": ", ShortJson(*found), "; keep one of them"));
    }
  }
  return found;
}

// The dictionaries that describe one kind of layer, new spelling first, and the top level.
struct Sources {
  const ConfigReader* top;
  const ConfigReader*
      parameters;               // rope_parameters, or its part for this kind of layer; may be null
  const ConfigReader* scaling;  // rope_scaling; may be null

  std::vector<Place> Inside(const std::string& key) const {
    return {{parameters, key}, {scaling, key}};
  }
  std::vector<Place> Anywhere(const std::string& key) const {
    return {{parameters, key}, {scaling, key}, {top, key}};
  }
};

double AgreedNumber(const std::vector<Place>& places, double otherwise, double low, double high) {
  const ConfigReader* reader = nullptr;
  std::string key;
  return Agreed(places, &reader, &key) == nullptr ? otherwise
                                                  : reader->Number(key, otherwise, low, high);
}

int64_t AgreedInt(const std::vector<Place>& places, int64_t otherwise, int64_t low, int64_t high) {
  const ConfigReader* reader = nullptr;
  std::string key;
  return Agreed(places, &reader, &key) == nullptr ? otherwise
                                                  : reader->Int(key, otherwise, low, high);
}

bool Given(const std::vector<Place>& places) {
  return std::any_of(places.begin(), places.end(), [](const Place& place) {
    return place.reader != nullptr && place.reader->Has(place.key);
  });
}

const std::vector<std::pair<std::string, RopeType>>& TypeNames() {
  static const auto* names = new std::vector<std::pair<std::string, RopeType>>{
      {"default", RopeType::kDefault}, {"linear", RopeType::kLinear},
      {"dynamic", RopeType::kDynamic}, {"llama3", RopeType::kLlama3},
      {"yarn", RopeType::kYarn},       {"longrope", RopeType::kLongRope}};
  return *names;
}

// The type that the places name: `rope_type` and its older name `type`, in either dictionary.
// Nothing after a fault: what the type decides would only be said to be wrong a second time.
std::optional<RopeType> ResolveType(const Sources& sources, bool phi3) {
  std::optional<RopeType> resolved;
  std::string first;
  const ConfigReader* last = nullptr;
  for (const ConfigReader* reader : {sources.parameters, sources.scaling}) {
    if (reader == nullptr) continue;
    last = reader;
    for (const char* key : {"rope_type", "type"}) {
      if (!reader->Has(key)) continue;
      const std::string name = reader->String(key, "");
      if (name.empty() && !reader->Find(key)->is_string()) return std::nullopt;
      const bool old_name =
          name == "su" || (phi3 && name == "yarn");  // before longrope had its name
      std::optional<RopeType> type;
      for (const auto& [known, value] : TypeNames()) {
        if (known == (old_name ? "longrope" : name)) type = value;
      }
      if (!type) {
        reader->Error(
            key, absl::StrCat(
                     "\"", name,
                     "\" is not a rotary scaling that Tranche knows: default, linear, dynamic, ",
                     "llama3, yarn, longrope"));
        return std::nullopt;
      }
      if (resolved && *resolved != *type) {
        reader->Error(key,
                      absl::StrCat("\"", name, "\" contradicts ", first, "; keep one of them"));
        return std::nullopt;
      }
      if (!resolved) first = absl::StrCat(reader->prefix(), key, ": \"", name, "\"");
      resolved = type;
    }
  }
  if (!resolved) {
    for (const char* key :
         {"factor", "short_factor", "long_factor", "low_freq_factor", "beta_fast"}) {
      if (last != nullptr && Given(sources.Inside(key))) {
        last->Error("rope_type", absl::StrCat("is missing although ", key,
                                              " is given; say default, linear, dynamic, llama3, ",
                                              "yarn or longrope"));
        return std::nullopt;
      }
    }
  }
  return resolved.value_or(RopeType::kDefault);
}

// `partial`: whether the family may leave a part of each head as it is.
void ResolveDimension(const Sources& sources, bool partial, double default_fraction,
                      const ModelConfig& config, RopeConfig& rope) {
  const auto places = sources.Anywhere("partial_rotary_factor");
  const double fraction = AgreedNumber(places, default_fraction, 1e-6, 1);
  rope.dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * fraction);
  if (rope.dim < 2 || rope.dim % 2 != 0) {
    sources.top->Error(
        "partial_rotary_factor",
        absl::StrFormat(
            "the rotary dimension floor(head_dim %d * %g) = %d must be even and at least 2",
            config.head_dim, fraction, rope.dim));
    rope.dim = 2;
  } else if (!partial && rope.dim != config.head_dim) {
    sources.top->Error("partial_rotary_factor",
                       absl::StrCat("transformers rotates whole heads of a ", config.model_type,
                                    " model, whatever this says"));
  }
}

void ResolveLongRope(const Sources& sources, RopeConfig& rope) {
  for (const auto& [key, list] : {std::pair{"short_factor", &rope.short_factor},
                                  std::pair{"long_factor", &rope.long_factor}}) {
    const ConfigReader* reader = nullptr;
    std::string name;
    if (Agreed(sources.Inside(key), &reader, &name) == nullptr) {
      (sources.parameters != nullptr ? sources.parameters : sources.scaling)
          ->Error(key, "longrope needs this list");
      continue;
    }
    *list = reader->Numbers(key);
    if (static_cast<int64_t>(list->size()) != rope.dim / 2) {
      reader->Error(key, absl::StrFormat("has %d numbers; rotary dimension %d / 2 = %d are needed",
                                         list->size(), rope.dim, rope.dim / 2));
    } else if (!std::all_of(list->begin(), list->end(),
                            [](double x) { return x > 1e-6 && x < 1e9; })) {
      reader->Error(key, "holds a number that is not positive");
    }
  }
}

double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void ResolveAttentionScaling(const Sources& sources, RopeConfig& rope) {
  const auto places = sources.Inside("attention_factor");
  if (Given(places)) {
    rope.attention_scaling = AgreedNumber(places, 1, 1e-6, 1e6);
  } else if (rope.type == RopeType::kYarn) {
    const double mscale = AgreedNumber(sources.Inside("mscale"), 0, 0, 1e6);
    const double all = AgreedNumber(sources.Inside("mscale_all_dim"), 0, 0, 1e6);
    rope.attention_scaling = mscale != 0 && all != 0
                                 ? YarnScale(rope.factor, mscale) / YarnScale(rope.factor, all)
                                 : YarnScale(rope.factor, 1);
  } else if (rope.factor > 1) {
    rope.attention_scaling = std::sqrt(
        1 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_max_positions)));
  }
}

void ResolveScaling(const Sources& sources, int64_t default_original, RopeConfig& rope) {
  const ConfigReader* inside = sources.parameters != nullptr ? sources.parameters : sources.scaling;
  const auto factor_places = sources.Inside("factor");
  const bool factor_given = Given(factor_places);
  rope.factor = AgreedNumber(factor_places, 1, 1e-3, 1e6);
  if (rope.type == RopeType::kDefault) {
    if (rope.factor != 1) {
      const bool new_spelling = sources.parameters != nullptr && sources.parameters->Has("factor");
      (new_spelling ? sources.parameters : sources.scaling)
          ->Error("factor",
                  absl::StrFormat("%g has no effect with rope_type \"default\"", rope.factor));
    }
    rope.factor = 1;
    return;
  }
  const auto original_places = sources.Anywhere("original_max_position_embeddings");
  const bool original_given = Given(original_places) || default_original > 0;
  const bool derives_factor =
      rope.type == RopeType::kLongRope || (rope.type == RopeType::kYarn && original_given);
  if (!factor_given && !derives_factor) {
    inside->Error("factor", absl::StrCat("rope_type \"", Name(rope.type), "\" needs a factor"));
    return;
  }
  if (rope.type == RopeType::kLinear) return;
  if (rope.type == RopeType::kDynamic) {
    if (rope.dim < 4)
      inside->Error("rope_type", "\"dynamic\" needs a rotary dimension of at least 4");
    return;
  }
  if (rope.type == RopeType::kLlama3 && !original_given) {
    inside->Error("original_max_position_embeddings", "rope_type \"llama3\" needs it");
    return;
  }
  rope.original_max_positions =
      AgreedInt(original_places, default_original > 0 ? default_original : rope.max_positions, 2,
                kMaxPositions);
  if (!factor_given) {
    rope.factor =
        static_cast<double>(rope.max_positions) / static_cast<double>(rope.original_max_positions);
  }
  if (rope.type == RopeType::kLlama3) {
    for (const auto& [key, value] : {std::pair{"low_freq_factor", &rope.low_freq_factor},
                                     std::pair{"high_freq_factor", &rope.high_freq_factor}}) {
      if (!Given(sources.Inside(key))) inside->Error(key, "rope_type \"llama3\" needs it");
      *value = AgreedNumber(sources.Inside(key), *value, 1e-6, 1e9);
    }
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      inside->Error("high_freq_factor",
                    absl::StrFormat("%g must exceed low_freq_factor %g", rope.high_freq_factor,
                                    rope.low_freq_factor));
    }
    return;
  }
  if (rope.type == RopeType::kYarn) {
    rope.beta_fast = AgreedNumber(sources.Inside("beta_fast"), 32, 1e-6, 1e9);
    rope.beta_slow = AgreedNumber(sources.Inside("beta_slow"), 1, 1e-6, 1e9);
    const ConfigReader* reader = nullptr;
    std::string key;
    if (Agreed(sources.Inside("truncate"), &reader, &key) != nullptr)
      rope.truncate = reader->Bool(key, true);
  } else {
    ResolveLongRope(sources, rope);
  }
  ResolveAttentionScaling(sources, rope);
}

// `theta_key`: the top-level name of theta for this kind of layer.
RopeConfig Resolve(const Sources& sources, const ConfigFamily& family, const std::string& theta_key,
                   double default_theta, const ModelConfig& config) {
  RopeConfig rope;
  rope.max_positions = config.max_positions;
  const bool phi3 = family.model_type == "phi3";
  auto theta_places = sources.Inside("rope_theta");
  theta_places.push_back({sources.top, theta_key});
  rope.theta = AgreedNumber(theta_places, default_theta, 1.0000001, kMaxTheta);
  const bool phi = family.model_type == "phi";
  ResolveDimension(sources, phi || phi3, phi ? 0.5 : 1.0, config, rope);
  const std::optional<RopeType> type = ResolveType(sources, phi3);
  if (!type) return rope;
  rope.type = *type;
  if (phi3 && rope.type != RopeType::kDefault && rope.type != RopeType::kLongRope) {
    (sources.parameters != nullptr ? sources.parameters : sources.scaling)
        ->Error("rope_type", absl::StrCat("a phi3 model knows default and longrope only, not ",
                                          Name(rope.type)));
    return rope;
  }
  ResolveScaling(sources, phi3 ? 4096 : 0, rope);
  return rope;
}

bool HoldsObjects(const Json& object) {
  return std::any_of(object.begin(), object.end(),
                     [](const Json& value) { return value.is_object(); });
}

}  // namespace

void ParseRope(const ConfigReader& reader, const ConfigFamily& family, ModelConfig& config) {
  reader.Int("original_max_position_embeddings", 0, 2,
             kMaxPositions);  // checked even where the type does without it
  const bool two_kinds = family.model_type == "modernbert";
  const Json* parameters = reader.Find("rope_parameters");
  const Json* scaling = reader.Find("rope_scaling");
  for (const auto& [key, value] :
       {std::pair{"rope_parameters", parameters}, std::pair{"rope_scaling", scaling}}) {
    if (value != nullptr && !value->is_object()) {
      reader.Error(key, absl::StrCat("must be an object or null, not ", ShortJson(*value)));
      return;
    }
  }
  std::optional<ConfigReader> scaling_reader;
  if (scaling != nullptr) scaling_reader.emplace(*scaling, "rope_scaling.", reader.errors());
  const ConfigReader* scaling_source = scaling_reader ? &*scaling_reader : nullptr;

  if (!two_kinds) {
    if (parameters != nullptr && HoldsObjects(*parameters)) {
      reader.Error("rope_parameters", absl::StrCat("settings per kind of layer are not known for ",
                                                   family.model_type));
      return;
    }
    std::optional<ConfigReader> parameters_reader;
    if (parameters != nullptr)
      parameters_reader.emplace(*parameters, "rope_parameters.", reader.errors());
    const Sources sources{&reader, parameters_reader ? &*parameters_reader : nullptr,
                          scaling_source};
    config.ropes = {Resolve(sources, family, "rope_theta", 10000, config)};
    return;
  }
  static const Json* const kEmpty = new Json(Json::object());
  for (const auto& [kind, theta_key, theta] :
       {std::tuple{"full_attention", "global_rope_theta", 160000.0},
        std::tuple{"sliding_attention", "local_rope_theta", 10000.0}}) {
    const Json* part = kEmpty;
    if (parameters != nullptr) {
      if (!parameters->empty() && !HoldsObjects(*parameters)) {
        reader.Error(
            "rope_parameters",
            "of a modernbert model holds an object full_attention and an object sliding_attention");
        return;
      }
      const auto found = parameters->find(kind);
      if (found != parameters->end() && !found->is_null()) part = &*found;
      if (!part->is_object()) {
        reader.Error("rope_parameters",
                     absl::StrCat(kind, " must be an object, not ", ShortJson(*part)));
        return;
      }
    }
    const ConfigReader part_reader(*part, absl::StrCat("rope_parameters.", kind, "."),
                                   reader.errors());
    config.ropes.push_back(
        Resolve(Sources{&reader, &part_reader, scaling_source}, family, theta_key, theta, config));
  }
}

}  // namespace tranche
