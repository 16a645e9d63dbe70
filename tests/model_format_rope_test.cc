// The rotary settings of config.json: spellings of transformers 4 and 5, what contradicts, and the
// frequencies that follow.
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model_format_configs.h"

namespace tranche {
namespace {

using testing::HasSubstr;

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

TEST(Rope, OneFaultIsSaidOnce) {
  for (const Json& scaling :
       {Json{{"type", "wobbly"}, {"factor", 2}}, Json{{"type", 3}, {"factor", 2}},
        Json{{"type", nullptr}, {"factor", 2}},
        Json{{"type", "linear"}, {"rope_type", "default"}, {"factor", 2}}}) {
    const std::string refusal = Refusal(RopeLlama({{"rope_scaling", scaling}}));
    EXPECT_NE(refusal, "");
    EXPECT_EQ(refusal.find('\n'), std::string::npos) << refusal;
  }
  const std::string odd = Refusal(RopeLlama({{"head_dim", 15}}));
  EXPECT_THAT(odd, HasSubstr("floor(head_dim 15 * 1) = 15 must be even"));
  EXPECT_EQ(odd.find('\n'), std::string::npos) << odd;
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

TEST(Export, LeavesOutNullsThatTransformersDoesNotTake) {
  Json json = RopeLlama({{"rope_theta", nullptr}});
  EXPECT_FALSE(ExportedConfig(json, MustParseConfig(json), "float32").contains("rope_theta"));
  json = TinyConfig("phi");
  json["partial_rotary_factor"] = nullptr;
  EXPECT_FALSE(
      ExportedConfig(json, MustParseConfig(json), "float32").contains("partial_rotary_factor"));
  json = TinyConfig("modernbert");
  json["local_rope_theta"] = json["global_rope_theta"] = nullptr;
  const Json exported = ExportedConfig(json, MustParseConfig(json), "float32");
  EXPECT_FALSE(exported.contains("local_rope_theta") || exported.contains("global_rope_theta"));
  EXPECT_EQ(Meaning(MustParseConfig(exported)), Meaning(MustParseConfig(json)));
}

TEST(Export, NamesPhiThreesScalingAsBothGenerationsDo) {
  Json json = LongRope("longrope");
  Json& scaling = json["rope_scaling"];
  scaling = {{"rope_type", "longrope"},
             {"short_factor", scaling["short_factor"]},
             {"long_factor", scaling["long_factor"]},
             {"factor", nullptr}};
  const ModelConfig config = MustParseConfig(json);
  const Json exported = ExportedConfig(json, config, "float32");
  EXPECT_EQ(exported["rope_scaling"]["type"], "longrope");
  EXPECT_EQ(exported["rope_scaling"].size(), 3u);
  EXPECT_EQ(Meaning(MustParseConfig(exported)), Meaning(config));
}

}  // namespace
}  // namespace tranche
