#include "zero/ucx_transport_link.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status.h"
#include "base/units.h"

namespace tranche {
namespace {

using Seconds = std::chrono::duration<double>;

// How long an idle wait polls before it sleeps: a wake-up costs about 10 us. Between polls it
// offers its core to others: where ranks share cores, the rank that is awaited may need this one.
// Over a network the next message is rarely that near, and the system's own work for it needs the
// core.
constexpr auto kHostPollTime = std::chrono::microseconds(50);
constexpr auto kNetworkPollTime = std::chrono::microseconds(5);
// The longest sleep without a look at the deadline and the worker.
constexpr auto kLongestSleep = std::chrono::milliseconds(100);
// A message may find out that a rank is dead before the control plane does, which knows the better
// words: that notices a dead rank within five seconds.
constexpr auto kControlPlaneTime = std::chrono::milliseconds(6000);
// What messages in flight get to end in after a failure, and the last ones before the end.
constexpr auto kGrace = std::chrono::milliseconds(500);

// UCX's constructor takes these signals, before main, in every program that it is linked to: a
// hang-up no longer ends the process, a crash prints UCX's backtrace. Gives them back, unless the
// user's environment asks for them.
const bool signals_given_back = [] {
  if (std::getenv("UCX_ERROR_SIGNALS") == nullptr && std::getenv("UCX_HANDLE_ERRORS") == nullptr) {
    for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
  }
  if (std::getenv("UCX_DEBUG_SIGNO") == nullptr) ucs_debug_disable_signal(SIGHUP);
  return true;
}();

// From then on UCX warns of every message that was not delivered, which nobody needs to know.
std::atomic<bool> a_link_has_failed = false;

// Without UCX's error handling a message to or from a dead process is a fatal line in its log,
// which ends this process too. The line is left out; the message then ends with an error.
const bool lines_left_out = [] {
  ucs_log_push_handler([](const char*, unsigned, const char*, ucs_log_level_t level,
                          const ucs_log_component_config_t*, const char*, va_list) {
    return level == UCS_LOG_LEVEL_FATAL || a_link_has_failed ? UCS_LOG_FUNC_RC_STOP
                                                             : UCS_LOG_FUNC_RC_CONTINUE;
  });
  return true;
}();

absl::Status UcxError(absl::string_view what, ucs_status_t status) {
  return absl::UnavailableError(absl::StrCat("UCX: ", what, ": ", ucs_status_string(status)));
}

// Unless the user's environment says otherwise.
absl::Status Configure(ucp_config_t* config, const char* key, const char* value) {
  if (std::getenv(absl::StrCat("UCX_", key).c_str()) != nullptr) return absl::OkStatus();
  const ucs_status_t status = ucp_config_modify(config, key, value);
  return status == UCS_OK ? absl::OkStatus() : UcxError(absl::StrCat("setting ", key), status);
}

absl::StatusOr<std::vector<std::string>> ExchangeAll(const BlobExchange& exchange,
                                                     absl::string_view name, absl::string_view mine,
                                                     size_t size) {
  TRANCHE_ASSIGN_OR_RETURN(std::vector<std::string> blobs, exchange(name, mine));
  if (blobs.size() == size) return blobs;
  return absl::InternalError(
      absl::StrCat("exchanging \"", name, "\" gave ", blobs.size(), " for ", size, " ranks"));
}

uint64_t Tag(uint32_t sequence, int step, int source) {
  return (uint64_t{sequence} << 32) | (static_cast<uint64_t>(step) << 16) |
         static_cast<uint64_t>(source);
}

}  // namespace

UcxLink::UcxLink(int rank, int size, const TransportOptions& options)
    : rank_(rank), options_(options), endpoints_(size, nullptr) {
  TRANCHE_CHECK(signals_given_back && lines_left_out);
}

absl::StatusOr<std::unique_ptr<UcxLink>> UcxLink::Create(int rank, int size,
                                                         const BlobExchange& exchange,
                                                         const TransportOptions& options) {
  TRANCHE_CHECK(size > 0 && size <= 0x10000 && rank >= 0 && rank < size) << rank << ' ' << size;
  std::unique_ptr<UcxLink> link(new UcxLink(rank, size, options));
  TRANCHE_RETURN_IF_ERROR(link->Open(exchange));
  TRANCHE_RETURN_IF_ERROR(link->Connect(exchange));
  return link;
}

absl::Status UcxLink::Open(const BlobExchange& exchange) {
  TRANCHE_ASSIGN_OR_RETURN(const std::string system_host, HostIdentity());
  const std::string& host = options_.host.empty() ? system_host : options_.host;
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                           ExchangeAll(exchange, "hosts", host, endpoints_.size()));
  hosts_ = Hosts::Of(hosts);
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxError("reading its configuration", status);
  // The receiver reads: then nothing is written into a rank's memory that it does not ask for.
  absl::Status configured = Configure(config, "RNDV_SCHEME", "get_zcopy");
  // A network that no message takes would still be polled and armed in every wait.
  if (configured.ok() && one_host()) configured = Configure(config, "TLS", "shm,self");
  if (configured.ok()) {
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    params.estimated_num_eps = endpoints_.size();
    status = ucp_init(&params, config, &context_);
  }
  ucp_config_release(config);
  TRANCHE_RETURN_IF_ERROR(configured);
  if (status != UCS_OK) return UcxError("start", status);

  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(context_, &params, &worker_);
  if (status != UCS_OK) return UcxError("creating a worker", status);
  int worker_fd = -1;
  status = ucp_worker_get_efd(worker_, &worker_fd);
  if (status != UCS_OK) return UcxError("the worker's events", status);

  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  for (const int fd : {worker_fd, wake_fd_}) {
    epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
      return absl::ErrnoToStatus(errno, "waiting for UCX's events");
    }
  }
  return absl::OkStatus();
}

