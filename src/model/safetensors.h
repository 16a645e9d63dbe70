// The safetensors format: 8 bytes little-endian header length, a JSON header, then the tensors'
// bytes back to back, row-major and little-endian. Files are untrusted input: everything is checked
// before a tensor is handed out, in memory proportional to the number of tensors. The checks are
// those of the reference library, and names that stand twice are refused too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/file.h"

namespace tranche {

// In the reference library's order, which is the order of alignment that its writer sorts by.
enum class TensorType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64
};
const char* Name(TensorType type);  // "BF16", as in the header
int BitsOf(TensorType type);
// F64, F32, F16, BF16: what ConvertElements reads and writes.
bool IsFloat(TensorType type);
// "float32", "bfloat16", "float16", "float64" as config.json says them; InvalidArgument for others.
absl::StatusOr<TensorType> TypeOfDtypeName(absl::string_view dtype);
const char* DtypeName(TensorType type);  // the reverse, for float types

// Copies `count` elements between float types, rounding to nearest even; equal types are copied bit
// by bit. No alignment is needed.
void ConvertElements(const void* from, TensorType from_type, void* to, TensorType to_type,
                     int64_t count);

struct TensorInfo {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
};
// Product of the shape; the shape must be one that was read or fits 63 bits.
int64_t Elements(const TensorInfo& info);
int64_t ByteSize(const TensorInfo& info);

struct StoredTensor : TensorInfo {
  absl::string_view bytes;  // into the file's mapping; maybe unaligned
};

class SafetensorsFile {
 public:
  // InvalidArgument naming the file, and the tensor where there is one. Git LFS pointers, web
  // pages, archives, empty and truncated files get messages of their own.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<StoredTensor>& tensors() const {
    return tensors_;
  }                                                        // in the order of their bytes
  const StoredTensor* Find(absl::string_view name) const;  // nullptr where there is none
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::vector<uint32_t> by_name_;  // indices into tensors_, sorted by name
  std::vector<std::pair<std::string, std::string>> metadata_;
};

// Parses and checks the JSON header alone, whose data section has `data_bytes` bytes. Tensors come
// back in the order of their bytes with (begin, end) offsets.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  std::vector<std::pair<std::string, std::string>> metadata;
};
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view header,
                                                         uint64_t data_bytes,
                                                         const std::string& source);

// Says what a file is that is not what it should be: "" or a sentence about Git LFS pointers, web
// pages, archives, emptiness.
std::string ForeignContent(absl::string_view bytes);

// Writes what the reference library writes for the same tensors, byte for byte: sorted by type
// (widest first), then name.
class SafetensorsWriter {
 public:
  // `metadata` sorted by key; {{"format", "pt"}} is what transformers asks for.
  static absl::StatusOr<SafetensorsWriter> Create(
      FileSystem& fs, const std::string& path, std::vector<TensorInfo> tensors,
      const std::vector<std::pair<std::string, std::string>>& metadata);
  // The tensors in the order in which Append must get their bytes.
  const std::vector<TensorInfo>& order() const { return order_; }
  absl::Status Append(absl::string_view bytes) { return file_->Append(bytes); }
  // Fails where not exactly all bytes were appended.
  absl::Status Commit();

 private:
  SafetensorsWriter() = default;
  std::string path_;
  std::unique_ptr<AtomicFile> file_;
  std::vector<TensorInfo> order_;
  int64_t expected_size_ = 0;
};

}  // namespace tranche
