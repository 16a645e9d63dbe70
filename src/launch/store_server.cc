#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/units.h"
#include "launch/store_state.h"

namespace tranche {
namespace {

constexpr double kHelloSeconds = 10;  // a connection that has not said hello by then is closed
constexpr size_t kStrangers = 64;     // connections beyond one for each rank
constexpr int kRefusalsLogged = 10;   // a port scan must not fill the log

}  // namespace

std::string RankFailure::Message() const {
  return absl::StrCat("rank ", rank, " failed",
                      phase.empty() ? "" : absl::StrCat(" in phase \"", phase, "\""), ": ", reason);
}

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(const StoreServerOptions& options) {
  TRANCHE_CHECK(options.world_size >= 1);
  absl::StatusOr<FileDescriptor> listener = ListenOn(options.port, options.loopback_only);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<StoreServer>(new StoreServer(options, *std::move(listener)));
}

StoreServer::StoreServer(const StoreServerOptions& options, FileDescriptor listener)
    : options_(options),
      listener_(std::move(listener)),
      port_(LocalPort(listener_)),
      members_(static_cast<size_t>(options.world_size)),
      last_heartbeat_(SteadyClock::now()),
      last_check_(last_heartbeat_),
      thread_([this] { Serve(); }) {}

StoreServer::~StoreServer() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  waker_.Wake();
  thread_.join();
}

std::string StoreServer::phase(int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return members_[static_cast<size_t>(rank)].phase;
}

std::optional<RankFailure> StoreServer::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void StoreServer::RankEnded(int rank, absl::string_view how) {
  std::unique_lock<std::mutex> lock(mutex_);
  members_[static_cast<size_t>(rank)].ended = std::string(how);
  waker_.Wake();
  // Its last words may still be on their way through its connection.
  left_.wait_for(lock, std::chrono::seconds(1), [&] { return !Connected(rank); });
  if (std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.joined; })) {
    Fail(rank, how);
    waker_.Wake();
  }
}

void StoreServer::Serve() {
  SteadyClock::time_point drained_by{};
  for (;;) {
    bool busy;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stop_ && drained_by == SteadyClock::time_point{}) {
        drained_by = SteadyClock::now() + Seconds(2);
      }
      busy = !gatherings_.empty();
    }
    const bool stopping = drained_by != SteadyClock::time_point{};
    const double pause =
        busy ? std::min(0.05, options_.heartbeat_seconds / 2) : options_.heartbeat_seconds / 2;
    const bool something =
        ServeOnce(stopping ? 10 : MillisecondsUntil(SteadyClock::now() + Seconds(pause)));
    if (stopping && (!something || SteadyClock::now() > drained_by)) return;
  }
}

bool StoreServer::ServeOnce(int timeout_ms) {
  std::vector<pollfd> polled = {{waker_.fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& connection : connections_) {
      const bool sends = connection->sent < connection->out.size();
      polled.push_back(
          {connection->fd.get(), static_cast<int16_t>(POLLIN | (sends ? POLLOUT : 0)), 0});
    }
  }
  const int ready = ::poll(polled.data(), polled.size(), timeout_ms);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ready > 0) {
    if (polled[0].revents != 0) waker_.Clear();
    for (size_t i = 0; i + 2 < polled.size(); ++i) {
      if ((polled[i + 2].revents & ~POLLOUT) != 0) Receive(connections_[i].get());
    }
    if (polled[1].revents != 0) Accept();
  }
  CheckTimes();
  bool unsent = false;
  // Rank 0 last: where it serves the store itself, it and this thread may end as soon as it hears.
  std::stable_partition(connections_.begin(), connections_.end(),
                        [](const auto& connection) { return connection->rank != 0; });
  for (const auto& connection : connections_) {
    Flush(connection.get());
    unsent |= connection->sent < connection->out.size() && !connection->gone;
    if (connection->closing && connection->sent == connection->out.size()) connection->gone = true;
  }
  connections_.erase(std::remove_if(connections_.begin(), connections_.end(),
                                    [](const auto& connection) { return connection->gone; }),
                     connections_.end());
  return ready > 0 || unsent;
}

