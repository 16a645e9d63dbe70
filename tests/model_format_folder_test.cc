// Model folders: the kinds of damage of pitfalls.md, each tried on copies of the parity folders,
// whose right values are known.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/hf_weights.h"
#include "model_format_fixtures.h"

namespace tranche {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string Parity(absl::string_view model) {
  return SharedPath(absl::StrCat("fixtures/parity/", model));
}

// A copy of one parity folder that tests may damage.
class Copy {
 public:
  explicit Copy(absl::string_view model) {
    config = MustParse(MustRead(JoinPath(Parity(model), "config.json")));
    tensors = RawTensorsOf(MustRead(JoinPath(Parity(model), "model.safetensors")));
  }
  Json config;
  std::vector<RawTensor> tensors;

  RawTensor& At(const std::string& name) {
    for (RawTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    TRANCHE_CHECK(false) << name;
    std::abort();
  }
  void Rename(const std::function<std::string(const std::string&)>& rename) {
    for (RawTensor& tensor : tensors) tensor.name = rename(tensor.name);
  }
  void Remove(const std::function<bool(const std::string&)>& which) {
    tensors.erase(std::remove_if(tensors.begin(), tensors.end(),
                                 [&](const RawTensor& tensor) { return which(tensor.name); }),
                  tensors.end());
  }
  const std::string& path() const { return folder_.path(); }
  const TestFolder& folder() const { return folder_; }
  void Write() const {
    folder_.Write("config.json", config.dump());
    folder_.Write("model.safetensors", SafetensorsOf(tensors));
  }
  // Two shards and their index; returns the index for damage.
  Json WriteShards() const {
    folder_.Write("config.json", config.dump());
    const size_t half = tensors.size() / 2;
    folder_.Write("model-00001-of-00002.safetensors",
                  SafetensorsOf({tensors.begin(), tensors.begin() + half}));
    folder_.Write("model-00002-of-00002.safetensors",
                  SafetensorsOf({tensors.begin() + half, tensors.end()}));
    Json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", Json::object()}};
    for (size_t i = 0; i < tensors.size(); ++i) {
      index["weight_map"][tensors[i].name] =
          i < half ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
    }
    WriteIndex(index);
    return index;
  }
  void WriteIndex(const Json& index) const {
    folder_.Write("model.safetensors.index.json", index.dump());
  }

 private:
  TestFolder folder_;
};

struct Loaded {
  absl::Status status;
  std::string warnings;
  std::vector<ParamSpec> specs;
  std::vector<std::vector<float>> values;
  std::vector<std::string> carried;
  std::vector<std::string> fresh;
  std::string message() const { return std::string(status.message()); }
};

Loaded Load(const std::string& path, bool fresh_head = false, bool masked_only = false) {
  Loaded loaded;
  std::vector<std::string> warnings;
  const auto folder = HfFolder::Open(path, &warnings);
  loaded.status = folder.status();
  if (!folder.ok()) return loaded;
  ModelConfig config = folder->config();
  if (masked_only) config.next_sentence_head = false;
  loaded.specs = BuildParamSpecs(config);
  const auto weights =
      HfWeights::Match(*folder, config, loaded.specs, {.fresh_head = fresh_head}, &warnings);
  loaded.warnings = absl::StrJoin(warnings, "\n");
  loaded.status = weights.status();
  if (!weights.ok()) return loaded;
  for (const int spec : weights->fresh()) loaded.fresh.push_back(loaded.specs[spec].name);
  for (size_t i = 0; i < loaded.specs.size(); ++i) {
    loaded.values.emplace_back(loaded.specs[i].elements());
    const bool fresh = std::find(weights->fresh().begin(), weights->fresh().end(),
                                 static_cast<int>(i)) != weights->fresh().end();
    if (!fresh) {
      weights->CopyElements(static_cast<int>(i), 0, loaded.specs[i].elements(), TensorType::kF32,
                            loaded.values.back().data());
    }
  }
  for (const StoredTensor& tensor : weights->carried()) loaded.carried.push_back(tensor.name);
  return loaded;
}

#define TRANCHE_NEEDS_PARITY() TRANCHE_SKIP_WITHOUT(Parity("bert_mlm"))

TEST(Folder, EveryParityModelLoadsWithEveryElementInItsPlace) {
  TRANCHE_NEEDS_PARITY();
  const auto models = ListDir(SharedPath("fixtures/parity"));
  ASSERT_TRUE(models.ok());
  int loaded_models = 0;
  for (const std::string& model : *models) {
    if (!IsDirectory(Parity(model))) continue;
    const Loaded loaded = Load(Parity(model));
    ASSERT_TRUE(loaded.status.ok()) << loaded.status;
    EXPECT_EQ(loaded.warnings, "") << model;
    std::map<std::string, std::string> raw;
    for (RawTensor& tensor : RawTensorsOf(MustRead(JoinPath(Parity(model), "model.safetensors"))))
      raw[tensor.name] = tensor.bytes;
    for (size_t i = 0; i < loaded.specs.size(); ++i) {
      std::string stacked;
      for (const HfPart& part : loaded.specs[i].parts) {
        ASSERT_EQ(raw.count(part.name), 1u) << part.name;
        stacked += raw[part.name];
        raw.erase(part.name);
      }
      ASSERT_EQ(stacked.size(), loaded.values[i].size() * 4);
      EXPECT_EQ(std::memcmp(stacked.data(), loaded.values[i].data(), stacked.size()), 0)
          << loaded.specs[i].name;
    }
    EXPECT_TRUE(raw.empty()) << model << " " << raw.begin()->first;
    ++loaded_models;
  }
  EXPECT_GE(loaded_models, 10);
}

TEST(Folder, AnyRangeOfElementsEqualsThatPartOfTheWhole) {
  TRANCHE_NEEDS_PARITY();
  const auto folder = HfFolder::Open(Parity("qwen2_clm"), nullptr);
  ASSERT_TRUE(folder.ok());
  const auto specs = BuildParamSpecs(folder->config());
  const auto weights = HfWeights::Match(*folder, folder->config(), specs, {}, nullptr);
  ASSERT_TRUE(weights.ok());
  for (const ParamRole role :
       {ParamRole::kQkvWeight, ParamRole::kQkvBias, ParamRole::kMlpInWeight}) {
    const int spec = FindParam(specs, 2, role);
    std::vector<float> whole(specs[spec].elements());
    weights->CopyElements(spec, 0, specs[spec].elements(), TensorType::kF32, whole.data());
    for (int64_t first = 0; first < specs[spec].elements(); first += 37) {
      const int64_t count = std::min<int64_t>(specs[spec].elements() - first, 5000);
      std::vector<float> part(count);
      weights->CopyElements(spec, first, count, TensorType::kF32, part.data());
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first))
          << specs[spec].name << " " << first;
    }
  }
}

