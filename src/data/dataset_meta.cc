#include "data/dataset_meta.h"

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

constexpr int64_t kVersion = 1;

absl::StatusOr<int64_t> Integer(const nlohmann::json& object, const char* key, int64_t low,
                                int64_t high, const std::string& path) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_integer() ||
      (it->is_number_unsigned() && it->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) ||
      it->get<int64_t>() < low || it->get<int64_t>() > high) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": \"", key, "\" must be an integer in [",
                                                   low, ", ", high,
                                                   "]; tokenize again, or remove this file"));
  }
  return it->get<int64_t>();
}

}  // namespace

std::string FormatDatasetMeta(const DatasetMeta& meta) {
  const nlohmann::ordered_json json = {{"version", kVersion},
                                       {"tokenizer", meta.tokenizer},
                                       {"vocab_size", meta.vocab_size},
                                       {"eos", meta.eos},
                                       {"bos", meta.bos},
                                       {"documents", meta.documents},
                                       {"tokens", meta.tokens},
                                       {"text_bytes", meta.text_bytes}};
  return json.dump(2) + "\n";
}

absl::StatusOr<std::optional<DatasetMeta>> ReadDatasetMeta(const std::string& path) {
  if (!FileExists(path)) return std::nullopt;
  TRANCHE_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path));
  if (!json.is_object() || !json.contains("tokenizer") || !json["tokenizer"].is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a description of a tokenized dataset"));
  }
  TRANCHE_RETURN_IF_ERROR(Integer(json, "version", kVersion, kVersion, path).status());
  DatasetMeta meta;
  meta.tokenizer = json["tokenizer"].get<std::string>();
  TRANCHE_ASSIGN_OR_RETURN(meta.vocab_size, Integer(json, "vocab_size", 1, INT32_MAX, path));
  TRANCHE_ASSIGN_OR_RETURN(const int64_t eos, Integer(json, "eos", -1, INT32_MAX, path));
  TRANCHE_ASSIGN_OR_RETURN(const int64_t bos, Integer(json, "bos", -1, INT32_MAX, path));
  meta.eos = static_cast<int32_t>(eos);
  meta.bos = static_cast<int32_t>(bos);
  TRANCHE_ASSIGN_OR_RETURN(meta.documents, Integer(json, "documents", 0, INT64_MAX, path));
  TRANCHE_ASSIGN_OR_RETURN(meta.tokens, Integer(json, "tokens", 0, INT64_MAX, path));
  TRANCHE_ASSIGN_OR_RETURN(meta.text_bytes, Integer(json, "text_bytes", 0, INT64_MAX, path));
  return meta;
}

}  // namespace tranche
