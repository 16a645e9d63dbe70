#include "data/tokenizer_trainer_count.h"

#include <algorithm>
#include <deque>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace tranche {
namespace {

constexpr size_t kBatchBytes = 1 << 18;

using Batch = std::vector<std::string>;
using Counts = absl::flat_hash_map<std::string, int64_t>;

// Batches of documents from one reader to many counters; the reader waits where they are behind.
class BatchQueue {
 public:
  explicit BatchQueue(size_t capacity) : capacity_(capacity) {}

  void Push(Batch batch) {
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &BatchQueue::HasRoom));
    batches_.push_back(std::move(batch));
  }
  void Close() {
    const absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  bool Pop(Batch* batch) {
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &BatchQueue::HasNews));
    if (batches_.empty()) return false;
    *batch = std::move(batches_.front());
    batches_.pop_front();
    return true;
  }

 private:
  bool HasRoom() const { return batches_.size() < capacity_; }
  bool HasNews() const { return closed_ || !batches_.empty(); }

  const size_t capacity_;
  absl::Mutex mutex_;
  std::deque<Batch> batches_;
  bool closed_ = false;
};

}  // namespace

absl::StatusOr<PieceCounts> CountPieces(const DocumentSource& source, const DocumentCutter& cut,
                                        int threads,
                                        absl::FunctionRef<void(int64_t text_bytes)> progress) {
  BatchQueue queue(static_cast<size_t>(threads) * 4);
  std::vector<Counts> counts(threads);
  std::vector<std::thread> counters;
  for (int i = 0; i < threads; ++i) {
    counters.emplace_back([&queue, &cut, mine = &counts[i]] {
      Batch batch;
      while (queue.Pop(&batch)) {
        for (const std::string& document : batch) {
          cut(document, [mine](absl::string_view piece) { ++(*mine)[piece]; });
        }
      }
    });
  }
  PieceCounts result;
  absl::Status status;
  Batch batch;
  size_t batch_bytes = 0;
  for (;;) {
    std::string document;
    const absl::StatusOr<bool> more = source(&document);
    if (!more.ok()) {
      status = more.status();
      break;
    }
    if (*more) {
      ++result.documents;
      result.text_bytes += static_cast<int64_t>(document.size());
      batch_bytes += document.size();
      batch.push_back(std::move(document));
    }
    if (batch_bytes >= kBatchBytes || !*more) {
      queue.Push(std::move(batch));
      batch.clear();
      batch_bytes = 0;
      progress(result.text_bytes);
    }
    if (!*more) break;
  }
  queue.Close();
  for (std::thread& counter : counters) counter.join();
  if (!status.ok()) return status;

  Counts& all = counts[0];
  for (int i = 1; i < threads; ++i) {
    for (const auto& [piece, count] : counts[i]) all[piece] += count;
    Counts().swap(counts[i]);
  }
  result.pieces.assign(all.begin(), all.end());
  std::sort(result.pieces.begin(), result.pieces.end());
  return result;
}

}  // namespace tranche
