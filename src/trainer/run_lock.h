// One run per directory: a lock file that names its owner's host and process.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tranche {

// Held until destroyed. The lock is the kernel's (an open-file-description lock, which network file
// systems carry across hosts), so it ends with its owner, however that died; the file's text only
// says who it is.
class RunLock {
 public:
  // Locks DIRECTORY/run.lock; the directory exists. FailedPrecondition, naming the owner's host and
  // pid, where another process holds it. The lock of an owner that died is taken over with a line.
  static absl::StatusOr<RunLock> Acquire(const std::string& directory);

  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();

 private:
  explicit RunLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace tranche
