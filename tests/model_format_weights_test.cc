// Tensors of a model folder: old names, missing prefixes and parts, tied copies, types; on copies
// of the parity folders, whose right values are known.
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model_format_folders.h"

namespace tranche {
namespace {

using testing::HasSubstr;

TEST(Names, GammaAndBetaAreWeightAndBiasOfLayerNorms) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("bert_mlm");
  copy.Rename([](const std::string& name) {
    return absl::StrReplaceAll(
        name, {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}});
  });
  copy.Write();
  EXPECT_EQ(Load(copy.path()).values, Load(Parity("bert_mlm")).values);
  EXPECT_THAT(Load(copy.path()).warnings, HasSubstr("an export writes weight and bias"));
  copy.tensors.push_back(copy.At("bert.embeddings.LayerNorm.gamma"));
  copy.tensors.back().name = "bert.embeddings.LayerNorm.weight";
  copy.Write();
  EXPECT_THAT(Load(copy.path()).message(),
              testing::AllOf(HasSubstr("bert.embeddings.LayerNorm.gamma"),
                             HasSubstr("bert.embeddings.LayerNorm.weight")));
}

TEST(Names, ABodyWithoutItsPrefixLoadsInEveryFamily) {
  TRANCHE_NEEDS_PARITY();
  for (const auto& [model, prefix] :
       std::vector<std::pair<std::string, std::string>>{{"bert_mlm", "bert."},
                                                        {"roberta_mlm", "roberta."},
                                                        {"modernbert_mlm", "model."},
                                                        {"phi2_clm", "model."},
                                                        {"llama_clm", "model."}}) {
    const Copy original(model);
    Copy copy(model);
    copy.Rename([&](const std::string& name) {
      return absl::StartsWith(name, prefix) ? name.substr(prefix.size()) : name;
    });
    copy.Write();
    const Loaded loaded = Load(copy.path());
    ASSERT_TRUE(loaded.status.ok()) << loaded.status;
    EXPECT_EQ(loaded.values, Load(Parity(model)).values);
    EXPECT_THAT(loaded.warnings, HasSubstr(prefix));
    for (size_t i = 0; i < copy.tensors.size(); i += 2)
      copy.tensors[i].name = original.tensors[i].name;
    copy.Write();
    EXPECT_THAT(Load(copy.path()).message(), HasSubstr("by halves")) << model;
  }
}

TEST(Names, OldGammaWithoutPrefixLoadsToo) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("bert_mlm");
  copy.Rename([](const std::string& name) {
    return absl::StrReplaceAll(name, {{"LayerNorm.weight", "LayerNorm.gamma"},
                                      {"LayerNorm.bias", "LayerNorm.beta"},
                                      {"bert.", ""}});
  });
  copy.Write();
  EXPECT_EQ(Load(copy.path()).values, Load(Parity("bert_mlm")).values);
}

TEST(Names, AMissingHeadIsRefusedUnlessAFreshOneIsAskedFor) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("bert_mlm");
  copy.Remove([](const std::string& name) { return absl::StartsWith(name, "cls."); });
  copy.Write();
  const Loaded refused = Load(copy.path());
  for (const char* name : {"cls.predictions.bias", "cls.predictions.transform.dense.weight",
                           "cls.predictions.transform.LayerNorm.bias"}) {
    EXPECT_THAT(refused.message(), HasSubstr(name));
  }
  EXPECT_THAT(refused.message(), HasSubstr("fresh"));
  const Loaded fresh = Load(copy.path(), true);
  ASSERT_TRUE(fresh.status.ok()) << fresh.status;
  EXPECT_THAT(fresh.fresh, testing::ElementsAre("head.transform.weight", "head.transform.bias",
                                                "head.transform_norm.weight",
                                                "head.transform_norm.bias", "head.decoder.bias"));
  EXPECT_TRUE(Load(Parity("bert_mlm"), true).fresh.empty());
}

