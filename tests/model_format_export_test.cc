// Exports: what was loaded comes out byte for byte, whole or in shards; nothing is overwritten
// unasked and nothing half written stays.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/hf_export.h"
#include "model/hf_weights.h"
#include "model_format_fixtures.h"

namespace tranche {
namespace {

using testing::HasSubstr;

// Loads `from` and writes it again without a step between.
absl::Status Reexport(const std::string& from, const ExportOptions& options,
                      FileSystem& fs = FileSystem::Real()) {
  const auto folder = HfFolder::Open(from, nullptr);
  if (!folder.ok()) return folder.status();
  const auto specs = BuildParamSpecs(folder->config());
  const auto weights = HfWeights::Match(*folder, folder->config(), specs, {}, nullptr);
  if (!weights.ok()) return weights.status();
  const auto read = [&](int spec, int64_t first, int64_t count, float* out) {
    weights->CopyElements(spec, first, count, TensorType::kF32, out);
    return absl::OkStatus();
  };
  return ExportFolder(fs, options, folder->config_json(), folder->config(), specs, read,
                      weights->carried());
}

std::vector<std::string> ParityModels() {
  std::vector<std::string> models;
  const auto names = ListDir(SharedPath("fixtures/parity"));
  if (!names.ok()) return models;
  for (const std::string& name : *names) {
    const std::string path = SharedPath(absl::StrCat("fixtures/parity/", name));
    if (IsDirectory(path)) models.push_back(path);
  }
  models.push_back(SharedPath("fixtures/stories260K/hf"));
  return models;
}

std::vector<std::string> SortedTensors(const std::string& folder) {
  const auto opened = HfFolder::Open(folder, nullptr);
  TRANCHE_CHECK(opened.ok()) << opened.status().ToString();
  std::vector<std::string> tensors;
  for (const StoredTensor& tensor : opened->tensors()) {
    tensors.push_back(absl::StrCat(tensor.name, " ", Name(tensor.type), " ", tensor.bytes));
  }
  return tensors;
}

TEST(Export, AfterZeroStepsTheWeightsAreTheSameFile) {
  const std::vector<std::string> models = ParityModels();
  if (models.size() < 2) GTEST_SKIP() << "no parity fixtures; set TRANCHE_SHARED";
  const TestFolder folder;
  for (const std::string& model : models) {
    const std::string out = folder.File(BaseName(model));
    const absl::Status status =
        Reexport(model, {.directory = out, .model_folder = model, .tokenizer_folder = model});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(MustRead(JoinPath(out, "model.safetensors")) ==
                MustRead(JoinPath(model, "model.safetensors")))
        << model;
    for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
      ASSERT_EQ(FileExists(JoinPath(out, name)), FileExists(JoinPath(model, name))) << name;
      if (!FileExists(JoinPath(model, name))) continue;
      EXPECT_EQ(MustRead(JoinPath(out, name)), MustRead(JoinPath(model, name)));
    }
    const Json before = MustParse(MustRead(JoinPath(model, "config.json")));
    const Json after = MustParse(MustRead(JoinPath(out, "config.json")));
    for (const auto& [key, value] : before.items())
      EXPECT_EQ(after[key].dump(), value.dump()) << key;
  }
}

TEST(Export, ShardsHoldTheSameTensorsAndNoShardExceedsTheLimit) {
  const std::vector<std::string> models = ParityModels();
  if (models.size() < 2) GTEST_SKIP() << "no parity fixtures; set TRANCHE_SHARED";
  const TestFolder folder;
  for (const std::string& model : models) {
    const std::string out = folder.File("shards"), again = folder.File("again");
    constexpr int64_t kLimit = 100'000;
    ASSERT_TRUE(
        Reexport(model, {.directory = out, .overwrite = true, .max_shard_bytes = kLimit}).ok());
    EXPECT_EQ(SortedTensors(out), SortedTensors(model));
    const Json index = MustParse(MustRead(JoinPath(out, "model.safetensors.index.json")));
    int64_t total = 0;
    const auto files = ListDir(out);
    ASSERT_TRUE(files.ok());
    for (const std::string& name : *files) {
      if (!absl::EndsWith(name, ".safetensors")) continue;
      int64_t bytes = 0;
      const std::vector<RawTensor> tensors = RawTensorsOf(MustRead(JoinPath(out, name)));
      for (const RawTensor& tensor : tensors) {
        bytes += static_cast<int64_t>(tensor.bytes.size());
        EXPECT_EQ(index["weight_map"][tensor.name], name);
      }
      EXPECT_TRUE(bytes <= kLimit || tensors.size() == 1) << name << " " << bytes;
      total += bytes;
    }
    EXPECT_EQ(index["metadata"]["total_size"], total);
    EXPECT_EQ(index["metadata"]["total_parameters"], total / 4);
    ASSERT_TRUE(Reexport(out, {.directory = again, .overwrite = true}).ok());
    EXPECT_TRUE(MustRead(JoinPath(again, "model.safetensors")) ==
                MustRead(JoinPath(model, "model.safetensors")));
    EXPECT_FALSE(FileExists(JoinPath(again, "model.safetensors.index.json")));
  }
}

TEST(Export, HalfTypesRoundTripByteForByteAndConfigSaysTheType) {
  const std::string model = SharedPath("fixtures/parity/phi3_clm");
  TRANCHE_SKIP_WITHOUT(model);
  const TestFolder folder;
  for (const TensorType type : {TensorType::kBF16, TensorType::kF16}) {
    const std::string first = folder.File(Name(type)), second = first + "2";
    ASSERT_TRUE(Reexport(model, {.directory = first, .type = type}).ok());
    ASSERT_TRUE(Reexport(first, {.directory = second, .type = type}).ok());
    EXPECT_TRUE(MustRead(JoinPath(first, "model.safetensors")) ==
                MustRead(JoinPath(second, "model.safetensors")));
    EXPECT_EQ(MustParse(MustRead(JoinPath(first, "config.json")))["dtype"], DtypeName(type));
    const auto opened = HfFolder::Open(first, nullptr);
    ASSERT_TRUE(opened.ok());
    for (const StoredTensor& tensor : opened->tensors())
      EXPECT_EQ(tensor.type, type) << tensor.name;
    EXPECT_EQ(
        HfWeights::Match(*opened, opened->config(), BuildParamSpecs(opened->config()), {}, nullptr)
            ->dominant_type(),
        type);
  }
}

TEST(Export, CarriedTensorsComeBackUnchanged) {
  const std::string model = SharedPath("fixtures/parity/bert_mlm");
  TRANCHE_SKIP_WITHOUT(model);
  const TestFolder folder;
  const std::string in = folder.File("in"), out = folder.File("out");
  ASSERT_TRUE(FileSystem::Real().MakeDirs(in).ok());
  std::vector<RawTensor> tensors = RawTensorsOf(MustRead(JoinPath(model, "model.safetensors")));
  tensors.push_back(
      {"bert.pooler.dense.weight", "F32", {64, 64}, std::string(64 * 64 * 4, '\x07')});
  folder.Write("in/model.safetensors", SafetensorsOf(tensors));
  folder.Write("in/config.json", MustRead(JoinPath(model, "config.json")));
  ASSERT_TRUE(Reexport(in, {.directory = out}).ok());
  EXPECT_EQ(SortedTensors(out), SortedTensors(in));
}

TEST(Export, RefusesWhatExistsUnlessToldTo) {
  const std::string model = SharedPath("fixtures/parity/phi2_clm");
  TRANCHE_SKIP_WITHOUT(model);
  const TestFolder folder;
  ASSERT_TRUE(FileSystem::Real().MakeDirs(folder.File("out")).ok());
  folder.Write("out/config.json", "{}");
  folder.Write("out/keep", "me");
  EXPECT_EQ(Reexport(model, {.directory = folder.File("out")}).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(MustRead(folder.File("out/config.json")), "{}");
  ASSERT_TRUE(Reexport(model, {.directory = folder.File("out"), .overwrite = true}).ok());
  EXPECT_FALSE(FileExists(folder.File("out/keep")));
  EXPECT_EQ(*ListDir(folder.path()), std::vector<std::string>{"out"}) << "nothing temporary stays";

  ASSERT_TRUE(FileSystem::Real().MakeDirs(folder.File("home")).ok());
  folder.Write("home/letters", "dear");
  EXPECT_THAT(
      std::string(Reexport(model, {.directory = folder.File("home"), .overwrite = true}).message()),
      HasSubstr("no model folder"));
  EXPECT_EQ(MustRead(folder.File("home/letters")), "dear");
}

// A disk that is full after so many bytes.
class FullDisk : public FileSystem {
 public:
  explicit FullDisk(int64_t bytes) : left_(bytes) {}
  absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path) override {
    auto file = Real().Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*std::move(file), &left_);
  }

