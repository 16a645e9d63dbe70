// TCP for the store: descriptors that close themselves, listening, connecting with a deadline. All
// sockets are non-blocking and are not inherited by started programs.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace tranche {

using SteadyClock = std::chrono::steady_clock;

inline SteadyClock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds));
}
// For poll(): at least 0, rounded up, at most an hour.
int MillisecondsUntil(SteadyClock::time_point time);

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// An eventfd that ends a poll() from another thread.
class Waker {
 public:
  Waker();
  void Wake() const;
  void Clear() const;
  int fd() const { return fd_.get(); }

 private:
  FileDescriptor fd_;
};

std::string HostName();  // of this machine; "?" where it has none

// Listens on a port of this host (0: any free one), on every address or on 127.0.0.1 alone. A port
// in use is FailedPrecondition.
absl::StatusOr<FileDescriptor> ListenOn(int port, bool loopback_only);
int LocalPort(const FileDescriptor& socket);

// Tries every address of `host` again and again until one answers. Unavailable, with what the last
// attempt said, where none has by the deadline.
absl::StatusOr<FileDescriptor> ConnectTo(const std::string& host, int port,
                                         SteadyClock::time_point deadline);

}  // namespace tranche
