#include "data/indexed_writer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace tranche {
namespace {

template <typename T>
void Put(T value, std::string* bytes) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  bytes->append(raw, sizeof(T));
}

template <typename T>
void PutIds(absl::Span<const int32_t> ids, std::string* bytes) {
  for (const int32_t id : ids) {
    TRANCHE_CHECK(id >= 0 &&
                  static_cast<uint32_t>(id) <= static_cast<uint32_t>(std::numeric_limits<T>::max()))
        << id;
    Put(static_cast<T>(id), bytes);
  }
}

}  // namespace

TokenType TypeForVocabulary(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

void AppendIds(absl::Span<const int32_t> ids, TokenType type, std::string* bytes) {
  TRANCHE_CHECK(type == TokenType::kU16 || type == TokenType::kI32) << TokenTypeName(type);
  type == TokenType::kU16 ? PutIds<uint16_t>(ids, bytes) : PutIds<int32_t>(ids, bytes);
}

absl::StatusOr<std::unique_ptr<IndexedWriter>> IndexedWriter::Create(FileSystem& files,
                                                                     const std::string& prefix,
                                                                     TokenType type) {
  std::unique_ptr<IndexedWriter> writer(new IndexedWriter(files, prefix, type));
  TRANCHE_ASSIGN_OR_RETURN(writer->bin_, files.Create(prefix + ".bin.new"));
  TRANCHE_ASSIGN_OR_RETURN(writer->idx_, files.Create(prefix + ".idx.new"));
  return writer;
}

IndexedWriter::~IndexedWriter() {
  for (const char* name : {".bin.new", ".meta.json.new", ".idx.new"})
    files_.RemoveAll(prefix_ + name).IgnoreError();
}

int64_t IndexedWriter::num_documents() const {
  return static_cast<int64_t>(document_ends_.empty() ? lengths_.size() : document_ends_.size());
}

absl::Status IndexedWriter::Add(absl::string_view bytes, absl::Span<const int64_t> lengths) {
  int64_t tokens = 0;
  for (const int64_t length : lengths) {
    if (length > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat(prefix_, ": a sequence of ", length,
                       " tokens does not fit a Megatron index; split the document"));
    }
    lengths_.push_back(static_cast<int32_t>(length));
    tokens += length;
  }
  TRANCHE_CHECK_EQ(tokens * TokenBytes(type_), static_cast<int64_t>(bytes.size()));
  return bin_->Append(bytes);
}

absl::Status IndexedWriter::AddDocuments(absl::string_view bytes,
                                         absl::Span<const int64_t> lengths) {
  TRANCHE_RETURN_IF_ERROR(Add(bytes, lengths));
  if (document_ends_.empty()) return absl::OkStatus();
  for (size_t i = lengths_.size() - lengths.size(); i < lengths_.size(); ++i) {
    document_ends_.push_back(static_cast<int64_t>(i) + 1);
  }
  return absl::OkStatus();
}

absl::Status IndexedWriter::AddDocument(absl::string_view bytes,
                                        absl::Span<const int64_t> sequence_lengths) {
  if (sequence_lengths.size() == 1) return AddDocuments(bytes, sequence_lengths);
  if (document_ends_.empty()) {
    document_ends_.resize(lengths_.size());
    std::iota(document_ends_.begin(), document_ends_.end(), int64_t{1});
  }
  TRANCHE_RETURN_IF_ERROR(Add(bytes, sequence_lengths));
  document_ends_.push_back(static_cast<int64_t>(lengths_.size()));
  return absl::OkStatus();
}

absl::Status IndexedWriter::Commit(const DatasetMeta* meta) {
  std::string header("MMIDIDX\0\0", 9);
  Put(uint64_t{1}, &header);
  header += static_cast<char>(type_);
  Put(static_cast<uint64_t>(lengths_.size()), &header);
  Put(static_cast<uint64_t>(num_documents() + 1), &header);
  TRANCHE_RETURN_IF_ERROR(idx_->Append(header));

  const int64_t sequences = static_cast<int64_t>(lengths_.size());
  constexpr int64_t kBatch = 1 << 16;  // entries turned into bytes at a time
  const auto append_all = [&](int64_t count, const auto& put) -> absl::Status {
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      put(i, &bytes);
      if (i % kBatch == kBatch - 1 || i == count - 1) {
        TRANCHE_RETURN_IF_ERROR(idx_->Append(bytes));
        bytes.clear();
      }
    }
    return absl::OkStatus();
  };
  TRANCHE_RETURN_IF_ERROR(append_all(
      sequences, [&](int64_t i, std::string* out) { Put(lengths_[static_cast<size_t>(i)], out); }));
  int64_t offset = 0;
  TRANCHE_RETURN_IF_ERROR(append_all(sequences, [&](int64_t i, std::string* out) {
    Put(offset, out);
    offset += lengths_[static_cast<size_t>(i)] * TokenBytes(type_);
  }));
  TRANCHE_RETURN_IF_ERROR(append_all(num_documents() + 1, [&](int64_t i, std::string* out) {
    Put(i == 0 || document_ends_.empty() ? i : document_ends_[static_cast<size_t>(i) - 1], out);
  }));

  if (meta != nullptr) {
    DatasetMeta complete = *meta;
    complete.documents = num_documents();
    complete.tokens = num_tokens();
    TRANCHE_ASSIGN_OR_RETURN(auto meta_file, files_.Create(prefix_ + ".meta.json.new"));
    TRANCHE_RETURN_IF_ERROR(meta_file->Append(FormatDatasetMeta(complete)));
    TRANCHE_RETURN_IF_ERROR(meta_file->Commit());
  }
  TRANCHE_RETURN_IF_ERROR(bin_->Commit());
  TRANCHE_RETURN_IF_ERROR(idx_->Commit());
  // All is on disk; from here on only names change. The old index goes first: a crash on the way
  // must not leave it over new ids.
  TRANCHE_RETURN_IF_ERROR(files_.RemoveAll(prefix_ + ".idx"));
  TRANCHE_RETURN_IF_ERROR(files_.RemoveAll(prefix_ + ".meta.json"));
  for (const char* name : {".bin", ".meta.json", ".idx"}) {
    if (meta == nullptr && absl::string_view(name) == ".meta.json") continue;
    TRANCHE_RETURN_IF_ERROR(files_.Rename(absl::StrCat(prefix_, name, ".new"), prefix_ + name));
  }
  return absl::OkStatus();
}

}  // namespace tranche