 private:
  class File : public AtomicFile {
   public:
    File(std::unique_ptr<AtomicFile> file, int64_t* left) : file_(std::move(file)), left_(left) {}
    absl::Status Append(absl::string_view bytes) override {
      *left_ -= static_cast<int64_t>(bytes.size());
      return *left_ < 0 ? absl::ResourceExhaustedError("no space left on device")
                        : file_->Append(bytes);
    }
    absl::Status WriteAt(int64_t offset, absl::string_view bytes) override {
      return file_->WriteAt(offset, bytes);
    }
    absl::Status Commit() override { return file_->Commit(); }
    int64_t size() const override { return file_->size(); }

   private:
    std::unique_ptr<AtomicFile> file_;
    int64_t* left_;
  };
  int64_t left_;
};

TEST(Export, AFullDiskLeavesNothingNewAndTheOldFolderWhole) {
  const std::string model = SharedPath("fixtures/parity/phi2_clm");
  TRANCHE_SKIP_WITHOUT(model);
  const TestFolder folder;
  ASSERT_TRUE(Reexport(model, {.directory = folder.File("old")}).ok());
  const std::vector<std::string> before = SortedTensors(folder.File("old"));
  for (const int64_t bytes : {0, 100, 5000, 200'000, 900'000}) {
    FullDisk disk(bytes);
    for (const char* name : {"new", "old"}) {
      const absl::Status status =
          Reexport(model, {.directory = folder.File(name), .overwrite = true}, disk);
      ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << bytes << " " << status;
      EXPECT_EQ(*ListDir(folder.path()), std::vector<std::string>{"old"});
    }
  }
  EXPECT_EQ(SortedTensors(folder.File("old")), before);
}

