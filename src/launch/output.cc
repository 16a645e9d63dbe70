#include "launch/output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

namespace tranche {
namespace {

// poll() says of a pipe that so many bytes can be written without waiting.
constexpr size_t kPiece = 4096;

void WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::write(fd, bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(size));
  }
}

}  // namespace

OutputTee::OutputTee(FileDescriptor out, FileDescriptor err, int log)
    : out_(std::move(out)), err_(std::move(err)), log_(log), thread_([this] { Run(); }) {}

OutputTee::~OutputTee() {
  stop_.Wake();
  thread_.join();
}

bool OutputTee::Copy(int from, int to) {
  char bytes[kPiece];
  const ssize_t size = ::read(from, bytes, sizeof(bytes));
  if (size < 0 && errno == EINTR) return true;
  if (size <= 0) return false;
  const absl::string_view text(bytes, static_cast<size_t>(size));
  WriteAll(log_, text);
  // A reader that does not read (a pager) must not keep the launcher from ending.
  pollfd polled[] = {{to, POLLOUT, 0}, {stop_.fd(), POLLIN, 0}};
  while (::poll(polled, 2, -1) < 0 && errno == EINTR) {
  }
  if (polled[0].revents == 0 && ::poll(polled, 1, 1000) <= 0) return false;
  WriteAll(to, text);
  return true;
}

void OutputTee::Run() {
  pollfd polled[] = {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}, {stop_.fd(), POLLIN, 0}};
  auto deadline = SteadyClock::time_point::max();
  while (polled[0].fd >= 0 || polled[1].fd >= 0) {
    const bool stopping = deadline != SteadyClock::time_point::max();
    // Once asked to stop: what is there, but nothing is waited for.
    const int ready = ::poll(polled, 3, stopping ? 0 : -1);
    if (ready < 0 && errno == EINTR) continue;
    if (stopping && (ready <= 0 || SteadyClock::now() > deadline)) return;
    for (const int stream : {0, 1}) {
      if (polled[stream].fd < 0 || polled[stream].revents == 0) continue;
      if (!Copy(polled[stream].fd, stream == 0 ? STDOUT_FILENO : STDERR_FILENO)) {
        polled[stream].fd = -1;
      }
    }
    if (polled[2].fd >= 0 && polled[2].revents != 0) {
      deadline = SteadyClock::now() + Seconds(1);
      polled[2].fd = -1;
    }
  }
}

std::string LastLines(const std::string& path, int lines) {
  constexpr std::streamoff kMost = 8192;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kMost));
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  size_t begin = text.empty() ? 0 : text.size() - (text.back() == '\n' ? 1 : 0);
  for (; begin > 0; --begin) {
    if (text[begin - 1] == '\n' && --lines == 0) break;
  }
  return text.substr(begin);
}

}  // namespace tranche
