// PREFIX.meta.json beside PREFIX.bin and PREFIX.idx: how the ids were made. Megatron neither writes
// nor reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace tranche {

struct DatasetMeta {
  std::string tokenizer;       // Tokenizer::fingerprint()
  int64_t vocab_size = 0;      // one above the largest id that can occur
  int32_t eos = -1, bos = -1;  // the id that ends or begins every document; -1 where none was added
  int64_t documents = 0;
  int64_t tokens = 0;      // with eos and bos
  int64_t text_bytes = 0;  // UTF-8 bytes of the documents
};

std::string FormatDatasetMeta(const DatasetMeta& meta);
// Nothing where the file is absent.
absl::StatusOr<std::optional<DatasetMeta>> ReadDatasetMeta(const std::string& path);

}  // namespace tranche
