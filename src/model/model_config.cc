#include "model/model_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/text.h"
#include "model/config_choices.h"
#include "model/config_families.h"
#include "model/config_reader.h"
#include "model/config_rope.h"
#include "model/hf_folder.h"

namespace tranche {
namespace {

using Json = nlohmann::ordered_json;

// Which family the file describes: model_type, or architectures where that is missing; nullptr with
// faults noted.
const ConfigFamily* ResolveFamily(const ConfigReader& reader, ModelConfig& config) {
  const std::string type = reader.String("model_type", "");
  const std::vector<std::string> architectures = reader.Strings("architectures");
  const ConfigFamily* family = FindFamily(type);
  if (family == nullptr && type.empty() && !architectures.empty())
    family = FindFamilyOfArchitecture(architectures[0]);
  if (family == nullptr) {
    std::vector<std::string> known;
    for (const ConfigFamily& each : Families()) known.emplace_back(each.model_type);
    const std::string list = absl::StrJoin(known, ", ");
    if (absl::StrContains(type, "phi-msft") || absl::StrContains(type, "mixformer")) {
      reader.Error(
          "model_type",
          absl::StrCat("\"", type,
                       "\" is phi's old format with remote code; take the newer \"phi\" files"));
    } else if (!type.empty()) {
      reader.Error("model_type", absl::StrCat("\"", type, "\" is not supported",
                                              DidYouMean(type, known), "; known: ", list));
    } else if (!architectures.empty()) {
      reader.Error("architectures",
                   absl::StrCat("\"", architectures[0],
                                "\" is not supported and model_type is missing; known "
                                "model types: ",
                                list));
    } else {
      reader.Error("model_type", absl::StrCat("is missing, and architectures too; known: ", list));
    }
    return nullptr;
  }
  config.model_type = std::string(family->model_type);
  config.architecture = architectures.empty() ? family->architectures[0] : architectures[0];
  const auto& accepted = family->architectures;
  if (std::find(accepted.begin(), accepted.end(), config.architecture) == accepted.end()) {
    reader.Error(
        "architectures",
        absl::StrCat("\"", config.architecture, "\" is not supported for model_type \"",
                     family->model_type, "\"; supported: ", absl::StrJoin(accepted, ", ")));
  }
  return family;
}

void RefuseUnsupported(const ConfigReader& reader, const ConfigFamily& family) {
  for (const char* key :
       {"is_decoder", "add_cross_attention", "is_encoder_decoder", "use_bidirectional_attention"}) {
    if (reader.Bool(key, false)) reader.Error(key, "true is not supported");
  }
  if (reader.Has("quantization_config")) {
    reader.Error(
        "quantization_config",
        "quantised weights are not supported; take the float32, float16 or bfloat16 files");
  }
  if (const auto* pruned = reader.Find("pruned_heads"); pruned != nullptr && !pruned->empty()) {
    reader.Error("pruned_heads", "pruned heads are not supported");
  }
  if (family.model_type == "bert" || family.model_type == "roberta") {
    const std::string kind = reader.String("position_embedding_type", "absolute");
    if (kind != "absolute") {
      reader.Error("position_embedding_type",
                   absl::StrCat("\"", kind, "\" is not supported, only \"absolute\""));
    }
  }
}

void ReadSizes(const ConfigReader& reader, const ConfigFamily& family, ModelConfig& config) {
  config.vocab_size = reader.Int("vocab_size", family.vocab_size, 1, kMaxRows);
  config.hidden_size = reader.Int("hidden_size", family.hidden_size, 1, kMaxWidth);
  config.intermediate_size =
      reader.Int("intermediate_size", family.intermediate_size, 1, kMaxWidth);
  config.num_layers = reader.Int("num_hidden_layers", family.num_layers, 1, kMaxLayers);
  config.num_heads = reader.Int("num_attention_heads", family.num_heads, 1, 65536);
  config.max_positions = reader.Int("max_position_embeddings", family.max_positions, 1, kMaxRows);
  config.norm_eps = reader.Number(family.norm_eps_key, family.norm_eps, 0, 1);
  config.init_std = reader.Number("initializer_range", 0.02, 0, 1);
  config.output_init_std = config.init_std;
  config.tied = reader.Bool("tie_word_embeddings", family.tied);
  config.activation = ReadActivation(reader, family.activation_key, family.activation);

  const bool own_head_dim = std::find(family.own_keys.begin(), family.own_keys.end(), "head_dim") !=
                            family.own_keys.end();
  const int64_t given = reader.Int("head_dim", own_head_dim ? family.head_dim : 0, 1, 65536);
  const bool divides = config.hidden_size % config.num_heads == 0;
  if (given > 0 && own_head_dim) {
    config.head_dim = given;
  } else if (!divides) {
    reader.Error(
        "num_attention_heads",
        absl::StrFormat("head_dim = hidden_size / num_attention_heads = %d / %d is not whole",
                        config.hidden_size, config.num_heads));
    config.head_dim = 2;
  } else {
    config.head_dim = config.hidden_size / config.num_heads;
    if (given > 0 && given != config.head_dim) {
      reader.Error(
          "head_dim",
          absl::StrFormat(
              "%d contradicts hidden_size / num_attention_heads = %d / %d = %d, which a %s model "
              "uses",
              given, config.hidden_size, config.num_heads, config.head_dim, family.model_type));
    }
  }
  config.num_kv_heads = config.num_heads;
  if (config.head_dim * config.num_heads > kMaxWidth) {
    reader.Error("head_dim", absl::StrFormat("num_attention_heads %d * head_dim %d exceeds %d",
                                             config.num_heads, config.head_dim, kMaxWidth));
  }
}

void ReadTokens(const ConfigReader& reader, const ConfigFamily& family, ModelConfig& config) {
  // A documented default that lies beyond a small vocabulary is no padding row; -1 says "none" in
  // older Llama files.
  config.pad_token_id =
      reader.Int("pad_token_id", family.pad < config.vocab_size ? family.pad : -1, -1, kMaxToken);
  if (config.pad_token_id >= config.vocab_size) {
    reader.Error("pad_token_id", absl::StrFormat("%d must be below vocab_size %d",
                                                 config.pad_token_id, config.vocab_size));
  }
  config.bos_token_id = reader.Int("bos_token_id", family.bos, -1, kMaxToken);
  config.eos_token_ids = reader.Ints(
      "eos_token_id", family.eos >= 0 ? std::vector<int64_t>{family.eos} : std::vector<int64_t>{});
  for (const int64_t id : config.eos_token_ids) {
    if (id < -1) reader.Error("eos_token_id", absl::StrFormat("%d is no token", id));
  }
  config.eos_token_ids.erase(
      std::remove(config.eos_token_ids.begin(), config.eos_token_ids.end(), -1),
      config.eos_token_ids.end());

  // Files of transformers 4 say torch_dtype, of 5 dtype; the newer wins there, and every tensor is
  // read by its own type anyway.
  for (const char* key : {"torch_dtype", "dtype"}) {
    std::string name = reader.String(key, "");
    name = std::string(absl::StripPrefix(name, "torch."));
    if (name.empty() || name == "auto") continue;
    if (name != "float32" && name != "bfloat16" && name != "float16" && name != "float64") {
      reader.Error(
          key, absl::StrCat("\"", name, "\" is not supported; known: float32, bfloat16, float16"));
    }
    config.dtype = name;
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const Json& json, const std::string& source) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": must be an object, not ", ShortJson(json)));
  }
  std::vector<std::string> errors;
  const ConfigReader reader(json, "", &errors);
  ModelConfig config;
  if (const ConfigFamily* family = ResolveFamily(reader, config)) {
    RefuseUnsupported(reader, *family);
    ReadSizes(reader, *family, config);
    ReadTokens(reader, *family, config);
    config.layers.resize(config.num_layers);
    ReadChoices(reader, config);
    if (config.position_kind == PositionKind::kRotary) ParseRope(reader, *family, config);
  }
  if (errors.empty()) return config;
  for (std::string& error : errors) error = absl::StrCat(source, ": ", error);
  errors.erase(std::unique(errors.begin(), errors.end()), errors.end());
  return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& path) {
  const std::string file = IsDirectory(path) ? JoinPath(path, "config.json") : path;
  TRANCHE_ASSIGN_OR_RETURN(const std::string text, ReadModelText(file));
  TRANCHE_ASSIGN_OR_RETURN(const Json json, ParseOrderedJson(text, file));
  return ParseModelConfig(json, file);
}

std::vector<std::string> ModelConfigKeys(absl::string_view model_type) {
  std::vector<std::string> keys = CommonConfigKeys();
  for (const ConfigFamily& family : Families()) {
    if (!model_type.empty() && family.model_type != model_type) continue;
    std::vector<std::string> own = family.own_keys;
    own.emplace_back(family.norm_eps_key);
    own.emplace_back(family.activation_key);
    for (std::string& key : own) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
    }
  }
  return keys;
}

}  // namespace tranche
