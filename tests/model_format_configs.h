// Small config.json files for the tests of their reader, and what is compared of the models that
// they mean.
#pragma once

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/model_config.h"
#include "model/param_spec.h"
#include "model/rope.h"
#include "model_format_fixtures.h"

namespace tranche {

// A small valid config.json for each architecture, with the optional keys that pitfalls are about.
inline Json TinyConfig(absl::string_view model_type) {
  Json json = {{"model_type", std::string(model_type)},
               {"hidden_size", 64},
               {"num_hidden_layers", 3},
               {"num_attention_heads", 4},
               {"intermediate_size", 128},
               {"vocab_size", 300},
               {"max_position_embeddings", 64},
               {"pad_token_id", 1}};
  return json;
}

inline ModelConfig MustParseConfig(const Json& json) {
  auto config = ParseModelConfig(json, "config.json");
  TRANCHE_CHECK(config.ok()) << config.status().ToString() << " in " << json.dump();
  return *std::move(config);
}

// What the reader says of a faulty one; "" of a good one.
inline std::string Refusal(const Json& json) {
  const auto config = ParseModelConfig(json, "config.json");
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(config.status().message()), testing::HasSubstr("config.json: "));
  return std::string(config.status().message());
}

// Everything that follows from a configuration, as text: two spellings are equal where these are.
inline std::string Meaning(const ModelConfig& config) {
  std::string text = absl::StrCat(
      config.model_type, config.architecture, config.hidden_size, ",", config.num_kv_heads, ",",
      config.head_dim, ",", config.norm_eps, ",", config.pad_token_id, ",", config.bos_token_id,
      ",", config.tied, config.qkv_bias, config.causal, config.attention_dropout, ",");
  for (const int64_t id : config.eos_token_ids) absl::StrAppend(&text, "e", id);
  for (const LayerConfig& layer : config.layers)
    absl::StrAppend(&text, "w", layer.window, "r", layer.rope);
  for (const RopeConfig& rope : config.ropes) {
    for (const int64_t length : {1, 100, 100000}) {
      for (const float frequency : InverseFrequencies(rope, length))
        absl::StrAppend(&text, " ", frequency);
    }
    absl::StrAppend(&text, " s", rope.attention_scaling);
  }
  for (const ParamSpec& spec : BuildParamSpecs(config)) {
    for (const HfPart& part : spec.parts) absl::StrAppend(&text, " ", part.name, part.elements());
  }
  return text;
}

}  // namespace tranche
