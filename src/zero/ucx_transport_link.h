// Messages between ranks over UCP: a worker with an endpoint to every rank, a fixed set of slots
// for messages in flight, and the one wait of all collectives. zero/ucx_transport.cc builds the
// collectives on it.
//
// Endpoints run without UCX's peer error handling, which would turn shared memory off: the end of
// a rank is found by the control plane, which calls Abort, or by the deadline.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "zero/hosts.h"
#include "zero/transport.h"

namespace tranche {

class UcxLink {
 public:
  // Collective: exchanges addresses with all ranks.
  static absl::StatusOr<std::unique_ptr<UcxLink>> Create(int rank, int size,
                                                         const BlobExchange& exchange,
                                                         const TransportOptions& options);
  ~UcxLink();
  UcxLink(const UcxLink&) = delete;
  UcxLink& operator=(const UcxLink&) = delete;

  // At least so many slots, all idle. Before the first message.
  void Reserve(int slots);

  // A collective starts: `name` (a literal) and `bytes` go into errors, its deadline runs from
  // here. An error where the link has failed.
  absl::Status Begin(const char* name, int64_t bytes);

  // Messages of one `step` of a collective arrive in the order they were sent. `slot` must be idle;
  // it and the memory are taken until it is idle again.
  void Send(int slot, int peer, int step, const void* data, int64_t bytes);
  void Receive(int slot, int peer, int step, void* data, int64_t bytes);
  bool Idle(int slot) const { return !slots_[slot].busy; }

  // Returns after some message has arrived or left. An error, past the deadline or after Abort or a
  // fault, is for good: messages in flight are given up and memory is touched no more.
  absl::Status Advance();
  // Advances until no message is in flight.
  absl::Status Drain();

  const Hosts& hosts() const { return hosts_; }
  bool one_host() const { return hosts_.count() == 1; }  // all ranks share memory

  void Abort(const absl::Status& why);  // from any thread

 private:
  struct Slot {
    UcxLink* link = nullptr;
    void* request = nullptr;
    int64_t bytes = 0;
    int peer = 0;
    bool receives = false;
    bool busy = false;
  };
  using Clock = std::chrono::steady_clock;

  UcxLink(int rank, int size, const TransportOptions& options);
  absl::Status Open(const BlobExchange& exchange);
  absl::Status Connect(const BlobExchange& exchange);
  void Post(Slot& slot, ucs_status_ptr_t request);
  void Complete(Slot& slot, ucs_status_t status, int64_t bytes);
  absl::Status Sleep(Clock::time_point now);
  absl::Status Fail(absl::Status why);  // ok: the reason is Abort or a fault
  std::string Collective() const;
  std::string Missing() const;

  const int rank_;
  const TransportOptions options_;
  std::vector<Slot> slots_;
  std::vector<ucp_ep_h> endpoints_;  // by rank; none to itself
  Hosts hosts_ = Hosts::One(1);
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int wake_fd_ = -1;   // written by Abort
  int epoll_fd_ = -1;  // the worker's events and wake_fd_

  uint32_t sequence_ = 0;  // of the collective; part of every tag
  const char* name_ = "";
  int64_t bytes_ = 0;
  Clock::time_point deadline_;
  int64_t in_flight_ = 0;
  int64_t completions_ = 0;
  std::string fault_;       // of a message
  bool peer_lost_ = false;  // the fault is an error of UCX

  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  absl::Status abort_status_;  // guarded by mutex_
  absl::Status failure_;       // once not ok, the worker is not touched again
};

}  // namespace tranche
