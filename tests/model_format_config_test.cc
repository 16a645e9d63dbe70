// config.json: real models give exactly the tensors that transformers has; both generations'
// spellings mean the same model; what is wrong is refused with the values shown; what is exported
// reads back as the same model.
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/config_families.h"
#include "model/model_config.h"
#include "model/param_spec.h"
#include "model/rope.h"
#include "model_format_fixtures.h"

namespace tranche {
namespace {

using testing::HasSubstr;

const char* const kConfigs[] = {"bert-base-uncased",
                                "bert-large-uncased",
                                "llama-3.2-1b",
                                "modernbert-base",
                                "modernbert-large",
                                "phi-1_5",
                                "phi-2",
                                "phi-3-medium-4k",
                                "phi-3-mini-4k",
                                "qwen2.5-0.5b",
                                "qwen3-0.6b",
                                "roberta-base",
                                "tinyllama-1.1b"};

class RealConfig : public testing::TestWithParam<const char*> {};

TEST_P(RealConfig, HasExactlyTheTensorsOfTransformers) {
  const std::string folder = SharedPath(absl::StrCat("fixtures/configs/", GetParam()));
  TRANCHE_SKIP_WITHOUT(folder);
  const auto config = ReadModelConfig(folder);
  ASSERT_TRUE(config.ok()) << config.status();
  const std::vector<ParamSpec> specs = BuildParamSpecs(*config);
  const Json expect = MustParse(MustRead(JoinPath(folder, "expect.json")));
  std::map<std::string, std::vector<int64_t>> tensors;
  std::set<std::pair<int, ParamRole>> places;
  for (const ParamSpec& spec : specs) {
    EXPECT_TRUE(places.emplace(spec.group, spec.role).second) << spec.name;
    int64_t elements = 0;
    for (const HfPart& part : spec.parts) {
      EXPECT_TRUE(tensors.emplace(part.name, part.shape).second) << part.name;
      EXPECT_EQ(part.shape.size() == 2, spec.decay) << part.name;
      elements += part.elements();
    }
    EXPECT_EQ(elements, spec.elements()) << spec.name;
  }
  EXPECT_EQ(tensors, (expect["tensors"].get<std::map<std::string, std::vector<int64_t>>>()));
  EXPECT_EQ(TotalElements(specs), expect["parameters"].get<int64_t>());
}

INSTANTIATE_TEST_SUITE_P(Configs, RealConfig, testing::ValuesIn(kConfigs));

// A small valid config.json for each architecture, with the optional keys that pitfalls are about.
Json TinyConfig(absl::string_view model_type) {
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

ModelConfig MustParseConfig(const Json& json) {
  auto config = ParseModelConfig(json, "config.json");
  TRANCHE_CHECK(config.ok()) << config.status().ToString() << " in " << json.dump();
  return *std::move(config);
}

std::string Refusal(const Json& json) {
  const auto config = ParseModelConfig(json, "config.json");
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("config.json: "));
  return std::string(config.status().message());
}

// Everything that follows from a configuration, as text: two spellings are equal where these are.
std::string Meaning(const ModelConfig& config) {
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

class EachFamily : public testing::TestWithParam<const char*> {};

TEST_P(EachFamily, TakesNullForAbsentInEveryOptionalKey) {
  const Json base = TinyConfig(GetParam());
  for (const std::string& key : ModelConfigKeys(GetParam())) {
    if (base.contains(key) && key != "pad_token_id") continue;
    Json absent = base, null = base;
    absent.erase(key);
    null[key] = nullptr;
    EXPECT_EQ(Meaning(MustParseConfig(absent)), Meaning(MustParseConfig(null))) << key;
  }
}

TEST_P(EachFamily, RefusesWrongTypesInEveryKey) {
  const Json base = TinyConfig(GetParam());
  for (const std::string& key : ModelConfigKeys(GetParam())) {
    Json wrong = base;
    wrong[key] = Json::array({Json::object()});
    EXPECT_THAT(Refusal(wrong), HasSubstr(key)) << key;
  }
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size"}) {
    for (const Json& value : {Json("64"), Json(64.0), Json(0), Json(-64), Json(true), Json(1e18),
                              Json(uint64_t{1} << 63)}) {
      Json wrong = base;
      wrong[key] = value;
      EXPECT_THAT(Refusal(wrong), HasSubstr(key)) << key << " " << value.dump();
    }
  }
}

TEST_P(EachFamily, DecidesByModelTypeWithoutArchitecturesAndByArchitecturesWithoutModelType) {
  const Json base = TinyConfig(GetParam());
  const ModelConfig config = MustParseConfig(base);
  Json other = base;
  other.erase("model_type");
  other["architectures"] = Json::array({config.architecture});
  EXPECT_EQ(Meaning(MustParseConfig(other)), Meaning(config));
  other["model_type"] = absl::StrCat(GetParam()) == "llama" ? "phi" : "llama";
  EXPECT_THAT(Refusal(other), HasSubstr(config.architecture));
}

TEST_P(EachFamily, ReportsEveryFaultOfOneFile) {
  Json json = TinyConfig(GetParam());
  json["vocab_size"] = "300";
  json["num_attention_heads"] = 5;
  json["initializer_range"] = -1;
  json["tie_word_embeddings"] = "yes";
  const std::string refusal = Refusal(json);
  for (const char* key :
       {"vocab_size", "hidden_size", "initializer_range", "tie_word_embeddings"}) {
    if (absl::StrCat(GetParam()) == "qwen3" && absl::StrCat(key) == "hidden_size")
      continue;  // its head_dim is independent
    EXPECT_THAT(refusal, HasSubstr(key));
  }
}

TEST_P(EachFamily, ExportsAConfigThatMeansTheSameAndKeepsUnknownKeys) {
  Json json = TinyConfig(GetParam());
  json["some_unknown_key"] = {{"z", 1}, {"a", Json::array({1, nullptr})}};
  json["dtype"] = "bfloat16";
  const ModelConfig config = MustParseConfig(json);
  const Json exported = ExportedConfig(json, config, "float16");
  EXPECT_EQ(exported["some_unknown_key"].dump(), json["some_unknown_key"].dump());
  EXPECT_EQ(exported["dtype"], "float16");
  EXPECT_EQ(exported["architectures"], Json::array({config.architecture}));
  size_t i = 0;
  for (auto old = json.begin(); old != json.end(); ++old, ++i)
    EXPECT_EQ(std::next(exported.begin(), i).key(), old.key());
  const ModelConfig again = MustParseConfig(MustParse(ConfigText(exported)));
  EXPECT_EQ(Meaning(again), Meaning(config));
  EXPECT_EQ(again.dtype, "float16");
}

INSTANTIATE_TEST_SUITE_P(Families, EachFamily,
                         testing::Values("bert", "roberta", "modernbert", "phi", "phi3", "llama",
                                         "qwen2", "qwen3"));

TEST(Shapes, ImpossibleOnesAreRefusedWithTheFormula) {
  Json llama = TinyConfig("llama");
  llama["num_attention_heads"] = 12, llama["hidden_size"] = 96, llama["num_key_value_heads"] = 5;
  EXPECT_THAT(Refusal(llama), HasSubstr("num_attention_heads 12 % num_key_value_heads 5 = 2"));
  Json bert = TinyConfig("bert");
  bert["num_attention_heads"] = 5;
  EXPECT_THAT(Refusal(bert), HasSubstr("hidden_size / num_attention_heads = 64 / 5 is not whole"));
  bert = TinyConfig("bert");
  bert["head_dim"] = 20;
  EXPECT_THAT(Refusal(bert),
              HasSubstr("20 contradicts hidden_size / num_attention_heads = 64 / 4 = 16"));
  Json odd = TinyConfig("phi");
  odd["partial_rotary_factor"] = 0.2;
  EXPECT_THAT(Refusal(odd), HasSubstr("floor(head_dim 16 * 0.2) = 3 must be even"));
  Json pad = TinyConfig("llama");
  pad["pad_token_id"] = 300;
  EXPECT_THAT(Refusal(pad), HasSubstr("300 must be below vocab_size 300"));
  Json roberta = TinyConfig("roberta");
  roberta["max_position_embeddings"] = 2;
  EXPECT_THAT(Refusal(roberta), HasSubstr("max_position_embeddings 2 - (pad_token_id 1 + 1)"));
  Json huge = TinyConfig("llama");
  huge["num_attention_heads"] = 65536, huge["head_dim"] = 65536;
  EXPECT_THAT(Refusal(huge), HasSubstr("exceeds"));
}

TEST(Shapes, HeadDimNeedNotBeHiddenOverHeads) {
  Json json = TinyConfig("llama");
  json["head_dim"] = 24, json["num_key_value_heads"] = 2;
  const ModelConfig config = MustParseConfig(json);
  const std::vector<ParamSpec> specs = BuildParamSpecs(config);
  const ParamSpec& qkv = specs[FindParam(specs, 1, ParamRole::kQkvWeight)];
  EXPECT_EQ(qkv.rows, (4 + 2 * 2) * 24);
  EXPECT_EQ(specs[FindParam(specs, 1, ParamRole::kAttentionOutputWeight)].cols, 4 * 24);
}

TEST(Tokens, EosMayBeAListAndMinusOneIsNone) {
  Json json = TinyConfig("llama");
  json["eos_token_id"] = {7, 9};
  json["pad_token_id"] = -1;
  const ModelConfig config = MustParseConfig(json);
  EXPECT_THAT(config.eos_token_ids, testing::ElementsAre(7, 9));
  EXPECT_EQ(config.pad_token_id, -1);
}

TEST(Tokens, ADocumentedPadBeyondASmallVocabularyIsNoPaddingRow) {
  Json json = TinyConfig("phi3");
  json.erase("pad_token_id");
  EXPECT_EQ(MustParseConfig(json).pad_token_id, -1);
}

TEST(Unsupported, FeaturesAreRefusedByName) {
  const auto refused = [](absl::string_view type, const char* key, Json value) {
    Json json = TinyConfig(type);
    json[key] = std::move(value);
    const std::string refusal = Refusal(json);
    EXPECT_THAT(refusal, HasSubstr(key));
    return refusal;
  };
  EXPECT_THAT(refused("bert", "position_embedding_type", "relative_key_query"),
              HasSubstr("relative_key_query"));
  refused("bert", "is_decoder", true);
  refused("roberta", "add_cross_attention", true);
  refused("llama", "quantization_config", {{"bits", 4}});
  refused("bert", "pruned_heads", {{"0", {1}}});
  EXPECT_THAT(refused("llama", "hidden_act", "silo"), HasSubstr("did you mean \"silu\""));
  EXPECT_THAT(refused("bert", "architectures", Json::array({"BertForQuestionAnswering"})),
              HasSubstr("BertForMaskedLM"));
  EXPECT_THAT(refused("llama", "model_type", "mixtral"), HasSubstr("\"mixtral\" is not supported"));
  EXPECT_THAT(refused("llama", "model_type", "lama"), HasSubstr("did you mean \"llama\""));
  EXPECT_THAT(refused("llama", "model_type", "phi-msft"), HasSubstr("old format"));
  refused("llama", "torch_dtype", "int8");
  refused("qwen2", "layer_types",
          Json::array({"full_attention", "chunked_attention", "full_attention"}));
  EXPECT_THAT(refused("qwen2", "layer_types", Json::array({"full_attention"})),
              HasSubstr("num_hidden_layers is 3"));
  EXPECT_THAT(Refusal(Json::array()), HasSubstr("must be an object"));
}

TEST(File, BadJsonIsRefusedWithItsPlace) {
  const TestFolder folder;
  for (const auto& [text, what] : std::vector<std::pair<std::string, std::string>>{
           {"{\"model_type\": \"llama\", \"model_type\": \"phi\"}", "twice"},
           {"\xef\xbb\xbf{\"model_type\": \"llama\"}", "byte-order mark"},
           {"{\"model_type\": \"llama\",}", "config.json:1:"},
           {"{\"rope_theta\": 1e999, \"model_type\": \"llama\"}", "config.json"},
           {"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"},
           {"<!DOCTYPE html><html></html>", "web page"},
           {"", "empty"},
           {"{\"model_type\": \"llama\", \"rope_theta\": NaN}", "config.json:1:"}}) {
    folder.Write("config.json", text);
    const auto config = ReadModelConfig(folder.path());
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(what));
  }
}

// Rotary settings.

Json RopeLlama(const Json& extra) {
  Json json = TinyConfig("llama");
  json.update(extra);
  return json;
}

TEST(Rope, OldNewAndBothSpellingsOfThetaAreOneModel) {
  const std::string old = Meaning(MustParseConfig(RopeLlama({{"rope_theta", 500000.0}})));
  EXPECT_EQ(old, Meaning(MustParseConfig(RopeLlama(
                     {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500000}}}}))));
  EXPECT_EQ(old,
            Meaning(MustParseConfig(RopeLlama(
                {{"rope_theta", 500000},
                 {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500000.0}}}}))));
  EXPECT_EQ(
      old,
      Meaning(MustParseConfig(RopeLlama(
          {{"rope_theta", 500000}, {"rope_scaling", nullptr}, {"rope_parameters", nullptr}}))));
  EXPECT_NE(old, Meaning(MustParseConfig(RopeLlama(Json::object()))));
}

