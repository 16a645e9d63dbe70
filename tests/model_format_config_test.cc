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
#include "model_format_configs.h"

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
           {"{\n\"a\": 1,\n\"b\": {\n\"a\": 2,\n\"a\": 3}}",
            "config.json:5:1: key \"a\" stands twice"},
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
