#include "launch/orphans.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "base/file.h"
#include "launch/socket.h"

namespace tranche {
namespace {

constexpr char kFolder[] = "/dev/shm";
constexpr char kPrefix[] = "ucx_shm_posix_";

}  // namespace

void RemoveOrphanedSharedMemory() {
  // One at a time: two would take each other for the users of a file.
  const FileDescriptor folder(::open(kFolder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) return;
  const auto names = ListDir(kFolder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, kPrefix)) continue;
    const FileDescriptor file(
        ::openat(folder.get(), name.c_str(), O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    // The kernel grants a write lease on a file only to the one process that has it open, and only
    // to its owner. Should another open it now, SIGIO would end this process; SIGURG does nothing.
    if (file.valid() && ::fcntl(file.get(), F_SETSIG, SIGURG) == 0 &&
        ::fcntl(file.get(), F_SETLEASE, F_WRLCK) == 0) {
      ::unlinkat(folder.get(), name.c_str(), 0);
    }
  }
}

}  // namespace tranche
