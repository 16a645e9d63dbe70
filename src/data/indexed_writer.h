// Writes PREFIX.bin, PREFIX.idx (Megatron's format, see token_file.h) and PREFIX.meta.json.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "data/dataset_meta.h"
#include "data/token_file.h"

namespace tranche {

// Megatron's rule: uint16 where the vocabulary is below 65500, else int32.
TokenType TypeForVocabulary(int64_t vocab_size);

// Appends ids in the type's bytes. Ids must fit: a CHECK.
void AppendIds(absl::Span<const int32_t> ids, TokenType type, std::string* bytes);

// Everything goes to temporary files; Commit makes them durable under PREFIX.*.new and then renames
// them, the index last, so that a dataset that has an index is whole. Without Commit nothing is
// left behind and an earlier dataset of that name stays as it was. Memory: 4 bytes a sequence (and
// 8 a document where some document has not exactly one).
class IndexedWriter {
 public:
  static absl::StatusOr<std::unique_ptr<IndexedWriter>> Create(FileSystem& files,
                                                               const std::string& prefix,
                                                               TokenType type);

  ~IndexedWriter();

  // Documents of one sequence each: their ids as AppendIds makes them, back to back, and their
  // lengths in tokens.
  absl::Status AddDocuments(absl::string_view bytes, absl::Span<const int64_t> lengths);
  // One document of several sequences.
  absl::Status AddDocument(absl::string_view bytes, absl::Span<const int64_t> sequence_lengths);

  // meta.documents and meta.tokens are filled in here. A null meta writes no PREFIX.meta.json.
  absl::Status Commit(const DatasetMeta* meta);

  int64_t num_documents() const;
  int64_t num_tokens() const { return bin_->size() / TokenBytes(type_); }

 private:
  IndexedWriter(FileSystem& files, std::string prefix, TokenType type)
      : files_(files), prefix_(std::move(prefix)), type_(type) {}
  absl::Status Add(absl::string_view bytes, absl::Span<const int64_t> lengths);

  FileSystem& files_;
  const std::string prefix_;
  const TokenType type_;
  std::unique_ptr<AtomicFile> bin_, idx_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> document_ends_;  // in sequences; empty while every document is one sequence
};

}  // namespace tranche
