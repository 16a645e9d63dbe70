#include "launch/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tranche {
namespace {

absl::StatusOr<FileDescriptor> Listen(int family, int port, bool loopback_only) {
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::UnavailableError(absl::StrCat("socket: ", std::strerror(errno)));
  const int on = 1, off = 0;
  // A port whose last owner has just ended may be taken again at once; one in use may not.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(port));
  v4.sin_addr.s_addr = htonl(loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port;
  v6.sin6_addr = in6addr_any;
  if (family == AF_INET6) {
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  const sockaddr* address = family == AF_INET6 ? reinterpret_cast<const sockaddr*>(&v6)
                                               : reinterpret_cast<const sockaddr*>(&v4);
  const socklen_t size = family == AF_INET6 ? sizeof(v6) : sizeof(v4);
  if (::bind(fd.get(), address, size) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) return fd;
  if (errno == EADDRINUSE) {
    return absl::FailedPreconditionError(
        absl::StrCat("port ", port,
                     " of this host is in use: another job runs here, or another program listens "
                     "there; choose another port"));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on port ", port, ": ", std::strerror(errno)));
}

// One attempt on one address.
absl::StatusOr<FileDescriptor> Connect(const addrinfo& address, SteadyClock::time_point deadline) {
  FileDescriptor fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::UnavailableError(std::strerror(errno));
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS) return absl::UnavailableError(std::strerror(errno));
  pollfd wait{.fd = fd.get(), .events = POLLOUT, .revents = 0};
  while (::poll(&wait, 1, MillisecondsUntil(deadline)) < 0 && errno == EINTR) {
  }
  if (wait.revents == 0) return absl::UnavailableError("no answer");
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return absl::UnavailableError(std::strerror(error));
  return fd;
}

}  // namespace

int MillisecondsUntil(SteadyClock::time_point time) {
  using std::chrono::milliseconds;
  const auto left = std::chrono::ceil<milliseconds>(time - SteadyClock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Waker::Waker() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TRANCHE_CHECK(fd_.valid()) << "eventfd: " << std::strerror(errno);
}

void Waker::Wake() const {
  const uint64_t one = 1;
  (void)!::write(fd_.get(), &one, sizeof(one));
}

void Waker::Clear() const {
  uint64_t count = 0;
  (void)!::read(fd_.get(), &count, sizeof(count));
}

std::string HostName() {
  char name[256] = "?";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

absl::StatusOr<FileDescriptor> ListenOn(int port, bool loopback_only) {
  if (!loopback_only) {
    absl::StatusOr<FileDescriptor> both = Listen(AF_INET6, port, false);
    if (both.ok() || both.status().code() == absl::StatusCode::kFailedPrecondition) return both;
  }
  return Listen(AF_INET, port, loopback_only);
}

int LocalPort(const FileDescriptor& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  TRANCHE_CHECK(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

absl::StatusOr<FileDescriptor> ConnectTo(const std::string& host, int port,
                                         SteadyClock::time_point deadline) {
  std::string last = "no attempt";
  auto pause = Seconds(0.01);
  do {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    // localhost is this host even where nothing says so, as in a container without /etc/hosts (RFC
    // 6761); no name at all asks for just that.
    const char* const name = host == "localhost" ? nullptr : host.c_str();
    const int code = ::getaddrinfo(name, absl::StrCat(port).c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
    if (code != 0) last = absl::StrCat("its name: ", ::gai_strerror(code));
    for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
      absl::StatusOr<FileDescriptor> fd =
          Connect(*address, std::min(deadline, SteadyClock::now() + Seconds(5)));
      if (fd.ok()) return fd;
      last = std::string(fd.status().message());
    }
    std::this_thread::sleep_for(std::min(pause, deadline - SteadyClock::now()));
    pause = std::min(pause * 2, Seconds(0.5));
  } while (SteadyClock::now() < deadline);
  return absl::UnavailableError(last);
}

}  // namespace tranche
