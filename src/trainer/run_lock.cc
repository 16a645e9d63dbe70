#include "trainer/run_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/log.h"
#include "launch/socket.h"

namespace tranche {
namespace {

std::string ReadOwner(int fd) {
  char text[512];
  const ssize_t size = ::pread(fd, text, sizeof(text), 0);
  if (size <= 0) return "";
  return std::string(absl::StripSuffix(absl::string_view(text, static_cast<size_t>(size)), "\n"));
}

}  // namespace

absl::StatusOr<RunLock> RunLock::Acquire(const std::string& directory) {
  const std::string path = JoinPath(directory, "run.lock");
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return ErrnoStatus(path, "cannot open");
  RunLock lock(fd);

  struct flock whole_file = {};
  whole_file.l_type = F_WRLCK;
  whole_file.l_whence = SEEK_SET;
  if (::fcntl(fd, F_OFD_SETLK, &whole_file) != 0) {
    if (errno != EAGAIN && errno != EACCES) return ErrnoStatus(path, "cannot lock");
    const std::string owner = ReadOwner(fd);
    return absl::FailedPreconditionError(
        absl::StrCat(directory, ": another run writes here (",
                     owner.empty() ? "its owner starts just now" : owner,
                     "); wait for it, stop it, or give this run another run.output_dir"));
  }
  const std::string dead = ReadOwner(fd);
  const std::string owner = absl::StrCat("host ", HostName(), ", pid ", ::getpid(), "\n");
  if (::ftruncate(fd, 0) != 0 ||
      ::pwrite(fd, owner.data(), owner.size(), 0) != static_cast<ssize_t>(owner.size())) {
    return ErrnoStatus(path, "cannot write");
  }
  if (!dead.empty()) {
    LogNote(absl::StrCat(directory, ": the last run here (", dead,
                         ") did not end by itself; taking over"));
  }
  return lock;
}

RunLock::RunLock(RunLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

RunLock::~RunLock() {
  if (fd_ < 0) return;
  // Emptied, not removed: a name that goes away could be locked twice, under its old and a new
  // file.
  struct flock state = {};
  state.l_type = F_WRLCK;
  state.l_whence = SEEK_SET;
  if (::fcntl(fd_, F_OFD_SETLK, &state) == 0) (void)!::ftruncate(fd_, 0);
  ::close(fd_);
}

}  // namespace tranche