void StoreServer::Accept() {
  for (;;) {
    FileDescriptor fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) return;
    if (connections_.size() >= members_.size() + kStrangers) continue;
    auto connection = std::make_unique<Connection>();
    connection->fd = std::move(fd);
    connection->opened = connection->heard = SteadyClock::now();
    connections_.push_back(std::move(connection));
  }
}

void StoreServer::Receive(Connection* connection) {
  char bytes[65536];
  std::string why;
  // A few reads at a time: one member must not keep the others waiting.
  for (int round = 0; round < 16 && why.empty(); ++round) {
    const ssize_t size = ::recv(connection->fd.get(), bytes, sizeof(bytes), 0);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (size < 0) why = absl::StrCat("its connection broke (", std::strerror(errno), ")");
    if (size == 0) why = "its connection closed";
    if (size <= 0 || connection->closing) continue;
    connection->heard = SteadyClock::now();
    connection->in.Append(absl::string_view(bytes, static_cast<size_t>(size)));
    why = HandleAll(connection);
  }
  if (why.empty()) return;
  connection->gone = true;
  if (connection->rank < 0) return;
  const std::string& ended = members_[static_cast<size_t>(connection->rank)].ended;
  Fail(connection->rank, ended.empty() ? why : ended);
  left_.notify_all();
}

std::string StoreServer::HandleAll(Connection* connection) {
  while (!connection->closing) {
    const auto frame = connection->in.Next(connection->rank < 0 ? kMaxHelloBytes : kMaxMemberBytes);
    if (!frame.ok()) return std::string(frame.status().message());
    if (!frame->has_value()) break;
    if (!Handle(connection, **frame)) return "it sent a message that makes no sense";
  }
  return "";
}

bool StoreServer::Handle(Connection* connection, const Frame& frame) {
  FrameReader body(frame.body);
  if (connection->rank < 0) {
    if (frame.kind != FrameKind::kHello) return false;
    Hello(connection, body);
    return true;
  }
  Member& member = members_[static_cast<size_t>(connection->rank)];
  switch (frame.kind) {
    case FrameKind::kExchange:
    case FrameKind::kGoodbye:
      return Contribute(connection, frame.kind, body);
    case FrameKind::kPhase: {
      std::string phase = body.Bytes(kMaxTextBytes);
      if (!body.Done()) return false;
      member.phase = std::move(phase);
      return true;
    }
    case FrameKind::kFailed: {
      const std::string reason = body.Bytes(kMaxTextBytes);
      if (!body.Done()) return false;
      Fail(connection->rank, reason, /*own_words=*/true);
      return true;
    }
    case FrameKind::kHeartbeat:
      return body.Done();
    default:
      return false;
  }
}

void StoreServer::Hello(Connection* connection, FrameReader body) {
  const std::string magic = body.Bytes(kMaxTextBytes);
  if (magic != kStoreMagic) {
    return Refuse(connection, "the programs are of different versions, or one is another program");
  }
  const std::string secret = body.Bytes(kMaxTextBytes), job = body.Bytes(kMaxTextBytes);
  const uint32_t rank = body.Number(), world_size = body.Number();
  if (!body.Done()) return Refuse(connection, "its hello is damaged");
  if (job != options_.job) {
    return Refuse(connection,
                  absl::StrCat("port ", port_, " of ", HostName(), " belongs to another job (\"",
                               options_.job, "\", not \"", job, "\"); choose another port"));
  }
  if (secret != options_.secret) {
    return Refuse(connection, absl::StrCat("port ", port_, " of ", HostName(),
                                           " belongs to a job of the same name with another "
                                           "secret; choose another port or another job name"));
  }
  if (world_size != members_.size() || rank >= world_size) {
    return Refuse(connection, absl::StrCat("this job has ", members_.size(), " ranks, not ",
                                           world_size, " with a rank ", rank));
  }
  Member& member = members_[rank];
  if (member.joined) {
    return Refuse(connection, Connected(static_cast<int>(rank))
                                  ? absl::StrCat("rank ", rank, " is there twice")
                                  : absl::StrCat("rank ", rank, " was here and is gone"));
  }
  member.joined = true;
  connection->rank = static_cast<int>(rank);
  Send(connection, FrameWriter(FrameKind::kWelcome)
                       .Number(static_cast<uint32_t>(options_.heartbeat_seconds * 1e3))
                       .Number(static_cast<uint32_t>(options_.silence_seconds * 1e3))
                       .Finish());
  for (size_t r = 0; r < members_.size(); ++r) {
    if (!members_[r].ended.empty()) Fail(static_cast<int>(r), members_[r].ended);
  }
  if (failure_.has_value()) Tell(connection);
}

