// Writes a model folder that transformers loads: config.json, generation_config.json, tokenizer
// files and weights, in one type, whole or in shards. The folder appears under its name when it is
// complete and not before.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "model/model_config.h"
#include "model/param_spec.h"
#include "model/safetensors.h"
#include "nlohmann/json.hpp"

namespace tranche {

struct ExportOptions {
  std::string directory;  // what to make; its parent must exist
  // Replaces an existing model folder. Without it an existing path is refused; a folder without
  // config.json is never replaced.
  bool overwrite = false;
  TensorType type = TensorType::kF32;  // of every float tensor: F32, BF16 or F16
  // Weights beyond this many bytes are cut into shards with an index (transformers 5's default).
  int64_t max_shard_bytes = 50'000'000'000;
  std::string
      model_folder;  // generation_config.json is copied from here where it exists; "" for none
  std::string tokenizer_folder;  // tokenizer files are copied from here; "" for none
};

// Fills `out` with elements [first, first + count) of parameter `spec`, row-major.
using ParamReader = std::function<absl::Status(int spec, int64_t first, int64_t count, float* out)>;

// `config_json`: what config.json said (or the recipe's [model] keys). `carried`: tensors to write
// unchanged (HfWeights::carried()), float ones in options.type. Values that the type cannot hold
// (beyond 65504 in F16) are refused, naming the tensor. AlreadyExists, ResourceExhausted (full
// disk), … leave nothing behind and an existing folder as it was.
absl::Status ExportFolder(FileSystem& fs, const ExportOptions& options,
                          const nlohmann::ordered_json& config_json, const ModelConfig& config,
                          const std::vector<ParamSpec>& specs, const ParamReader& read,
                          absl::Span<const StoredTensor> carried);

// Names of the files that make a tokenizer, for folders that hold one.
const std::vector<std::string>& TokenizerFiles();

}  // namespace tranche