TEST(Rope, TypeAndRopeTypeAreOneKey) {
  const Json old = RopeLlama({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}});
  const Json next = RopeLlama({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}});
  const Json parameters = RopeLlama(
      {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 10000}}}});
  EXPECT_EQ(Meaning(MustParseConfig(old)), Meaning(MustParseConfig(next)));
  EXPECT_EQ(Meaning(MustParseConfig(old)), Meaning(MustParseConfig(parameters)));
}

TEST(Rope, ContradictionsAreRefusedWithBothValues) {
  const auto refusal_has = [](const Json& extra, const std::string& a, const std::string& b) {
    const std::string refusal = Refusal(RopeLlama(extra));
    EXPECT_THAT(refusal, HasSubstr(a));
    EXPECT_THAT(refusal, HasSubstr(b));
  };
  refusal_has({{"rope_theta", 10000},
               {"rope_parameters", {{"rope_theta", 500000}, {"rope_type", "default"}}}},
              "10000", "500000");
  refusal_has({{"rope_scaling", {{"type", "linear"}, {"rope_type", "dynamic"}, {"factor", 2}}}},
              "linear", "dynamic");
  refusal_has({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
               {"rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2}}}},
              "linear", "dynamic");
  refusal_has({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
               {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4}}}},
              "2", "4");
  refusal_has({{"rope_scaling", {{"type", "linear"}}}}, "linear", "factor");
  refusal_has({{"rope_scaling", {{"factor", 2}}}}, "rope_type", "factor");
  refusal_has({{"rope_scaling", {{"rope_type", "default"}, {"factor", 2}}}}, "default", "factor");
  refusal_has({{"rope_scaling", {{"type", "wobbly"}, {"factor", 2}}}}, "wobbly", "llama3");
  refusal_has({{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 2}}}}, "llama3",
              "original_max_position_embeddings");
  refusal_has({{"rope_scaling", "linear"}}, "rope_scaling", "linear");
  refusal_has({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor", "llama");
}

Json LongRope(const char* type) {
  Json json = TinyConfig("phi3");
  json["max_position_embeddings"] = 131072;
  json["original_max_position_embeddings"] = 4096;
  json["rope_scaling"] = {{"type", type},
                          {"short_factor", {1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7}},
                          {"long_factor", {1, 2, 3, 4, 5, 6, 7, 8}}};
  return json;
}

TEST(Rope, PhiThreesOldNamesMeanLongRope) {
  const std::string longrope = Meaning(MustParseConfig(LongRope("longrope")));
  EXPECT_EQ(longrope, Meaning(MustParseConfig(LongRope("su"))));
  EXPECT_EQ(longrope, Meaning(MustParseConfig(LongRope("yarn"))));
  EXPECT_THAT(Refusal(LongRope("linear")), HasSubstr("longrope"));
  Json shorter = LongRope("su");
  shorter["rope_scaling"]["long_factor"] = {1, 2, 3};
  EXPECT_THAT(Refusal(shorter), HasSubstr("rotary dimension 16 / 2 = 8"));
}

TEST(Rope, LongRopeScalesByTheRatioOfLengthsAndPicksItsListByLength) {
  const RopeConfig rope = MustParseConfig(LongRope("longrope")).ropes[0];
  EXPECT_NEAR(rope.attention_scaling, 1.1902380714, 1e-9);
  const std::vector<float> at_limit = InverseFrequencies(rope, 4096),
                           beyond = InverseFrequencies(rope, 4097);
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(at_limit[i] * rope.short_factor[i], std::pow(10000.0, -i / 8.0), 1e-6);
    EXPECT_NEAR(beyond[i] * rope.long_factor[i], std::pow(10000.0, -i / 8.0), 1e-6);
  }
}

