#include "tensor/cpu/stream.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tranche::cpu {
namespace {

// Denormal results are flushed to zero and denormal inputs read as zero: on many processors one of
// them costs more than a hundred ordinary products. Bits 15 and 6 of MXCSR.
void FlushDenormals() {
#if defined(__SSE__)
  _mm_setcsr(_mm_getcsr() | 0x8040u);
#endif
}

// A thread that moves data shares its core with one that computes and has little to do at a time,
// but other ranks wait for that, so it should run when it wakes and not after a computing thread's
// slice of milliseconds. It asks for the shortest slice, which Linux 6.12 and later heed, and for a
// higher priority, which only root or who has RLIMIT_NICE gets: without it a thread that has just
// used more than half of the core still waits. Where a wish is refused, nothing is lost but time.
void RunBeforeComputing() {
  // The kernel's sched_attr in its first version; its header does not go with the C library's.
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attributes = {};
  constexpr uint64_t kNanoseconds = 100'000;  // the least there is
  constexpr int32_t kNice = -10;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  attributes.runtime = kNanoseconds;
  const int32_t nice = std::exchange(attributes.nice, std::min(attributes.nice, kNice));
  if (syscall(SYS_sched_setattr, 0, &attributes, 0) == 0) return;
  attributes.nice = nice;
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

void Progress::Advance() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++finished_;
  }
  moved_.notify_all();
}

void Progress::AwaitAtLeast(uint64_t finished) {
  std::unique_lock<std::mutex> lock(mutex_);
  moved_.wait(lock, [&] { return finished_ >= finished; });
}

uint64_t Progress::finished() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return finished_;
}

CpuStream::CpuStream(absl::string_view name, StreamKind kind, int threads)
    : name_(name),
      kind_(kind),
      threads_(kind == StreamKind::kCompute ? threads : 1),
      progress_(std::make_shared<Progress>()),
      ring_(std::make_unique<std::array<Slot, kCapacity>>()),
      worker_([this] { Work(); }) {
  ::pthread_setname_np(worker_.native_handle(), name_.substr(0, 15).c_str());
}

CpuStream::~CpuStream() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  work_or_end_.notify_one();
  worker_.join();
}

CpuStream::Slot& CpuStream::BeginEnqueue() {
  producer_.lock();
  // Only this thread changes enqueued_ while producer_ is held.
  if (enqueued_ >= kCapacity) progress_->AwaitAtLeast(enqueued_ - kCapacity + 1);
  return (*ring_)[enqueued_ % kCapacity];
}

void CpuStream::EndEnqueue() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++enqueued_;
  }
  work_or_end_.notify_one();
  producer_.unlock();
}

uint64_t CpuStream::enqueued() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return enqueued_;
}

void CpuStream::Work() {
  FlushDenormals();
  if (kind_ == StreamKind::kTransfer) RunBeforeComputing();
  const int threads = threads_;
#pragma omp parallel num_threads(threads)
  FlushDenormals();  // and the team exists before the first operation

  for (uint64_t next = 0;; ++next) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      work_or_end_.wait(lock, [&] { return next < enqueued_ || ending_; });
      if (next == enqueued_) return;
    }
    Slot& slot = (*ring_)[next % kCapacity];
    slot.run_and_destroy(slot.storage);
    progress_->Advance();
  }
}

void CpuEvent::Record(CpuStream& stream) {
  progress_ = stream.progress();
  position_ = stream.enqueued();
}

void CpuEvent::Wait(CpuStream& stream) {
  if (progress_ == nullptr || progress_ == stream.progress()) return;
  stream.Enqueue(
      [progress = progress_, position = position_] { progress->AwaitAtLeast(position); });
}

void CpuEvent::Synchronize() {
  if (progress_ != nullptr) progress_->AwaitAtLeast(position_);
}

}  // namespace tranche::cpu
