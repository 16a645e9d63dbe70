// Model folders: weight files and their index, whole and damaged, on copies of the parity folders,
// whose right values are known.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model_format_folders.h"

namespace tranche {
namespace {

using testing::HasSubstr;

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
  EXPECT_THAT(Load(copy.path()).message(), HasSubstr(copy.tensors.back().name))
      << "the tensors behind a missing file are named too";
  index["weight_map"]["ghost.c"] = "model-00001-of-00002.safetensors";
  copy.WriteIndex(index);
  EXPECT_THAT(Load(copy.path()).message(),
              testing::AllOf(HasSubstr("ghost.c"), HasSubstr("model-00002-of-00002.safetensors")))
      << "files and tensors at once";
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

TEST(Shards, AStrayFileOfAnyNameIsNamedWhereItHoldsTheModelsTensors) {
  TRANCHE_NEEDS_PARITY();
  Copy copy("llama_clm");
  copy.WriteShards();
  copy.folder().Write("consolidated.safetensors", SafetensorsOf({copy.tensors[0]}));
  copy.folder().Write("broken.safetensors", "x");
  copy.folder().Write("batch.safetensors", SafetensorsOf({{"ids", "U8", {1}, "1"}}));
  const Loaded loaded = Load(copy.path());
  ASSERT_TRUE(loaded.status.ok()) << loaded.status;
  EXPECT_THAT(loaded.warnings, testing::AllOf(HasSubstr("/consolidated.safetensors"),
                                              HasSubstr("/broken.safetensors"),
                                              testing::Not(HasSubstr("/batch.safetensors"))));
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
  EXPECT_THAT(Load(copy.path()).message(),
              testing::AllOf(HasSubstr("nor model.safetensors.index.json"),
                             HasSubstr("it has model-00001-of-00002.safetensors, "
                                       "model-00002-of-00002.safetensors")));
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
  EXPECT_FALSE(HfFolder::HoldsWeights(folder.path()));
  folder.Write("weights.safetensors", "x");
  EXPECT_THAT(Load(folder.path()).message(), HasSubstr("weights.safetensors"));
  EXPECT_TRUE(HfFolder::HoldsWeights(folder.path()));
  ASSERT_TRUE(FileSystem::Real().RemoveAll(folder.File("weights.safetensors")).ok());
  folder.Write("pytorch_model.bin", "PK");
  EXPECT_TRUE(HfFolder::HoldsWeights(folder.path()));
  EXPECT_THAT(Load(folder.path()).message(), HasSubstr("pytorch_model.bin is a PyTorch file"));
  EXPECT_THAT(Load(folder.File("config.json")).message(), HasSubstr("is a file"));
}

}  // namespace
}  // namespace tranche
