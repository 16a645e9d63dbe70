#include "data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace tranche {
namespace {

class PlainSource : public ByteSource {
 public:
  PlainSource(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~PlainSource() override { ::close(fd_); }
  PlainSource(const PlainSource&) = delete;
  PlainSource& operator=(const PlainSource&) = delete;

  absl::StatusOr<size_t> Read(char* out, size_t capacity) override {
    for (;;) {
      const ssize_t n = ::read(fd_, out, capacity);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(path_, absl::StrCat("cannot read at byte ", consumed_));
      consumed_ += n;
      return static_cast<size_t>(n);
    }
  }
  int64_t consumed() const override { return consumed_; }

 private:
  const std::string path_;
  const int fd_;
  int64_t consumed_ = 0;
};

// RFC 1952: a file is one or more members back to back; zero bytes may follow each (tape and disk
// blocks), and nothing else.
class GzipSource : public ByteSource {
 public:
  GzipSource(std::string path, std::unique_ptr<ByteSource> file)
      : path_(std::move(path)), file_(std::move(file)) {
    ok_ = inflateInit2(&stream_, 16 + MAX_WBITS) == Z_OK;
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  absl::StatusOr<size_t> Read(char* out, size_t capacity) override {
    if (!ok_) return absl::ResourceExhaustedError(path_ + ": no memory for decompression");
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(std::min<size_t>(capacity, 1u << 30));
    const uInt wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      if (stream_.avail_in == 0) TRANCHE_RETURN_IF_ERROR(Refill());
      if (!inside_member_) {
        TRANCHE_ASSIGN_OR_RETURN(const bool more, StartMember());
        if (!more) return 0;
      }
      if (stream_.avail_in == 0) {
        return Damaged("the file ends inside a compressed member (a cut or unfinished copy)");
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {
        inside_member_ = false;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return Damaged(stream_.msg != nullptr ? stream_.msg : "damaged compressed data");
      }
    }
    return wanted - stream_.avail_out;
  }

  int64_t consumed() const override { return file_->consumed() - stream_.avail_in; }

 private:
  absl::Status Refill() {
    TRANCHE_ASSIGN_OR_RETURN(const size_t n, file_->Read(input_.data(), input_.size()));
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(n);
    return absl::OkStatus();
  }

  // False at the end of the file.
  absl::StatusOr<bool> StartMember() {
    if (stream_.avail_in == 0) return false;
    const bool first = consumed() == 0;
    if (first && *stream_.next_in != 0x1f) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, ": is not gzip data though its name ends in .gz; rename it or compress it"));
    }
    while (*stream_.next_in == 0) {
      ++stream_.next_in;
      if (--stream_.avail_in > 0) continue;
      TRANCHE_RETURN_IF_ERROR(Refill());
      if (stream_.avail_in == 0) return false;
    }
    if (*stream_.next_in != 0x1f) return Damaged("garbage after the last compressed member");
    if (!first && inflateReset(&stream_) != Z_OK) return Damaged("cannot start the next member");
    inside_member_ = true;
    return true;
  }

  absl::Status Damaged(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": at byte ", consumed(), ": ", what));
  }

  const std::string path_;
  const std::unique_ptr<ByteSource> file_;
  std::array<char, 1 << 16> input_;
  z_stream stream_{};
  bool ok_ = false;
  bool inside_member_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> ByteSource::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(path, "cannot open");
  std::unique_ptr<ByteSource> plain = std::make_unique<PlainSource>(path, fd);
  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoStatus(path, "cannot stat");
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(path + ": is a folder, a file is needed");
  }
  if (!absl::EndsWithIgnoreCase(path, ".gz")) return plain;
  return std::make_unique<GzipSource>(path, std::move(plain));
}

}  // namespace tranche