TEST(Rope, ModernBertHasOneThetaPerKindOfLayer) {
  Json old = TinyConfig("modernbert"), next = old;
  old["global_rope_theta"] = 160000.0, old["local_rope_theta"] = 20000.0,
  old["global_attn_every_n_layers"] = 2;
  next["rope_parameters"] = {
      {"full_attention", {{"rope_type", "default"}, {"rope_theta", 160000}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 20000}}}};
  next["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
  const ModelConfig config = MustParseConfig(next);
  EXPECT_EQ(Meaning(MustParseConfig(old)), Meaning(config));
  EXPECT_EQ(config.ropes[config.layers[1].rope].theta, 20000);
  EXPECT_EQ(config.layers[1].window, 64);
  EXPECT_EQ(config.layers[2].window, 0);
  EXPECT_FALSE(config.layers[0].attention_norm);
  Json both = next;
  both["local_rope_theta"] = 10000;
  EXPECT_THAT(Refusal(both), testing::AllOf(HasSubstr("10000"), HasSubstr("20000")));
  both = next;
  both["global_attn_every_n_layers"] = 3;
  EXPECT_THAT(Refusal(both), HasSubstr("global_attn_every_n_layers"));
  both = next;
  both["rope_parameters"] = {{"rope_theta", 5}};
  EXPECT_THAT(Refusal(both), HasSubstr("full_attention"));
}