// Weight files and their index.

TEST(Shards, EqualTheSingleFile) {
  TRANCHE_NEEDS_PARITY();
  const Copy copy("llama_clm");
  Json index = copy.WriteShards();
  EXPECT_EQ(Load(copy.path()).values, Load(Parity("llama_clm")).values);
  index.erase("metadata");
  copy.WriteIndex(index);
  EXPECT_EQ(Load(copy.path()).values, Load(Parity("llama_clm")).values);
}

TEST(Shards, MissingFilesAndTensorsAreNamedAllAtOnce) {
  TRANCHE_NEEDS_PARITY();
  const Copy copy("llama_clm");
  Json index = copy.WriteShards();
  index["weight_map"]["one.more"] = "model-00003-of-00003.safetensors";
  copy.WriteIndex(index);
  ASSERT_TRUE(
      FileSystem::Real().RemoveAll(copy.folder().File("model-00002-of-00002.safetensors")).ok());
  EXPECT_THAT(Load(copy.path()).message(),
              testing::AllOf(HasSubstr("model-00002-of-00002.safetensors"),
                             HasSubstr("model-00003-of-00003.safetensors")));
  index = copy.WriteShards();
  index["weight_map"]["ghost.a"] = "model-00001-of-00002.safetensors";
  index["weight_map"]["ghost.b"] = "model-00002-of-00002.safetensors";
  copy.WriteIndex(index);
  EXPECT_THAT(Load(copy.path()).message(),
              testing::AllOf(HasSubstr("ghost.a"), HasSubstr("ghost.b")));
}

