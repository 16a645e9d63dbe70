// Model folders as a user meets them: `inspect`, `plan` and `train` refuse the same, before
// anything is written; what is drawn anew, renamed or left out is said; weight decay touches
// matrices alone.
#include <sys/wait.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model_format_folders.h"

namespace tranche {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string output;
};

Outcome Tranche(const std::string& arguments) {
  std::FILE* pipe = ::popen(absl::StrCat(TRANCHE_BINARY, " ", arguments, " 2>&1").c_str(), "r");
  Outcome outcome;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    outcome.output.append(buffer, n);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

// A folder with token data, a tokenizer with masks, and recipes that go on from a model folder.
class FolderVerbsTest : public testing::Test {
 protected:
  void SetUp() override {
    TRANCHE_SKIP_WITHOUT(Parity("bert_mlm"));
    std::string ids;
    for (uint32_t i = 0, state = 1; i < 2000; ++i) {
      state = state * 1664525u + 1013904223u;
      const uint32_t id = 10 + (state >> 16) % 400;
      ids += static_cast<char>(id & 255), ids += static_cast<char>(id >> 8);
    }
    work_.Write("tokens.bin", ids);
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (int i = 5; i < 512; ++i) absl::StrAppend(&vocabulary, "w", i, "\n");
    ASSERT_TRUE(FileSystem::Real().MakeDirs(work_.File("tokenizer")).ok());
    work_.Write("tokenizer/vocab.txt", vocabulary);
  }

  std::string Recipe(const Copy& copy, const std::string& run, const std::string& model,
                     double weight_decay = 0.1) const {
    const bool masked =
        absl::StrContains(copy.config["architectures"][0].get<std::string>(), "ForMaskedLM") ||
        copy.config["model_type"] == "bert";
    const std::string name = absl::StrCat(run, ".toml");
    work_.Write(
        name, absl::StrCat("[run]\noutput_dir = \"", run, "\"\n[model]\npath = \"", copy.path(),
                           "\"\n", model, "\n", masked ? "[tokenizer]\npath = \"tokenizer\"\n" : "",
                           "[data]\nformat = \"tokens\"\ntoken_dtype = \"uint16\"\n"
                           "sequence_length = 32\nsources = [{path = \"tokens.bin\"}]\n",
                           masked ? "objective = \"mlm\"\n" : "",
                           "[training]\nmax_steps = 1\nglobal_batch_size = 2\n"
                           "[optimizer]\nlr = 1e-3\nweight_decay = ",
                           weight_decay, "\n"));
    return work_.File(name);
  }

  // The same refusal of all three verbs, and nothing written.
  void ExpectRefused(const Copy& copy, const std::string& what, const std::string& model = "") {
    const std::string recipe = Recipe(copy, "refused", model);
    for (const std::string& command :
         {absl::StrCat("inspect ", copy.path()), absl::StrCat("plan ", recipe),
          absl::StrCat("plan ", copy.path()), absl::StrCat("train ", recipe),
          absl::StrCat("train --dry-run ", recipe),
          absl::StrCat("export ", copy.path(), " ", work_.File("exported"))}) {
      const Outcome outcome = Tranche(command);
      EXPECT_EQ(outcome.code, 2) << command << "\n" << outcome.output;
      EXPECT_THAT(outcome.output, AllOf(HasSubstr(copy.path()), HasSubstr(what))) << command;
    }
    EXPECT_FALSE(FileExists(work_.File("refused")));
    EXPECT_FALSE(FileExists(work_.File("exported")));
  }

  Outcome Train(const Copy& copy, const std::string& run, const std::string& model = "",
                double weight_decay = 0.1) {
    const Outcome outcome = Tranche(absl::StrCat("train ", Recipe(copy, run, model, weight_decay)));
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome;
  }
  std::map<std::string, RawTensor> Exported(const std::string& run) const {
    std::map<std::string, RawTensor> tensors;
    for (RawTensor& tensor :
         RawTensorsOf(MustRead(work_.File(absl::StrCat(run, "/export/model.safetensors"))))) {
      tensors[tensor.name] = tensor;
    }
    return tensors;
  }

  const TestFolder work_;
};

TEST_F(FolderVerbsTest, WhatIsDamagedIsRefusedByEveryVerbBeforeAnythingIsWritten) {
  Copy copy("llama_clm");
  const std::string weights = copy.folder().File("model.safetensors");
  copy.Write();
  for (const std::string& bytes :
       {std::string("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        std::string("<!DOCTYPE html>"), std::string(), std::string(100, '\0'),
        MustRead(weights).substr(0, 200000)}) {
    copy.folder().Write("model.safetensors", bytes);
    ExpectRefused(copy, "model.safetensors");
  }
  ASSERT_TRUE(FileSystem::Real().RemoveAll(weights).ok());
  Json index = copy.WriteShards();
  index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors";
  copy.WriteIndex(index);
  ExpectRefused(copy, "ghost");
  index["weight_map"]["ghost"] = "../model.safetensors";
  copy.WriteIndex(index);
  ExpectRefused(copy, "not the name of a file in this folder");
  ASSERT_TRUE(
      FileSystem::Real().RemoveAll(copy.folder().File("model.safetensors.index.json")).ok());
  ExpectRefused(copy, "download the index");
}

TEST_F(FolderVerbsTest, TensorsThatDoNotFitTheConfigurationAreRefusedByEveryVerb) {
  Copy copy("llama_clm");
  copy.config["vocab_size"] = 600;
  copy.Write();
  ExpectRefused(copy, "has shape [512, 64], config.json makes it [600, 64]");
  Copy half("phi2_clm");
  for (size_t i = 0; i < half.tensors.size(); i += 2) {
    half.tensors[i].name = absl::StrReplaceAll(half.tensors[i].name, {{"model.", ""}});
  }
  half.Write();
  ExpectRefused(half, "by halves");
}

TEST_F(FolderVerbsTest, AMissingHeadIsDrawnWhereAskedForAndNamedByItsTensors) {
  Copy copy("bert_mlm");
  copy.Remove([](const std::string& name) { return absl::StartsWith(name, "cls."); });
  copy.Write();
  const Outcome refused = Tranche(absl::StrCat("train ", Recipe(copy, "refused", "")));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output,
              AllOf(HasSubstr("cls.predictions.bias"), HasSubstr("fresh_head = true")));
  EXPECT_FALSE(FileExists(work_.File("refused")));
  EXPECT_THAT(Train(copy, "fresh", "fresh_head = true").output,
              HasSubstr("initialised anew: cls.predictions.transform.dense.weight, "
                        "cls.predictions.transform.dense.bias, "
                        "cls.predictions.transform.LayerNorm.weight, "
                        "cls.predictions.transform.LayerNorm.bias, cls.predictions.bias"));
  const Copy whole("bert_mlm");
  whole.Write();
  EXPECT_THAT(Train(whole, "whole", "fresh_head = true").output,
              HasSubstr("model.fresh_head has no effect"));
}

TEST_F(FolderVerbsTest, AnExportSaysWhichNamesItWrites) {
  Copy copy("bert_mlm");
  copy.Rename([](const std::string& name) {
    return absl::StrReplaceAll(
        name, {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}});
  });
  copy.Write();
  EXPECT_THAT(Train(copy, "gamma").output,
              AllOf(HasSubstr("named gamma and beta"),
                    HasSubstr("named as transformers names them: "
                              "bert.embeddings.word_embeddings.weight")));
  EXPECT_EQ(Exported("gamma").count("bert.embeddings.LayerNorm.weight"), 1u);
}

TEST_F(FolderVerbsTest, WeightDecayChangesEveryMatrixAndNoVector) {
  const auto models = ListDir(SharedPath("fixtures/parity"));
  ASSERT_TRUE(models.ok());
  int compared = 0;
  for (const std::string& model : *models) {
    if (!IsDirectory(Parity(model)) || model == "phi2_packed") continue;
    Copy copy(model);
    copy.Write();
    Train(copy, model + "-0", "", 0);
    Train(copy, model + "-5", "", 0.5);
    const auto without = Exported(model + "-0"), with = Exported(model + "-5");
    ASSERT_EQ(without.size(), with.size());
    for (const auto& [name, tensor] : without) {
      EXPECT_EQ(tensor.bytes == with.at(name).bytes, tensor.shape.size() == 1)
          << model << " " << name;
    }
    ++compared;
  }
  EXPECT_GE(compared, 9);
}

}  // namespace
}  // namespace tranche