// Frequencies that transformers 5.24 computes (float32) for rotary dimension 16 and theta 10000.
TEST(Rope, FrequenciesEqualTheReferencesToTheLastBits) {
  struct Case {
    const char* what;
    Json scaling;
    int64_t length;
    double attention_scaling;
    std::vector<float> frequencies;
  };
  const std::vector<Case> cases = {
      {"linear",
       {{"rope_type", "linear"}, {"factor", 4.0}},
       1,
       1.0,
       {0.25f, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f,
        0.000250000012f, 7.90569466e-05f}},
      {"dynamic within",
       {{"rope_type", "dynamic"}, {"factor", 4.0}},
       100,
       1.0,
       {1.0f, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00999999978f, 0.00316227786f,
        0.00100000005f, 0.000316227786f}},
      {"dynamic beyond",
       {{"rope_type", "dynamic"}, {"factor", 4.0}},
       20000,
       1.0,
       {1.0f, 0.240649298f, 0.0579120778f, 0.013936501f, 0.00335380924f, 0.000807091768f,
        0.000194226057f, 4.67403661e-05f}},
      {"llama3",
       {{"rope_type", "llama3"},
        {"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", 1024}},
       1,
       1.0,
       {1.0f, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00308676064f, 0.000395284733f,
        0.000125000006f, 3.95284733e-05f}},
      {"yarn",
       {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 2048}},
       1,
       1.138629436111989,
       {1.0f, 0.316227764f, 0.100000001f, 0.025693506f, 0.00624999963f, 0.00138349656f,
        0.000250000012f, 7.90569466e-05f}},
      {"yarn with its options",
       {{"rope_type", "yarn"},
        {"factor", 8.0},
        {"original_max_position_embeddings", 1024},
        {"beta_fast", 16.0},
        {"beta_slow", 2.0},
        {"truncate", false},
        {"mscale", 1.0},
        {"mscale_all_dim", 0.5}},
       1,
       1.094179988101349,
       {1.0f, 0.316227764f, 0.100000001f, 0.0165483095f, 0.00124999997f, 0.000395284733f,
        0.000125000006f, 3.95284733e-05f}},
      {"longrope short",
       {{"rope_type", "longrope"},
        {"short_factor", {1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75}},
        {"long_factor", {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}},
        {"original_max_position_embeddings", 2048}},
       2048,
       1.087114613009218,
       {1.0f, 0.252982229f, 0.0666666701f, 0.0180701576f, 0.00499999989f, 0.0014054568f,
        0.00039999999f, 0.000114991912f}},
      {"longrope long",
       {{"rope_type", "longrope"},
        {"short_factor", {1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75}},
        {"long_factor", {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}},
        {"original_max_position_embeddings", 2048},
        {"factor", 2.0}},
       2049,
       1.044465935734187,
       {1.0f, 0.158113882f, 0.0333333351f, 0.00790569466f, 0.00200000009f, 0.00052704633f,
        0.000142857141f, 3.95284733e-05f}},
  };
  for (const Case& each : cases) {
    Json json = TinyConfig("llama");
    json["head_dim"] = 16;
    json["max_position_embeddings"] = 8192;
    json["rope_scaling"] = each.scaling;
    const RopeConfig rope = MustParseConfig(json).ropes[0];
    EXPECT_NEAR(rope.attention_scaling, each.attention_scaling, 1e-12) << each.what;
    const std::vector<float> frequencies = InverseFrequencies(rope, each.length);
    ASSERT_EQ(frequencies.size(), each.frequencies.size());
    for (size_t i = 0; i < frequencies.size(); ++i) {
      EXPECT_NEAR(frequencies[i], each.frequencies[i], 2.5e-7f * each.frequencies[i])
          << each.what << " " << i;
    }
  }
}