TEST(Shards, StrayFilesAreNamedAndPassedOver) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("llama_clm");
  copy.WriteShards();
  std::vector<RawTensor> other = copy.tensors;
  for (RawTensor& tensor : other) tensor.bytes.assign(tensor.bytes.size(), '\x01');
  copy.folder().Write("model.safetensors", SafetensorsOf(other));
  copy.folder().Write("model-00003-of-00003.safetensors", SafetensorsOf(other));
  const Loaded loaded = Load(copy.path());
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_EQ(loaded.values, Load(Parity("llama_clm")).values);
  EXPECT_THAT(loaded.warnings, testing::AllOf(HasSubstr("/model.safetensors"),
                                              HasSubstr("model-00003-of-00003.safetensors")));
}

TEST(Shards, ATensorInTwoFilesIsRefused) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("llama_clm");
  copy.WriteShards();
  const size_t half = copy.tensors.size() / 2;
  std::vector<RawTensor> second(copy.tensors.begin() + half, copy.tensors.end());
  second.push_back(copy.tensors[0]);
  second.back().bytes.assign(second.back().bytes.size(), '\x01');
  copy.folder().Write("model-00002-of-00002.safetensors", SafetensorsOf(second));
  EXPECT_THAT(Load(copy.path()).message(), HasSubstr(copy.tensors[0].name));
}

TEST(Shards, WithoutIndexAreRefused) {
  TRANCHE_NEEDS_PARITY();
  const Copy copy("llama_clm");
  copy.WriteShards();
  ASSERT_TRUE(
      FileSystem::Real().RemoveAll(copy.folder().File("model.safetensors.index.json")).ok());
  EXPECT_THAT(Load(copy.path()).message(), HasSubstr("no model.safetensors.index.json"));
}

TEST(Shards, PathsOutOfTheFolderAndOddMapsAreRefused) {
  TRANCHE_NEEDS_PARITY();
  const Copy copy("llama_clm");
  Json index = copy.WriteShards();
  for (const Json& value :
       {Json("../x.safetensors"), Json("/etc/passwd"), Json("a/b.safetensors"), Json(".."),
        Json(""), Json(3), Json(nullptr), Json("a\\b.safetensors")}) {
    Json bad = index;
    bad["weight_map"]["model.norm.weight"] = value;
    copy.WriteIndex(bad);
    EXPECT_THAT(Load(copy.path()).message(), HasSubstr("model.norm.weight")) << value.dump();
  }
  for (const char* text :
       {"[]", "{}", "{\"weight_map\": 3}", "{\"weight_map\": {}, \"weight_map\": {}}",
        "version https://git-lfs.github.com/spec/v1\n"}) {
    copy.folder().Write("model.safetensors.index.json", text);
    EXPECT_THAT(Load(copy.path()).message(), HasSubstr("model.safetensors.index.json")) << text;
  }
}

TEST(Folder, SaysWhatIsMissing) {
  const TestFolder folder;
  EXPECT_THAT(Load(folder.File("nowhere")).message(), HasSubstr("no such model folder"));
  EXPECT_THAT(Load(folder.path()).message(), HasSubstr("no config.json"));
  folder.Write("config.json", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_THAT(Load(folder.path()).message(), HasSubstr("Git LFS pointer"));
  folder.Write("config.json", R"({"model_type":"llama"})");
  EXPECT_THAT(Load(folder.path()).message(), HasSubstr("no weights"));
  folder.Write("pytorch_model.bin", "PK");
  EXPECT_THAT(Load(folder.path()).message(), HasSubstr("pytorch_model.bin is a PyTorch file"));
  EXPECT_THAT(Load(folder.File("config.json")).message(), HasSubstr("is a file"));
}

// Old names, missing prefix, missing parts.

TEST(Names, GammaAndBetaAreWeightAndBiasOfLayerNorms) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("bert_mlm");
  copy.Rename([](const std::string& name) {
    return absl::StrReplaceAll(
        name, {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}});
  });
  copy.Write();
  EXPECT_EQ(Load(copy.path()).values, Load(Parity("bert_mlm")).values);
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
  copy.Write();
  const Loaded loaded = Load(copy.path());
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_THAT(loaded.warnings, HasSubstr("adapter.gamma"));
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
