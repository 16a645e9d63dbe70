// Token ids on disk, mapped and read-only, with the borders of their documents.
//
// Formats:
//   Megatron  PREFIX.bin: ids back to back, little-endian.
//             PREFIX.idx: "MMIDIDX\0\0", u64 version 1, u8 type code, u64 sequence count S, u64
//             document count plus one D + 1, i32 length[S], i64 byte offset[S], i64 first sequence
//             of each document[D + 1]. A document is one or more sequences. Everything is checked.
//   llm.c     256 i32 of header (magic 20240520, version 1: u16 ids; magic 20240801, version 7:
//             u32 ids), then ids.
//   bare      ids alone, as nanoGPT writes them; the type must be given.
// llm.c and bare files know no documents: they count as one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "data/dataset_meta.h"

namespace tranche {

// kMegatron: PREFIX.bin + PREFIX.idx. kTokens: one file of llm.c (known by its magic number) or
// bare ids. kAuto: megatron where the .idx is there, else tokens.
enum class TokenFormat { kAuto, kMegatron, kTokens };

// Megatron's codes; kU32 is llm.c's and has none.
enum class TokenType : uint8_t {
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kU16 = 8,
  kU32 = 255
};
int64_t TokenBytes(TokenType type);
absl::string_view TokenTypeName(TokenType type);

class TokenFile {
 public:
  // path: PREFIX, PREFIX.bin or PREFIX.idx; a whole file name for kTokens. token_dtype: "uint16",
  // "uint32" or "int32" for bare ids, else "auto" (or empty).
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path,
                                                         TokenFormat format,
                                                         absl::string_view token_dtype);

  const std::string& path() const { return path_; }  // of the file that holds the ids
  absl::string_view format_name() const { return format_name_; }
  TokenType type() const { return type_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_documents_; }
  // False where documents are unknown (llm.c, bare): then there is one, the whole file.
  bool has_index() const { return index_.has_value(); }
  const std::optional<DatasetMeta>& meta() const { return meta_; }

  // First token of document d in [0, num_documents()]; that of the last is num_tokens().
  int64_t DocumentBegin(int64_t d) const;
  // The document that holds a token in [0, num_tokens()). O(log documents).
  int64_t DocumentAt(int64_t token) const;
  int64_t SequenceLength(int64_t s) const;
  int64_t SequenceBegin(int64_t s) const;  // first token; s in [0, num_sequences()]
  int64_t FirstSequence(int64_t d) const;  // of document d in [0, num_documents()]

  // Ids [begin, begin + out.size()). An id below 0 or not below `limit` is an error that says
  // where.
  absl::Status Read(int64_t begin, absl::Span<int32_t> out, int64_t limit) const;
  // That every id is below `limit`: by the type, or by reading all of them on all cores.
  absl::Status CheckIds(int64_t limit) const;

 private:
  TokenFile(MappedFile ids) : path_(ids.path()), ids_(std::move(ids)) {}
  static absl::StatusOr<std::unique_ptr<TokenFile>> OpenMegatron(const std::string& prefix);
  static absl::StatusOr<std::unique_ptr<TokenFile>> OpenTokens(const std::string& path,
                                                               absl::string_view token_dtype);
  absl::Status CheckIndex(const std::string& idx_path);
  absl::Status IdError(int64_t token, int64_t id, int64_t limit) const;

  std::string path_;
  absl::string_view format_name_;
  MappedFile ids_;
  std::optional<MappedFile> index_;
  std::optional<DatasetMeta> meta_;
  TokenType type_ = TokenType::kU16;
  int64_t header_bytes_ = 0;
  int64_t num_tokens_ = 0, num_sequences_ = 1, num_documents_ = 1;
  const char* lengths_ = nullptr;    // i32[S], unaligned, inside index_
  const char* offsets_ = nullptr;    // i64[S]
  const char* documents_ = nullptr;  // i64[D + 1]
};

}  // namespace tranche
