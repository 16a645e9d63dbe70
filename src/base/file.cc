#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tranche {

absl::Status ErrnoStatus(const std::string& path, absl::string_view what) {
  const int error = errno;
  const std::string message = absl::StrCat(path, ": ", what, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  int Close() {
    const int result = ::close(fd_);
    fd_ = -1;
    return result;
  }

 private:
  int fd_;
};

absl::Status SyncDirectory(const std::string& directory) {
  Descriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.ok()) return ErrnoStatus(directory, "cannot open folder");
  if (::fsync(fd.get()) != 0) return ErrnoStatus(directory, "cannot sync folder");
  return absl::OkStatus();
}

class PosixAtomicFile : public AtomicFile {
 public:
  PosixAtomicFile(std::string path, std::string temporary, int fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

  ~PosixAtomicFile() override {
    if (!committed_) ::unlink(temporary_.c_str());
  }

  absl::Status Append(absl::string_view bytes) override {
    if (buffer_.size() + bytes.size() <= kBufferBytes) {
      buffer_.append(bytes.data(), bytes.size());
      size_ += static_cast<int64_t>(bytes.size());
      return absl::OkStatus();
    }
    TRANCHE_RETURN_IF_ERROR(Flush());
    TRANCHE_RETURN_IF_ERROR(WriteFully(bytes, size_));
    size_ += static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }

  absl::Status WriteAt(int64_t offset, absl::string_view bytes) override {
    TRANCHE_RETURN_IF_ERROR(Flush());
    if (offset < 0 || offset + static_cast<int64_t>(bytes.size()) > size_) {
      return absl::InternalError(absl::StrCat(path_, ": overwrite beyond the end"));
    }
    return WriteFully(bytes, offset);
  }

  absl::Status Commit() override {
    TRANCHE_RETURN_IF_ERROR(Flush());
    if (::fsync(fd_.get()) != 0) return ErrnoStatus(temporary_, "cannot sync");
    if (fd_.Close() != 0) return ErrnoStatus(temporary_, "cannot close");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0)
      return ErrnoStatus(path_, "cannot rename into place");
    committed_ = true;
    return SyncDirectory(DirName(path_));
  }

  int64_t size() const override { return size_; }

 private:
  static constexpr size_t kBufferBytes = 1 << 20;

  absl::Status Flush() {
    TRANCHE_RETURN_IF_ERROR(WriteFully(buffer_, size_ - static_cast<int64_t>(buffer_.size())));
    buffer_.clear();
    return absl::OkStatus();
  }

  absl::Status WriteFully(absl::string_view bytes, int64_t offset) {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
      if (n < 0) {
        if (errno == EINTR) continue;
        return ErrnoStatus(path_, "cannot write");
      }
      bytes.remove_prefix(static_cast<size_t>(n));
      offset += n;
    }
    return absl::OkStatus();
  }

  std::string path_;
  std::string temporary_;
  Descriptor fd_;
  std::string buffer_;
  int64_t size_ = 0;
  bool committed_ = false;
};

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return ErrnoStatus(path, "cannot open");
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(path, "cannot stat");
  if (S_ISDIR(info.st_mode))
    return absl::InvalidArgumentError(path + ": is a folder, a file is needed");
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(path + ": is not a regular file");
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile(path, nullptr, 0);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(path, "cannot map");
  return MappedFile(path, data, size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

FileSystem& FileSystem::Real() {
  static FileSystem* real = new FileSystem;
  return *real;
}

absl::StatusOr<std::unique_ptr<AtomicFile>> FileSystem::Create(const std::string& path) {
  const std::string temporary = absl::StrCat(path, ".tmp.", ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return ErrnoStatus(temporary, "cannot create");
  return std::make_unique<PosixAtomicFile>(path, temporary, fd);
}

absl::Status FileSystem::Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    return ErrnoStatus(from, absl::StrCat("cannot rename to ", to));
  return SyncDirectory(DirName(to));
}

absl::Status FileSystem::MakeDirs(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    errno = error.value();
    return ErrnoStatus(path, "cannot make folder");
  }
  return absl::OkStatus();
}

absl::Status FileSystem::RemoveAll(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) {
    errno = error.value();
    return ErrnoStatus(path, "cannot remove");
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FileSystem::FreeBytes(const std::string& path) {
  struct statvfs info;
  if (::statvfs(path.c_str(), &info) != 0) return ErrnoStatus(path, "cannot ask for free space");
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  TRANCHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return std::string(file.data());
}

absl::Status WriteFileAtomic(const std::string& path, absl::string_view bytes) {
  TRANCHE_ASSIGN_OR_RETURN(auto file, FileSystem::Real().Create(path));
  TRANCHE_RETURN_IF_ERROR(file->Append(bytes));
  return file->Commit();
}

bool FileExists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

bool IsDirectory(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::StatusOr<int64_t> FileSize(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(path, "cannot stat");
  return static_cast<int64_t>(info.st_size);
}

absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) {
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return ErrnoStatus(path, "cannot list folder");
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(directory)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  ::closedir(directory);
  std::sort(names.begin(), names.end());
  return names;
}

std::string JoinPath(absl::string_view directory, absl::string_view name) {
  return (std::filesystem::path(std::string(directory)) / std::string(name)).string();
}

std::string DirName(absl::string_view path) {
  const std::string parent = std::filesystem::path(std::string(path)).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string BaseName(absl::string_view path) {
  return std::filesystem::path(std::string(path)).filename().string();
}

}  // namespace tranche