TEST(Windows, QwenUsesThemOnlyWhenAskedTo) {
  Json json = TinyConfig("qwen2");
  json["sliding_window"] = 32, json["max_window_layers"] = 1;
  EXPECT_EQ(MustParseConfig(json).layers[2].window, 0);
  json["use_sliding_window"] = true;
  EXPECT_EQ(MustParseConfig(json).layers[0].window, 0);
  EXPECT_EQ(MustParseConfig(json).layers[2].window, 32);
  json["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  EXPECT_THAT(Refusal(json), HasSubstr("max_window_layers: 1"));
  json.erase("max_window_layers");
  EXPECT_EQ(MustParseConfig(json).layers[0].window, 32);
  json["use_sliding_window"] = false;
  EXPECT_THAT(Refusal(json), HasSubstr("use_sliding_window is false"));
}

TEST(Export, CompletesTheOldSpellingWhereOnlyTheNewOneStands) {
  Json json = RopeLlama({{"rope_parameters",
                          {{"rope_theta", 500000.0},
                           {"rope_type", "llama3"},
                           {"factor", 32},
                           {"low_freq_factor", 1},
                           {"high_freq_factor", 4},
                           {"original_max_position_embeddings", 32}}}});
  const ModelConfig config = MustParseConfig(json);
  Json exported = ExportedConfig(json, config, "float32");
  EXPECT_EQ(exported["rope_theta"], 500000.0);
  exported.erase("rope_parameters");
  EXPECT_EQ(Meaning(MustParseConfig(exported)), Meaning(config));

  Json phi = LongRope("longrope");
  phi["rope_parameters"] = phi["rope_scaling"];
  phi["rope_parameters"]["original_max_position_embeddings"] = 4096;
  phi["rope_parameters"]["partial_rotary_factor"] = 1.0;
  phi.erase("rope_scaling");
  const ModelConfig phi_config = MustParseConfig(phi);
  exported = ExportedConfig(phi, phi_config, "float32");
  EXPECT_EQ(exported["rope_scaling"].size(), 3u)
      << "transformers 4 wants type, short_factor, long_factor and no more";
  exported.erase("rope_parameters");
  EXPECT_EQ(Meaning(MustParseConfig(exported)), Meaning(phi_config));
}

TEST(Export, ABareBodyBecomesAModelWithAHead) {
  Json json = TinyConfig("bert");
  json["architectures"] = {"BertModel"};
  EXPECT_EQ(ExportedConfig(json, MustParseConfig(json), "float32")["architectures"],
            Json::array({"BertForMaskedLM"}));
}

TEST(ParamSpecs, OneDimensionalTensorsNeverDecayAndMatricesAlwaysDo) {
  for (const ConfigFamily& family : Families()) {
    Json json = TinyConfig(family.model_type);
    if (family.model_type == "phi") json["qk_layernorm"] = true;
    for (const ParamSpec& spec : BuildParamSpecs(MustParseConfig(json))) {
      EXPECT_EQ(spec.decay, spec.parts[0].shape.size() >= 2) << spec.name;
      EXPECT_EQ(spec.decay,
                spec.init == InitKind::kNormal || spec.init == InitKind::kTruncatedNormal)
          << spec.name;
    }
  }
}

TEST(ParamSpecs, TheNextSentenceHeadComesAndGoesWithItsSwitch) {
  Json json = TinyConfig("bert");
  json["architectures"] = {"BertForPreTraining"};
  ModelConfig config = MustParseConfig(json);
  const int64_t with = TotalElements(BuildParamSpecs(config));
  config.next_sentence_head = false;
  EXPECT_EQ(with - TotalElements(BuildParamSpecs(config)), 64 * 64 + 64 + 2 * 64 + 2);
}

TEST(ParamSpecs, ModernBertStartsOutputsSmallerByDepth) {
  const ModelConfig config = MustParseConfig(TinyConfig("modernbert"));
  const auto specs = BuildParamSpecs(config);
  const ParamSpec& out = specs[FindParam(specs, 2, ParamRole::kMlpOutWeight)];
  EXPECT_EQ(out.init, InitKind::kTruncatedNormal);
  EXPECT_NEAR(out.init_std, 0.02 / std::sqrt(6.0), 1e-12);
  EXPECT_EQ(out.init_cutoff, 2.0);
  EXPECT_EQ(specs[FindParam(specs, 2, ParamRole::kMlpInWeight)].init_std, 0.02);
}

}  // namespace
}  // namespace tranche
