// Copies of the parity folders that tests may damage, and what is loaded from them.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "model/hf_weights.h"
#include "model_format_fixtures.h"

namespace tranche {

inline std::string Parity(absl::string_view model) {
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

inline Loaded Load(const std::string& path, bool fresh_head = false, bool masked_only = false) {
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

}  // namespace tranche
