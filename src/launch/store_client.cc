#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/units.h"
#include "launch/store.h"

namespace tranche {
namespace {

constexpr double kSlack = 5;  // the store speaks first when an exchange's time is over

absl::string_view Bounded(absl::string_view text) { return text.substr(0, kMaxTextBytes); }

absl::Status NoMessage(const std::string& place) {
  return absl::FailedPreconditionError(absl::StrCat(place,
                                                    " answers, but is no store of tranche: "
                                                    "another program has that port; choose "
                                                    "another port"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreClient>> StoreClient::Connect(
    const StoreClientOptions& options) {
  const auto deadline = SteadyClock::now() + Seconds(options.timeout_seconds);
  absl::StatusOr<FileDescriptor> socket = ConnectTo(options.host, options.port, deadline);
  if (!socket.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", options.rank, ": nobody answers at ", options.host, ":", options.port, " within ",
        FormatSeconds(options.timeout_seconds), " (", socket.status().message(), "); is ",
        options.served_by, " running there, and may this host reach that port?"));
  }
  std::unique_ptr<StoreClient> client(new StoreClient(options, *std::move(socket)));
  absl::Status joined = client->Join(deadline);
  if (!joined.ok()) {
    return absl::Status(joined.code(), absl::StrCat("rank ", options.rank, ": ", joined.message()));
  }
  client->thread_ = std::thread([client = client.get()] { client->Run(); });
  return client;
}

StoreClient::StoreClient(const StoreClientOptions& options, FileDescriptor socket)
    : options_(options), socket_(std::move(socket)) {}

StoreClient::~StoreClient() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  waker_.Wake();
  if (thread_.joinable()) thread_.join();
}

std::string StoreClient::Place() const {
  return absl::StrCat("the store of ", options_.served_by, " at ", options_.host, ":",
                      options_.port);
}

absl::Status StoreClient::Join(SteadyClock::time_point deadline) {
  Send(FrameWriter(FrameKind::kHello)
           .Bytes(kStoreMagic)
           .Bytes(options_.secret)
           .Bytes(options_.job)
           .Number(static_cast<uint32_t>(options_.rank))
           .Number(static_cast<uint32_t>(options_.world_size))
           .Finish());
  for (;;) {
    const auto frame = in_.Next(kMaxHelloBytes);
    if (!frame.ok()) return NoMessage(Place());
    if (frame->has_value()) {
      FrameReader body((*frame)->body);
      if ((*frame)->kind == FrameKind::kRefused) {
        return absl::FailedPreconditionError(
            absl::StrCat(Place(), " refuses it: ", body.Bytes(kMaxTextBytes)));
      }
      heartbeat_ = Seconds(body.Number() / 1e3);
      silence_ = Seconds(body.Number() / 1e3);
      if ((*frame)->kind != FrameKind::kWelcome || !body.Done()) return NoMessage(Place());
      return absl::OkStatus();
    }
    pollfd wait{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&wait, 1, MillisecondsUntil(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      return absl::UnavailableError(absl::StrCat(Place(), " has not answered within ",
                                                 FormatSeconds(options_.timeout_seconds),
                                                 "; does another program have that port?"));
    }
    if (!Receive().ok()) return NoMessage(Place());
  }
}

absl::Status StoreClient::Receive() {
  char bytes[65536];
  for (int round = 0; round < 16; ++round) {
    const ssize_t size = ::recv(socket_.get(), bytes, sizeof(bytes), 0);
    if (size > 0) {
      in_.Append(absl::string_view(bytes, static_cast<size_t>(size)));
      continue;
    }
    // What has come is handled first; an end that comes after it will be seen again.
    if (round > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR))) break;
    return absl::AbortedError(
        absl::StrCat("lost ", Place(), ": its connection ",
                     size == 0 ? "closed" : absl::StrCat("broke (", std::strerror(errno), ")"),
                     ", so ", options_.served_by, " has ended or failed"));
  }
  return absl::OkStatus();
}

void StoreClient::Send(absl::string_view frame) {
  out_.append(frame.data(), frame.size());
  size_t sent = 0;
  while (sent < out_.size()) {
    const ssize_t size =
        ::send(socket_.get(), out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    // A broken connection shows in Receive, after what came before its end.
    if (size < 0) break;
    sent += static_cast<size_t>(size);
  }
  out_.erase(0, sent);
  if (out_.empty()) {
    changed_.notify_all();
  } else {
    waker_.Wake();  // the thread sends the rest
  }
}

void StoreClient::Run() {
  auto heard = SteadyClock::now(), said = heard;
  absl::Status failure;
  for (;;) {
    pollfd polled[] = {{socket_.get(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stop_ || left_) return;
      const bool due = SteadyClock::now() - said >= heartbeat_;
      if (due) said = SteadyClock::now();
      if (due || !out_.empty()) Send(due ? FrameWriter(FrameKind::kHeartbeat).Finish() : "");
      waker_.Clear();  // what it was woken for has been seen
      if (!out_.empty()) polled[0].events |= POLLOUT;
    }
    const auto before = SteadyClock::now();
    ::poll(polled, 2, MillisecondsUntil(before + heartbeat_ / 2));
    const auto now = SteadyClock::now();
    // Where this process itself was stopped, or starved, it could hear nothing.
    if (now - before > silence_ / 2) heard = now;
    if ((polled[0].revents & ~POLLOUT) != 0) {
      failure = Receive();
      heard = now;
    } else if (now - heard > silence_) {
      failure = absl::AbortedError(
          absl::StrCat("lost ", Place(), ": nothing heard for ",
                       FormatSeconds(std::chrono::duration<double>(silence_).count()), "; ",
                       options_.served_by, " hangs, or the network is cut"));
    }
    while (failure.ok()) {
      const auto frame = in_.Next(kMaxStoreBytes);
      if (frame.ok() && !frame->has_value()) break;
      failure = frame.ok() ? Handle(**frame) : frame.status();
    }
    if (!failure.ok()) break;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (left_) return;
    failure_ = failure;
    changed_.notify_all();
  }
  if (options_.on_failure) options_.on_failure(failure);
}

absl::Status StoreClient::Handle(const Frame& frame) {
  FrameReader body(frame.body);
  const std::string name =
      frame.kind == FrameKind::kGathered || frame.kind == FrameKind::kNotGathered
          ? body.Bytes(kMaxTextBytes)
          : "";
  Result result = std::vector<std::string>();
  switch (frame.kind) {
    case FrameKind::kHeartbeat:
      return absl::OkStatus();
    case FrameKind::kFailed: {
      RankFailure failure;
      failure.rank = static_cast<int>(body.Number());
      failure.phase = body.Bytes(kMaxTextBytes);
      failure.reason = body.Bytes(kMaxTextBytes);
      return absl::AbortedError(failure.Message());
    }
    case FrameKind::kGathered: {
      const uint32_t count = body.Number();
      for (uint32_t i = 0; i < count && body.ok(); ++i)
        result->push_back(body.Bytes(kMaxBlobBytes));
      if (!body.Done() || count != static_cast<uint32_t>(options_.world_size)) {
        return NoMessage(Place());
      }
      break;
    }
    case FrameKind::kNotGathered:
      result = absl::DeadlineExceededError(body.Bytes(64 * kMaxTextBytes));
      break;
    default:
      return NoMessage(Place());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  left_ |= frame.kind == FrameKind::kGathered && name == kGoodbyeName;
  if (const auto waiting = waiting_.find(name); waiting != waiting_.end()) {
    waiting->second = std::move(result);
    changed_.notify_all();
  }
  return absl::OkStatus();
}

StoreClient::Result StoreClient::Gather(FrameKind kind, absl::string_view name,
                                        absl::string_view mine, double timeout_seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  TRANCHE_CHECK(name.size() <= kMaxTextBytes && mine.size() <= kMaxBlobBytes) << name;
  const auto inserted = waiting_.try_emplace(std::string(name));
  const auto waiting = inserted.first;
  TRANCHE_CHECK(inserted.second) << "two exchanges \"" << name << "\" at once";
  Send(FrameWriter(kind)
           .Bytes(name)
           .Number(static_cast<uint32_t>(timeout_seconds * 1e3))
           .Bytes(mine)
           .Finish());
  changed_.wait_until(lock, SteadyClock::now() + Seconds(timeout_seconds + kSlack),
                      [&] { return waiting->second.has_value() || !failure_.ok(); });
  Result result = waiting->second.has_value() ? *std::move(waiting->second)
                  : !failure_.ok()            ? Result(failure_)
                                              : Result(absl::DeadlineExceededError(absl::StrCat(
                                                    Place(), " has not answered to \"", name, "\" within ",
                                                    FormatSeconds(timeout_seconds + kSlack))));
  waiting_.erase(waiting);
  return result;
}

absl::StatusOr<std::vector<std::string>> StoreClient::Exchange(absl::string_view name,
                                                               absl::string_view mine) {
  TRANCHE_CHECK(name != kGoodbyeName);
  return Gather(FrameKind::kExchange, name, mine, options_.timeout_seconds);
}

void StoreClient::SetPhase(absl::string_view phase) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Send(FrameWriter(FrameKind::kPhase).Bytes(Bounded(phase)).Finish());
}

void StoreClient::ReportFailure(absl::string_view message) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.ok() || left_) return;
  Send(FrameWriter(FrameKind::kFailed).Bytes(Bounded(message)).Finish());
  changed_.wait_until(lock, SteadyClock::now() + Seconds(1),
                      [&] { return out_.empty() || !failure_.ok(); });
}

absl::Status StoreClient::Goodbye(double timeout_seconds) {
  return Gather(FrameKind::kGoodbye, kGoodbyeName, "", timeout_seconds).status();
}

}  // namespace tranche