TEST(Names, AFreshHeadDoesNotCoverAMissingBody) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("llama_clm");
  copy.Remove([](const std::string& name) {
    return name == "model.layers.1.self_attn.k_proj.weight" || name == "model.norm.weight" ||
           name == "model.layers.0.mlp.up_proj.weight";
  });
  copy.Write();
  const Loaded loaded = Load(copy.path(), true);
  EXPECT_THAT(loaded.message(), testing::AllOf(HasSubstr("3 tensors are missing"),
                                               HasSubstr("model.layers.1.self_attn.k_proj.weight"),
                                               HasSubstr("model.norm.weight"),
                                               HasSubstr("model.layers.0.mlp.up_proj.weight")));
}

TEST(Names, AnExtraTensorIsNamedAsUnused) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("bert_mlm");
  copy.tensors.push_back({"adapter.gamma", "F32", {2}, std::string(8, '\0')});
  copy.tensors.push_back({"adapter.LayerNorm.beta", "F32", {2}, std::string(8, '\0')});
  copy.Write();
  const Loaded loaded = Load(copy.path());
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_THAT(loaded.warnings,
              testing::AllOf(HasSubstr("adapter.gamma"), HasSubstr("adapter.LayerNorm.beta"),
                             testing::Not(HasSubstr("weight and bias"))));
}

TEST(Names, RecomputedBuffersAreIgnoredInSilence) {
  TRANCHE_NEEDS_PARITY();
  Copy bert("bert_mlm");
  bert.tensors.push_back({"bert.embeddings.position_ids", "I64", {1, 64}, std::string(512, '\0')});
  bert.Write();
  EXPECT_EQ(Load(bert.path()).warnings, "");
  Copy llama("llama_clm");
  for (int layer = 0; layer < 2; ++layer) {
    llama.tensors.push_back({absl::StrCat("model.layers.", layer, ".self_attn.rotary_emb.inv_freq"),
                             "F32",
                             {8},
                             std::string(32, '\0')});
  }
  llama.Write();
  EXPECT_EQ(Load(llama.path()).warnings, "");
  EXPECT_EQ(Load(llama.path()).values, Load(Parity("llama_clm")).values);
}

TEST(Names, OldPhiFilesAreRefusedWithTheReason) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("phi2_clm");
  copy.Rename([](const std::string& name) {
    return absl::StrReplaceAll(
        name, {{"model.layers", "transformer.h"}, {"self_attn.q_proj", "mixer.Wqkv"}});
  });
  copy.Write();
  EXPECT_THAT(Load(copy.path()).message(), HasSubstr("old format"));
}

TEST(Tied, ADuplicateDecoderMustHoldTheSameValues) {
  TRANCHE_NEEDS_PARITY();
  for (const auto& [model, kept, twin] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"bert_mlm", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"},
           {"bert_mlm", "cls.predictions.bias", "cls.predictions.decoder.bias"},
           {"roberta_mlm", "lm_head.bias", "lm_head.decoder.bias"},
           {"modernbert_mlm", "model.embeddings.tok_embeddings.weight", "decoder.weight"},
           {"qwen2_clm", "model.embed_tokens.weight", "lm_head.weight"}}) {
    Copy copy(model);
    RawTensor duplicate = copy.At(kept);
    duplicate.name = twin;
    copy.tensors.push_back(duplicate);
    copy.Write();
    const Loaded loaded = Load(copy.path());
    ASSERT_TRUE(loaded.status.ok()) << loaded.status;
    EXPECT_EQ(loaded.warnings, "");
    copy.tensors.back().bytes[5] ^= 1;
    copy.Write();
    EXPECT_THAT(Load(copy.path()).message(), testing::AllOf(HasSubstr(kept), HasSubstr(twin)));
    // Only the twin: it is the same tensor.
    copy.tensors.back().bytes[5] ^= 1;
    copy.Remove([&, kept = kept](const std::string& name) { return name == kept; });
    copy.Write();
    EXPECT_EQ(Load(copy.path()).values, Load(Parity(model)).values) << model;
  }
}