TEST(Export, ValuesThatAHalfCannotHoldAreRefusedByName) {
  const std::string model = SharedPath("fixtures/parity/phi2_clm");
  TRANCHE_SKIP_WITHOUT(model);
  const auto folder = HfFolder::Open(model, nullptr);
  ASSERT_TRUE(folder.ok());
  const auto specs = BuildParamSpecs(folder->config());
  const int big = FindParam(specs, 1, ParamRole::kMlpInWeight);
  const auto read = [&](int spec, int64_t, int64_t count, float* out) {
    std::fill(out, out + count, spec == big ? 7e4f : 1.0f);
    return absl::OkStatus();
  };
  const TestFolder out;
  ExportOptions options{.directory = out.File("x"), .type = TensorType::kF16};
  const absl::Status status = ExportFolder(FileSystem::Real(), options, folder->config_json(),
                                           folder->config(), specs, read, {});
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.layers.0.mlp.fc1.weight: 70000 does not fit float16"));
  EXPECT_TRUE(ListDir(out.path())->empty());
  options.type = TensorType::kBF16;
  EXPECT_TRUE(ExportFolder(FileSystem::Real(), options, folder->config_json(), folder->config(),
                           specs, read, {})
                  .ok());
}

}  // namespace
}  // namespace tranche