bool StoreServer::Connected(int rank) const {
  return std::any_of(connections_.begin(), connections_.end(), [&](const auto& connection) {
    return connection->rank == rank && !connection->gone;
  });
}

void StoreServer::Refuse(Connection* connection, absl::string_view why) {
  Send(connection, FrameWriter(FrameKind::kRefused).Bytes(why).Finish());
  connection->closing = true;
  if (++refusals_logged_ <= kRefusalsLogged) {
    LogWarning(absl::StrCat("somebody wanted to join this job and was refused: ", why));
  }
}

void StoreServer::Send(Connection* connection, const std::string& frame) {
  if (connection->gone || connection->closing) return;
  connection->out.append(frame);
}

void StoreServer::Flush(Connection* connection) {
  while (connection->sent < connection->out.size() && !connection->gone) {
    const ssize_t size =
        ::send(connection->fd.get(), connection->out.data() + connection->sent,
               connection->out.size() - connection->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (size < 0) {
      // What it sent before it went is still to be read: that tells a goodbye from a failure.
      connection->out.clear();
      connection->sent = 0;
      return;
    }
    connection->sent += static_cast<size_t>(size);
  }
  connection->out.clear();
  connection->sent = 0;
}

void StoreServer::Fail(int rank, absl::string_view reason, bool own_words) {
  if (failure_.has_value() || all_left_) return;
  failure_ =
      RankFailure{rank, members_[static_cast<size_t>(rank)].phase, std::string(reason), own_words};
  gatherings_.clear();
  for (const auto& connection : connections_) {
    if (connection->rank >= 0 && connection->rank != rank) Tell(connection.get());
  }
}

void StoreServer::Tell(Connection* connection) {
  Send(connection, FrameWriter(FrameKind::kFailed)
                       .Number(static_cast<uint32_t>(failure_->rank))
                       .Bytes(failure_->phase)
                       .Bytes(failure_->reason)
                       .Finish());
}

void StoreServer::CheckTimes() {
  const auto now = SteadyClock::now();
  // Where this process itself was stopped, or starved, nobody could be heard.
  if (const auto gap = now - last_check_; gap > Seconds(options_.silence_seconds / 2)) {
    for (const auto& connection : connections_) connection->heard += gap;
  }
  last_check_ = now;
  for (const auto& connection : connections_) {
    if (connection->rank < 0) {
      if (now - connection->opened > Seconds(kHelloSeconds)) connection->gone = true;
    } else if (now - connection->heard > Seconds(options_.silence_seconds) && !failure_ &&
               !all_left_) {
      Fail(connection->rank,
           absl::StrCat("it has not been heard of for ", FormatSeconds(options_.silence_seconds)));
      Tell(connection.get());  // should it wake up
      connection->closing = true;
    }
  }
  if (now - last_heartbeat_ >= Seconds(options_.heartbeat_seconds)) {
    last_heartbeat_ = now;
    const std::string frame = FrameWriter(FrameKind::kHeartbeat).Finish();
    for (const auto& connection : connections_) {
      if (connection->rank >= 0) Send(connection.get(), frame);
    }
  }
  for (auto entry = gatherings_.begin(); entry != gatherings_.end();) {
    entry =
        GiveUpOn(entry->first, entry->second, now) ? gatherings_.erase(entry) : std::next(entry);
  }
}

}  // namespace tranche