TEST(Tied, AnUntiedModelNeedsItsDecoder) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("llama_clm");
  copy.Remove([](const std::string& name) { return name == "lm_head.weight"; });
  copy.Write();
  EXPECT_THAT(Load(copy.path()).message(), HasSubstr("lm_head.weight"));
}

TEST(Types, EachTensorIsReadByItsOwn) {
  TRANCHE_NEEDS_PARITY();
  for (const char* declared : {"float16", "auto", ""}) {
    Copy copy("phi3_clm");
    copy.config.erase("dtype");
    if (*declared != 0) copy.config["torch_dtype"] = declared;
    const char* const types[] = {"F16", "BF16", "F32", "F64"};
    std::vector<RawTensor> narrowed = copy.tensors;
    for (size_t i = 0; i < copy.tensors.size(); ++i) {
      RawTensor& tensor = copy.tensors[i];
      TensorType type = TensorType::kBool;
      while (std::string(types[i % 4]) != Name(type))
        type = static_cast<TensorType>(static_cast<int>(type) + 1);
      const int64_t count = static_cast<int64_t>(tensor.bytes.size() / 4);
      std::string bytes(count * BitsOf(type) / 8, '\0');
      ConvertElements(tensor.bytes.data(), TensorType::kF32, bytes.data(), type, count);
      tensor.bytes = bytes, tensor.dtype = types[i % 4];
      narrowed[i].bytes.resize(count * 4);
      ConvertElements(bytes.data(), type, narrowed[i].bytes.data(), TensorType::kF32, count);
    }
    copy.Write();
    const Loaded loaded = Load(copy.path());
    ASSERT_TRUE(loaded.status.ok()) << loaded.status;
    copy.tensors = narrowed;
    copy.Write();
    EXPECT_EQ(loaded.values, Load(copy.path()).values);
  }
}

TEST(Types, WholeNumbersAndWrongShapesAreRefusedTogether) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("phi3_clm");
  copy.At("model.norm.weight").dtype = "I32";
  copy.At("lm_head.weight").shape = {96, 512};
  copy.At("model.layers.0.input_layernorm.weight").shape = {1, 96};
  copy.Write();
  EXPECT_THAT(Load(copy.path()).message(),
              testing::AllOf(
                  HasSubstr("model.norm.weight has type I32"),
                  HasSubstr("lm_head.weight has shape [96, 512], config.json makes it [512, 96]"),
                  HasSubstr("model.layers.0.input_layernorm.weight has shape [1, 96]")));
}

TEST(Optional, PoolerAndNextSentenceHeadAreCarriedWhenOnlyMasksAreTrained) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("bert_mlm");
  copy.tensors.push_back(
      {"bert.pooler.dense.weight", "F32", {64, 64}, std::string(64 * 64 * 4, '\x02')});
  copy.tensors.push_back({"bert.pooler.dense.bias", "F32", {64}, std::string(64 * 4, '\x02')});
  copy.tensors.push_back(
      {"cls.seq_relationship.weight", "F32", {2, 64}, std::string(2 * 64 * 4, '\x02')});
  copy.tensors.push_back({"cls.seq_relationship.bias", "F32", {2}, std::string(8, '\x02')});
  copy.Write();
  Loaded loaded = Load(copy.path());
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_EQ(loaded.warnings, "");
  EXPECT_THAT(loaded.carried,
              testing::ElementsAre("bert.pooler.dense.bias", "bert.pooler.dense.weight",
                                   "cls.seq_relationship.bias", "cls.seq_relationship.weight"));
  copy.config["architectures"] = {"BertForPreTraining"};
  copy.Write();
  EXPECT_TRUE(Load(copy.path()).carried.empty());
  EXPECT_EQ(Load(copy.path(), false, true).carried, loaded.carried);
}

}  // namespace
}  // namespace tranche
