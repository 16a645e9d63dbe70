// The bytes of one file as a stream, decompressed where its name ends in .gz.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tranche {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  static absl::StatusOr<std::unique_ptr<ByteSource>> Open(const std::string& path);

  // Up to `capacity` bytes into `out`; 0 only at the end. Errors name the file and, for damaged
  // gzip data, the offset in the file.
  virtual absl::StatusOr<size_t> Read(char* out, size_t capacity) = 0;
  // Bytes taken from the file itself so far.
  virtual int64_t consumed() const = 0;
};

}  // namespace tranche
