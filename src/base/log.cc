#include "base/log.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace tranche {
namespace {

void Write(absl::string_view level, absl::string_view color, absl::string_view message) {
  // One write per line, so that lines of several threads or processes do not mix.
  const std::string line = UseColor(STDERR_FILENO)
                               ? absl::StrCat(color, level, ": \x1b[0m", message, "\n")
                               : absl::StrCat(level, ": ", message, "\n");
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void LogNote(absl::string_view message) { Write("note", "\x1b[36m", message); }
void LogWarning(absl::string_view message) { Write("warning", "\x1b[33m", message); }
void LogError(absl::string_view message) { Write("error", "\x1b[31m", message); }

bool TakesEscapes(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && (term == nullptr || absl::string_view(term) != "dumb");
}

bool UseColor(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return TakesEscapes(fd) && (no_color == nullptr || *no_color == '\0');
}

}  // namespace tranche
