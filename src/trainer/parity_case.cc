#include "trainer/parity_case.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "model/safetensors.h"
#include <toml++/toml.h>

namespace tranche {
namespace {

// Parity folders are small; more than this is a mistake.
constexpr int64_t kMaxRows = 1 << 20;

absl::Status Invalid(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// The batch as stored, row-major [B, T].
struct Padded {
  int64_t sequences = 0, length = 0;
  std::vector<int64_t> ids, mask, labels, types, documents, next_sentence;
};

absl::StatusOr<std::vector<int64_t>> ReadIntegers(const SafetensorsFile& file,
                                                  const std::string& name,
                                                  const std::vector<int64_t>& shape) {
  const StoredTensor* tensor = file.Find(name);
  if (tensor == nullptr) return Invalid(file.path(), absl::StrCat("tensor ", name, " is missing"));
  if (tensor->type != TensorType::kI64) {
    return Invalid(file.path(), absl::StrCat("tensor ", name, " is not of type I64"));
  }
  if (tensor->shape != shape) {
    return Invalid(file.path(), absl::StrCat("tensor ", name, " has not the shape of input_ids"));
  }
  std::vector<int64_t> values(static_cast<size_t>(Elements(*tensor)));
  if (!values.empty()) std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

absl::StatusOr<Padded> ReadBatch(const std::string& path) {
  TRANCHE_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  const StoredTensor* ids = file.Find("input_ids");
  if (ids == nullptr || ids->shape.size() != 2 || Elements(*ids) == 0 ||
      Elements(*ids) > kMaxRows) {
    return Invalid(path, "input_ids is missing or not of a shape [B, T]");
  }
  const std::vector<int64_t> shape = ids->shape;
  Padded padded;
  padded.sequences = shape[0];
  padded.length = shape[1];
  TRANCHE_ASSIGN_OR_RETURN(padded.ids, ReadIntegers(file, "input_ids", shape));
  TRANCHE_ASSIGN_OR_RETURN(padded.mask, ReadIntegers(file, "attention_mask", shape));
  TRANCHE_ASSIGN_OR_RETURN(padded.labels, ReadIntegers(file, "labels", shape));
  padded.types.assign(padded.ids.size(), 0);
  padded.documents.assign(padded.ids.size(), 0);
  if (file.Find("token_type_ids") != nullptr) {
    TRANCHE_ASSIGN_OR_RETURN(padded.types, ReadIntegers(file, "token_type_ids", shape));
  }
  if (file.Find("document_ids") != nullptr) {
    TRANCHE_ASSIGN_OR_RETURN(padded.documents, ReadIntegers(file, "document_ids", shape));
  }
  if (file.Find("next_sentence_label") != nullptr) {
    TRANCHE_ASSIGN_OR_RETURN(padded.next_sentence,
                             ReadIntegers(file, "next_sentence_label", {shape[0]}));
  }
  return padded;
}

absl::Status CheckRange(const std::string& path, const char* name,
                        const std::vector<int64_t>& values, int64_t low, int64_t end) {
  for (const int64_t value : values) {
    if (value < low || value >= end) {
      return Invalid(path, absl::StrCat(name, " holds ", value, ", outside [", low, ", ", end,
                                        ") of the model"));
    }
  }
  return absl::OkStatus();
}

// Drops padding, cuts segments at documents, and puts the labels where they are predicted.
void Flatten(const Padded& padded, ParityCase* result) {
  MicroBatch& batch = result->batch;
  const bool shifted = result->config.head == HeadKind::kCausal;
  batch.cu_seqlens = {0};
  batch.cu_sequences = {0};
  for (int64_t b = 0; b < padded.sequences; ++b) {
    int64_t document_begin = 0;
    for (int64_t t = 0; t < padded.length; ++t) {
      const size_t at = static_cast<size_t>(b * padded.length + t);
      const bool begins = t > 0 && padded.documents[at] != padded.documents[at - 1];
      const int32_t row = static_cast<int32_t>(batch.num_tokens());
      if (begins) {
        document_begin = t;
        if (batch.cu_seqlens.back() != row) batch.cu_seqlens.push_back(row);
      }
      result->rotary_length = std::max(result->rotary_length, t - document_begin + 1);
      if (padded.mask[at] == 0) continue;
      batch.input_ids.push_back(static_cast<int32_t>(padded.ids[at]));
      batch.positions.push_back(static_cast<int32_t>(t - document_begin));
      batch.token_types.push_back(static_cast<int32_t>(padded.types[at]));
      batch.token_keys.push_back((static_cast<uint64_t>(b) << 20) | static_cast<uint64_t>(t));
      result->row_in_expected.push_back(static_cast<int64_t>(at));
      int64_t label = padded.labels[at];
      if (shifted) {
        const bool inside =
            t + 1 < padded.length && padded.documents[at + 1] == padded.documents[at];
        label = inside ? padded.labels[at + 1] : -100;
      }
      if (label == -100) continue;
      batch.predict_rows.push_back(row);
      batch.labels.push_back(static_cast<int32_t>(label));
    }
    const int32_t end = static_cast<int32_t>(batch.num_tokens());
    if (batch.cu_seqlens.back() != end) batch.cu_seqlens.push_back(end);
    batch.cu_sequences.push_back(end);
  }
  for (const int64_t label : padded.next_sentence) {
    batch.next_sentence.push_back(static_cast<int32_t>(label));
  }
  result->padded_rows = padded.sequences * padded.length;
  result->every_row = batch;
  result->every_row.labels.assign(batch.input_ids.size(), 0);
  result->every_row.predict_rows.clear();
  for (int32_t row = 0; row < static_cast<int32_t>(batch.num_tokens()); ++row) {
    result->every_row.predict_rows.push_back(row);
  }
}

absl::Status CheckBatch(const std::string& path, const Padded& padded, const ModelConfig& config,
                        int64_t rows) {
  TRANCHE_RETURN_IF_ERROR(CheckRange(path, "input_ids", padded.ids, 0, config.vocab_size));
  TRANCHE_RETURN_IF_ERROR(CheckRange(path, "attention_mask", padded.mask, 0, 2));
  TRANCHE_RETURN_IF_ERROR(CheckRange(path, "labels", padded.labels, -100, config.vocab_size));
  for (const int64_t label : padded.labels) {
    if (label < 0 && label != -100) return Invalid(path, absl::StrCat("labels holds ", label));
  }
  TRANCHE_RETURN_IF_ERROR(CheckRange(path, "token_type_ids", padded.types, 0,
                                     std::max<int64_t>(config.num_token_types, 1)));
  TRANCHE_RETURN_IF_ERROR(CheckRange(path, "next_sentence_label", padded.next_sentence, 0, 2));
  if (rows == 0) return Invalid(path, "attention_mask leaves no token");
  return absl::OkStatus();
}

absl::Status ReadHyperParameters(const std::string& path, ParityCase* result) {
  TRANCHE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    return Invalid(path, absl::StrCat("line ", error.source().begin.line, ": ",
                                      std::string(error.description())));
  }
  absl::Status status;
  const auto number = [&](toml::node_view<toml::node> node, const char* key) {
    const std::optional<double> value = node.value<double>();
    if (!value.has_value()) status = Invalid(path, absl::StrCat(key, " is missing or no number"));
    return value.value_or(0);
  };
  result->learning_rate = number(table["lr"], "lr");
  result->update.beta1 = static_cast<float>(number(table["betas"][0], "betas[0]"));
  result->update.beta2 = static_cast<float>(number(table["betas"][1], "betas[1]"));
  result->update.eps = static_cast<float>(number(table["eps"], "eps"));
  result->update.weight_decay = static_cast<float>(number(table["weight_decay"], "weight_decay"));
  result->update.max_grad_norm =
      static_cast<float>(number(table["max_grad_norm"], "max_grad_norm"));
  const double steps = number(table["steps"], "steps");
  if (!status.ok()) return status;
  if (!(steps >= 0 && steps <= 100000)) return Invalid(path, "steps is not in [0, 100000]");
  result->steps = static_cast<int64_t>(steps);
  const std::string wanted = result->config.head == HeadKind::kCausal ? "clm" : "mlm";
  if (table["objective"].value_or(std::string()) != wanted) {
    return Invalid(path, absl::StrCat("objective must be \"", wanted, "\" for this model"));
  }
  return absl::OkStatus();
}

absl::Status ReadExpected(const std::string& path, ParityCase* result) {
  TRANCHE_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  for (const StoredTensor& tensor : file.tensors()) {
    if (!IsFloat(tensor.type)) return Invalid(path, tensor.name + " is of no float type");
    std::vector<float> values(static_cast<size_t>(Elements(tensor)));
    ConvertElements(tensor.bytes.data(), tensor.type, values.data(), TensorType::kF32,
                    Elements(tensor));
    result->expected.emplace(tensor.name, std::move(values));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<const std::vector<float>*> ParityCase::Expected(const std::string& key,
                                                               int64_t elements) const {
  const auto found = expected.find(key);
  const std::string path = JoinPath(folder.path(), "expect.safetensors");
  if (found == expected.end()) return Invalid(path, absl::StrCat("tensor ", key, " is missing"));
  if (static_cast<int64_t>(found->second.size()) != elements) {
    return Invalid(path, absl::StrCat("tensor ", key, " has ", found->second.size(),
                                      " elements, the model makes ", elements));
  }
  return &found->second;
}

absl::StatusOr<ParityCase> ReadParityCase(const std::string& path) {
  TRANCHE_ASSIGN_OR_RETURN(HfFolder folder, HfFolder::Open(path, nullptr));
  const std::string batch_path = JoinPath(path, "batch.safetensors");
  TRANCHE_ASSIGN_OR_RETURN(const Padded padded, ReadBatch(batch_path));
  ModelConfig config = folder.config();
  // Without labels the reference computes no next-sentence loss and leaves that head alone.
  if (padded.next_sentence.empty()) config.next_sentence_head = false;
  if (!padded.next_sentence.empty() && !config.next_sentence_head) {
    return Invalid(batch_path, "next_sentence_label is given, but the model has no such head");
  }
  std::vector<ParamSpec> specs = BuildParamSpecs(config);
  TRANCHE_ASSIGN_OR_RETURN(HfWeights weights, HfWeights::Match(folder, config, specs, {}, nullptr));
  ParityCase result{.name = BaseName(path),
                    .config = std::move(config),
                    .specs = std::move(specs),
                    .folder = std::move(folder),
                    .weights = std::move(weights)};
  int64_t attended = 0;
  for (const int64_t value : padded.mask) attended += value != 0;
  TRANCHE_RETURN_IF_ERROR(CheckBatch(batch_path, padded, result.config, attended));
  Flatten(padded, &result);
  TRANCHE_RETURN_IF_ERROR(ReadHyperParameters(JoinPath(path, "expect.toml"), &result));
  TRANCHE_RETURN_IF_ERROR(ReadExpected(JoinPath(path, "expect.safetensors"), &result));
  // What is there bounds the memory that a comparison takes.
  TRANCHE_RETURN_IF_ERROR(
      result.Expected("logits", result.padded_rows * result.config.vocab_size).status());
  return result;
}

}  // namespace tranche
