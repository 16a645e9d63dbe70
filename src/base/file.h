// Files, behind one seam: everything Tranche writes goes through FileSystem, so that tests inject
// faults and so that "temporary name, fsync, rename" has one home. Errors name the path and what
// the system said.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tranche {

// A whole file mapped read-only. Empty files map to an empty view. Movable; the mapping lives as
// long as the object.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  absl::string_view data() const { return {static_cast<const char*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, void* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}
  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

// A file being written under a temporary name (PATH.tmp.PID). Commit() flushes, fsyncs, renames to
// the final path and fsyncs the folder; destroying it without Commit() removes the temporary file,
// so no partial output is left behind.
class AtomicFile {
 public:
  virtual ~AtomicFile() = default;
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // Overwrites bytes already appended (headers that need a later count). offset + size must lie
  // inside what was appended.
  virtual absl::Status WriteAt(int64_t offset, absl::string_view bytes) = 0;
  virtual absl::Status Commit() = 0;
  virtual int64_t size() const = 0;
};

// The disk. Real() is the machine's; tests derive from it to inject faults. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  static FileSystem& Real();

  virtual absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path);
  virtual absl::Status Rename(const std::string& from,
                              const std::string& to);       // and fsync the folder of `to`
  virtual absl::Status MakeDirs(const std::string& path);   // mkdir -p
  virtual absl::Status RemoveAll(const std::string& path);  // rm -rf; absent is fine
  virtual absl::StatusOr<int64_t> FreeBytes(
      const std::string& path);  // of the volume that holds path
};

// Shorthands on the real file system.
absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::Status WriteFileAtomic(const std::string& path, absl::string_view bytes);
bool FileExists(const std::string& path);
bool IsDirectory(const std::string& path);
absl::StatusOr<int64_t> FileSize(const std::string& path);
// Names (not paths) in a folder, sorted.
absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path);
std::string JoinPath(absl::string_view directory, absl::string_view name);  // an absolute name wins
std::string DirName(absl::string_view path);
std::string BaseName(absl::string_view path);
// "PATH: what: strerror(errno)" as a Status (NotFound, PermissionDenied, ResourceExhausted for a
// full disk, else Unavailable).
absl::Status ErrnoStatus(const std::string& path, absl::string_view what);

}  // namespace tranche
