#include "trainer/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"

namespace tranche {

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Open(const std::string& path) {
  int64_t attempt = 1;
  bool open_line = false;
  if (FileExists(path)) {
    TRANCHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    for (const absl::string_view line : absl::StrSplit(file.data(), '\n')) {
      if (absl::StartsWith(line, R"({"event":"start")")) ++attempt;
    }
    open_line = !file.data().empty() && file.data().back() != '\n';
  }
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return ErrnoStatus(path, "cannot open");
  std::unique_ptr<MetricsLog> log(new MetricsLog(path, fd, attempt));
  if (open_line) log->Append("");
  return log;
}

MetricsLog::~MetricsLog() { ::close(fd_); }

void MetricsLog::Append(absl::string_view line) {
  const std::string text = absl::StrCat(line, "\n");
  if (::write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size()) || failed_) {
    return;
  }
  failed_ = true;
  LogWarning(absl::StrCat(ErrnoStatus(path_, "cannot write").message(),
                          "; the run goes on, its metrics have gaps"));
}

}  // namespace tranche
