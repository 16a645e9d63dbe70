// The CPU's stream: one worker thread that runs closures in order from a bounded ring, and the
// events between streams. Enqueueing copies the closure into the ring and allocates nothing; where
// the ring is full it blocks until the worker has made room.
//
// Denormal numbers count as zero in a stream, as inputs and as results: on many processors one of
// them costs more than a hundred ordinary products.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/string_view.h"
#include "tensor/backend.h"

namespace tranche::cpu {

// How far a stream has come: the number of closures finished. Shared by the stream and by those who
// wait.
class Progress {
 public:
  void Advance();
  void AwaitAtLeast(uint64_t finished);
  uint64_t finished();

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  uint64_t finished_ = 0;
};

class CpuStream : public Stream {
 public:
  static constexpr size_t kClosureBytes = 768;
  static constexpr uint64_t kCapacity = 512;

  // `threads`: the OpenMP team that the kernels of a computing stream run in; others have one.
  CpuStream(absl::string_view name, StreamKind kind, int threads);
  ~CpuStream() override;  // runs what is enqueued, then ends

  template <typename F>
  void Enqueue(F closure) {
    static_assert(sizeof(F) <= kClosureBytes && alignof(F) <= alignof(std::max_align_t));
    Slot& slot = BeginEnqueue();
    new (slot.storage) F(std::move(closure));
    slot.run_and_destroy = [](void* storage) {
      F* stored = std::launder(static_cast<F*>(storage));
      (*stored)();
      stored->~F();
    };
    EndEnqueue();
  }

  int threads() const { return threads_; }
  uint64_t enqueued();
  const std::shared_ptr<Progress>& progress() const { return progress_; }

 private:
  struct Slot {
    alignas(std::max_align_t) std::byte storage[kClosureBytes];
    void (*run_and_destroy)(void*);
  };

  Slot& BeginEnqueue();  // holds producer_ until EndEnqueue
  void EndEnqueue();
  void Work();

  const std::string name_;
  const StreamKind kind_;
  const int threads_;
  const std::shared_ptr<Progress> progress_;
  std::unique_ptr<std::array<Slot, kCapacity>> ring_;
  std::mutex producer_;  // one thread enqueues at a time
  std::mutex mutex_;
  std::condition_variable work_or_end_;
  uint64_t enqueued_ = 0;
  bool ending_ = false;
  std::thread worker_;
};

// A place in a stream. It keeps no stream alive, but may outlive its own.
class CpuEvent : public Event {
 public:
  void Record(CpuStream& stream);
  void Wait(CpuStream& stream);
  void Synchronize();

 private:
  std::shared_ptr<Progress>
      progress_;  // null before the first Record: then there is nothing to wait for
  uint64_t position_ = 0;
};

}  // namespace tranche::cpu