absl::Status UcxLink::Connect(const BlobExchange& exchange) {
  ucp_address_t* address = nullptr;
  size_t length = 0;
  ucs_status_t status = ucp_worker_get_address(worker_, &address, &length);
  if (status != UCS_OK) return UcxError("the worker's address", status);
  const std::string mine(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                           ExchangeAll(exchange, "ucx", mine, endpoints_.size()));
  for (size_t peer = 0; peer < addresses.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(addresses[peer].data());
    status = ucp_ep_create(worker_, &params, &endpoints_[peer]);
    if (status != UCS_OK) return UcxError(absl::StrCat("connecting to rank ", peer), status);
  }
  return absl::OkStatus();
}

UcxLink::~UcxLink() {
  // The last messages of a healthy link may still wait in this process.
  if (worker_ != nullptr && failure_.ok()) {
    const ucp_request_param_t params = {};
    void* flush = ucp_worker_flush_nbx(worker_, &params);
    if (UCS_PTR_IS_PTR(flush)) {
      const auto end = Clock::now() + kGrace;
      while (ucp_request_check_status(flush) == UCS_INPROGRESS && Clock::now() < end) {
        ucp_worker_progress(worker_);
      }
      ucp_request_free(flush);
    }
  }
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
  if (epoll_fd_ >= 0) close(epoll_fd_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

void UcxLink::Reserve(int slots) {
  TRANCHE_CHECK(in_flight_ == 0);
  slots_.resize(std::max(slots_.size(), static_cast<size_t>(slots)));
}

absl::Status UcxLink::Begin(const char* name, int64_t bytes) {
  if (!failure_.ok()) return failure_;
  name_ = name;
  bytes_ = bytes;
  ++sequence_;
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                 Seconds(std::min(options_.timeout_seconds, 1e9)));
  return aborted_ ? Fail({}) : absl::OkStatus();
}

void UcxLink::Send(int slot, int peer, int step, const void* data, int64_t bytes) {
  Slot& message = slots_[slot];
  TRANCHE_CHECK(!message.busy);
  message = {.link = this, .bytes = bytes, .peer = peer, .receives = false, .busy = true};
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.user_data = &message;
  params.cb.send = [](void*, ucs_status_t status, void* user_data) {
    auto& done = *static_cast<Slot*>(user_data);
    done.link->Complete(done, status, done.bytes);
  };
  ++in_flight_;
  Post(message, ucp_tag_send_nbx(endpoints_[peer], data, static_cast<size_t>(bytes),
                                 Tag(sequence_, step, rank_), &params));
}

void UcxLink::Receive(int slot, int peer, int step, void* data, int64_t bytes) {
  Slot& message = slots_[slot];
  TRANCHE_CHECK(!message.busy);
  message = {.link = this, .bytes = bytes, .peer = peer, .receives = true, .busy = true};
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.user_data = &message;
  params.cb.recv = [](void*, ucs_status_t status, const ucp_tag_recv_info_t* info,
                      void* user_data) {
    auto& done = *static_cast<Slot*>(user_data);
    done.link->Complete(done, status, static_cast<int64_t>(info->length));
  };
  ++in_flight_;
  Post(message, ucp_tag_recv_nbx(worker_, data, static_cast<size_t>(bytes),
                                 Tag(sequence_, step, peer), ~uint64_t{0}, &params));
}

void UcxLink::Post(Slot& slot, ucs_status_ptr_t request) {
  if (UCS_PTR_IS_PTR(request)) {
    slot.request = request;
    // A callback may have run inside the call, before the request was known.
    if (!slot.busy) {
      ucp_request_free(request);
      slot.request = nullptr;
    }
  } else {
    Complete(slot, UCS_PTR_STATUS(request), slot.bytes);
  }
}

void UcxLink::Complete(Slot& slot, ucs_status_t status, int64_t bytes) {
  if (status != UCS_OK && status != UCS_ERR_CANCELED && fault_.empty()) {
    peer_lost_ = true;
    fault_ = absl::StrCat(slot.receives ? "a message from" : "a message to", " rank ", slot.peer,
                          ": ", ucs_status_string(status));
  } else if (status == UCS_OK && bytes != slot.bytes && fault_.empty()) {
    fault_ = absl::StrCat("rank ", slot.peer, " sent ", bytes, " bytes where ", slot.bytes,
                          " were expected: the ranks are not in the same collective");
  }
  if (slot.request != nullptr) ucp_request_free(slot.request);
  slot.request = nullptr;
  slot.busy = false;
  --in_flight_;
  ++completions_;
}

absl::Status UcxLink::Advance() {
  if (!failure_.ok()) return failure_;
  const int64_t before = completions_;
  const auto poll_time = one_host() ? kHostPollTime : kNetworkPollTime;
  Clock::time_point idle_since;
  for (int64_t idle_polls = 0;;) {
    const bool moved = ucp_worker_progress(worker_) != 0;
    if (!fault_.empty()) return Fail({});
    if (aborted_) return Fail({});
    if (completions_ != before) return absl::OkStatus();
    const Clock::time_point now = Clock::now();
    if (now >= deadline_) {
      return Fail(absl::DeadlineExceededError(
          absl::StrCat("no end after ", FormatSeconds(options_.timeout_seconds))));
    }
    idle_polls = moved ? 0 : idle_polls + 1;
    if (idle_polls <= 1) {
      idle_since = now;
    } else if (now - idle_since > poll_time) {
      TRANCHE_RETURN_IF_ERROR(Sleep(now));
      idle_polls = 0;
    } else {
      sched_yield();
    }
  }
}

absl::Status UcxLink::Drain() {
  while (in_flight_ > 0) TRANCHE_RETURN_IF_ERROR(Advance());
  return fault_.empty() ? absl::OkStatus() : Fail({});
}

absl::Status UcxLink::Sleep(Clock::time_point now) {
  const ucs_status_t armed = ucp_worker_arm(worker_);
  if (armed == UCS_ERR_BUSY) return absl::OkStatus();  // something has arrived
  if (armed != UCS_OK) return Fail(UcxError("arming the worker", armed));
  const auto sleep = std::chrono::ceil<std::chrono::milliseconds>(
      std::min<Clock::duration>(deadline_ - now, kLongestSleep));
  std::array<epoll_event, 2> events;
  // Interrupted or not: the caller looks for itself.
  (void)epoll_wait(epoll_fd_, events.data(), events.size(), static_cast<int>(sleep.count()));
  return absl::OkStatus();
}

std::string UcxLink::Collective() const {
  return absl::StrCat(name_, bytes_ > 0 ? absl::StrCat(" of ", FormatBytes(bytes_)) : "");
}

std::string UcxLink::Missing() const {
  std::set<int> senders;
  std::set<int> receivers;
  for (const Slot& slot : slots_) {
    if (slot.busy) (slot.receives ? senders : receivers).insert(slot.peer);
  }
  const std::set<int>& missing = senders.empty() ? receivers : senders;
  if (missing.empty()) return "";
  return absl::StrCat("; still waiting for rank", missing.size() > 1 ? "s " : " ",
                      absl::StrJoin(missing, ", "), senders.empty() ? " to receive" : " to send");
}

absl::Status UcxLink::Fail(absl::Status why) {
  a_link_has_failed = true;
  if (peer_lost_ && !aborted_) {
    pollfd woken = {wake_fd_, POLLIN, 0};
    (void)::poll(&woken, 1, static_cast<int>(kControlPlaneTime.count()));
  }
  if (aborted_) {
    const std::lock_guard lock(mutex_);
    why = abort_status_;
  } else if (why.ok()) {
    why = absl::UnavailableError(fault_);
  }
  failure_ = absl::Status(
      why.code(), absl::StrCat(Collective(), " on rank ", rank_, ": ", why.message(), Missing()));
  // Receives are taken back before memory is the caller's again. One that is under way ends in
  // progress alone, and there is none after this.
  for (Slot& slot : slots_) {
    if (slot.busy && slot.receives && slot.request != nullptr) {
      ucp_request_cancel(worker_, slot.request);
    }
  }
  const auto receiving = [&] {
    return std::any_of(slots_.begin(), slots_.end(),
                       [](const Slot& slot) { return slot.busy && slot.receives; });
  };
  const auto end = Clock::now() + kGrace;
  while (receiving() && Clock::now() < end) ucp_worker_progress(worker_);
  return failure_;
}

void UcxLink::Abort(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return;
  a_link_has_failed = true;
  abort_status_ = why.ok() ? absl::CancelledError("aborted") : why;
  aborted_ = true;
  constexpr uint64_t kOne = 1;
  (void)!write(wake_fd_, &kOne, sizeof kOne);
}

}  // namespace tranche
