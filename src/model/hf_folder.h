// A model folder as Hugging Face tools write it: config.json and weights in model.safetensors, or
// in shards that model.safetensors.index.json lists. The folder is untrusted input.
//
// The index decides which tensors exist and where: files it does not name are passed over with a
// warning, files or tensors that it names and that are missing are refused, all of them at once.
// Without an index only a single weight file is accepted, and others are passed over likewise.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "model/safetensors.h"
#include "nlohmann/json.hpp"

namespace tranche {

class HfFolder {
 public:
  // Reads config.json and checks every weight file's header. `warnings` (may be null) gets one line
  // per file passed over.
  static absl::StatusOr<HfFolder> Open(const std::string& path, std::vector<std::string>* warnings);
  // Whether there is anything that Open would take, or refuse, as weights. A folder without may
  // still describe a model by its config.json.
  static bool HoldsWeights(const std::string& path);

  const std::string& path() const { return path_; }
  const nlohmann::ordered_json& config_json() const { return config_json_; }
  const ModelConfig& config() const { return config_; }
  // Every tensor of the folder, sorted by name, each name once. The views live as long as the
  // folder or a share of files().
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* Find(absl::string_view name) const;
  // Keeps the mappings alive.
  std::shared_ptr<const std::vector<SafetensorsFile>> files() const { return files_; }
  // The file that holds a tensor, for messages.
  const std::string& FileOf(const StoredTensor& tensor) const;

 private:
  absl::Status OpenWeights(std::vector<std::string>* warnings);
  absl::Status OpenIndexed(const std::string& index_path, std::vector<std::string>* warnings);
  absl::Status WarnOfStrayFiles(std::vector<std::string>* warnings) const;

  std::string path_;
  nlohmann::ordered_json config_json_;
  ModelConfig config_;
  std::vector<StoredTensor> tensors_;
  std::shared_ptr<std::vector<SafetensorsFile>> files_ =
      std::make_shared<std::vector<SafetensorsFile>>();
};

// Reads a small text file of a model folder; an error where it is not what it should be (Git LFS
// pointer, web page, empty).
absl::StatusOr<std::string> ReadModelText(const std::string& path);

}  // namespace tranche
