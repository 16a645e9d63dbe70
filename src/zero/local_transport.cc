// Ranks that are threads of one process. A collective is: all arrive and show their memory, each
// does its own share by copying or summing, all leave.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status.h"
#include "base/units.h"
#include "zero/rank_sum.h"
#include "zero/transport.h"

namespace tranche {
namespace {

class Meeting {
 public:
  explicit Meeting(int size) : memory_(size), here_(size, false) {}

  int size() const { return static_cast<int>(memory_.size()); }

  // Waits for all ranks. A rank that gives up (its deadline, `give_up`) is withdrawn again.
  absl::Status Arrive(int rank, const void* memory, double timeout_seconds,
                      const absl::Status& give_up, const std::string& what) {
    std::unique_lock lock(mutex_);
    if (!give_up.ok()) return Named(give_up, what, rank);
    memory_[rank] = memory;
    here_[rank] = true;
    const int64_t round = round_;
    if (++arrived_ == size()) {
      arrived_ = 0;
      inside_ = size();
      here_.assign(here_.size(), false);
      ++round_;
      changed_.notify_all();
      return absl::OkStatus();
    }
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::duration<double>(std::min(timeout_seconds, 1e9));
    const bool in_time = changed_.wait_until(
        lock, std::chrono::time_point_cast<std::chrono::steady_clock::duration>(deadline),
        [&] { return round_ != round || !give_up.ok(); });
    if (round_ != round) return absl::OkStatus();
    const std::string missing = Missing();
    --arrived_;
    here_[rank] = false;
    if (in_time) return Named(give_up, what, rank);
    return Named(absl::DeadlineExceededError(
                     absl::StrCat("no end after ", FormatSeconds(timeout_seconds), missing)),
                 what, rank);
  }

  // Waits until no rank needs another's memory any more. All are at work, none waits for events:
  // this ends soon whatever happens.
  void Leave() {
    std::unique_lock lock(mutex_);
    const int64_t round = left_round_;
    if (--inside_ == 0) {
      ++left_round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return left_round_ != round; });
  }

  const void* memory(int rank) const { return memory_[rank]; }

  void GiveUp(absl::Status& give_up, const absl::Status& why) {
    const std::lock_guard lock(mutex_);
    if (give_up.ok()) give_up = why.ok() ? absl::CancelledError("aborted") : why;
    changed_.notify_all();
  }

 private:
  static absl::Status Named(const absl::Status& why, const std::string& what, int rank) {
    return absl::Status(why.code(), absl::StrCat(what, " on rank ", rank, ": ", why.message()));
  }

  std::string Missing() const {
    std::vector<int> missing;
    for (int r = 0; r < size(); ++r) {
      if (!here_[r]) missing.push_back(r);
    }
    return absl::StrCat("; still waiting for rank", missing.size() > 1 ? "s " : " ",
                        absl::StrJoin(missing, ", "));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const void*> memory_;  // by rank
  std::vector<bool> here_;
  int arrived_ = 0;
  int inside_ = 0;
  int64_t round_ = 0;
  int64_t left_round_ = 0;
};

class LocalTransport : public Transport {
 public:
  LocalTransport(int rank, std::shared_ptr<Meeting> meeting, const TransportOptions& options)
      : rank_(rank), meeting_(std::move(meeting)), options_(options), parts_(meeting_->size()) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }

  absl::Status AllGather(void* out, const void* mine, int64_t bytes) override {
    return Together("all_gather", bytes * size(), mine, [&] {
      for (int r = 0; r < size(); ++r) {
        std::byte* part = static_cast<std::byte*>(out) + r * bytes;
        if (part != meeting_->memory(r)) std::memcpy(part, meeting_->memory(r), bytes);
      }
    });
  }

  absl::Status ReduceScatter(float* out, const void* in, DType dtype, int64_t n,
                             bool accumulate) override {
    return Together("reduce_scatter", n * SizeOf(dtype) * size(), in, [&] {
      for (int r = 0; r < size(); ++r) {
        parts_[r] = static_cast<const std::byte*>(meeting_->memory(r)) + rank_ * n * SizeOf(dtype);
      }
      SumInRankOrder(out, parts_, dtype, n, accumulate);
    });
  }

  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    TRANCHE_CHECK(root >= 0 && root < size()) << root;
    return Together("broadcast", bytes, data, [&] {
      if (rank_ != root) std::memcpy(data, meeting_->memory(root), bytes);
    });
  }

  absl::Status Barrier() override {
    return Together("barrier", 0, nullptr, [] {});
  }

  void Abort(const absl::Status& why) override { meeting_->GiveUp(abort_status_, why); }

 private:
  template <class Work>
  absl::Status Together(const char* name, int64_t bytes, const void* memory, const Work& work) {
    if (!failure_.ok()) return failure_;
    failure_ = meeting_->Arrive(
        rank_, memory, options_.timeout_seconds, abort_status_,
        absl::StrCat(name, bytes > 0 ? " of " : "", bytes > 0 ? FormatBytes(bytes) : ""));
    if (!failure_.ok()) return failure_;
    work();
    meeting_->Leave();
    return absl::OkStatus();
  }

  const int rank_;
  const std::shared_ptr<Meeting> meeting_;
  const TransportOptions options_;
  std::vector<const void*> parts_;
  absl::Status failure_;
  absl::Status abort_status_;  // guarded by the meeting
};

}  // namespace

std::vector<std::unique_ptr<Transport>> CreateLocalTransports(int size,
                                                              const TransportOptions& options) {
  auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(std::make_unique<LocalTransport>(rank, meeting, options));
  }
  return transports;
}

}  // namespace tranche
