// Comm: the collectives of a group of ranks on streams, typed and counted.
//
// Every rank calls the same collectives in the same order with the same sizes. A call only
// enqueues; the data is there when the stream has passed it. Sums are taken in rank order in fp32
// (zero/transport.h).
//
// A collective that fails leaves its output undefined and makes the Comm fail for good: later ones
// do nothing, and status() says which failed and why. Streams never stop, so the host that waits
// for one comes back and asks.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensor/backend.h"
#include "tensor/plan_backend.h"
#include "zero/transport.h"

namespace tranche {

enum class Collective : uint8_t { kAllGather, kReduceScatter, kBroadcast, kBarrier };
inline constexpr int kNumCollectives = 4;
absl::string_view CollectiveName(Collective kind);

// Of one rank: what was enqueued, and the payload that it makes this rank send.
struct CommCounts {
  std::array<int64_t, kNumCollectives> calls = {};
  std::array<int64_t, kNumCollectives> bytes = {};

  int64_t total_bytes() const;
};

// How long a collective takes: seconds = alpha + beta · bytes that a rank sends. (Thakur,
// Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005.) And
// what it costs computing beside it, on a core that has to copy or send the bytes as well.
struct CollectiveCost {
  double alpha = 0;  // seconds
  double beta = 0;   // seconds per byte
  double core = 0;   // seconds of computing lost per byte

  double Seconds(int64_t bytes) const { return alpha + beta * static_cast<double>(bytes); }
  double CoreSeconds(int64_t bytes) const { return core * static_cast<double>(bytes); }
};
using CollectiveCosts = std::array<CollectiveCost, kNumCollectives>;

class Comm;

// The groups that a rank is in. Ranks that shard among themselves are neighbours in the world; each
// such group is a replica of every other, and ranks of the same place in them hold the same shards.
struct CommGroups {
  Comm* world = nullptr;     // null: one rank
  Comm* shards = nullptr;    // those that share one copy of what is sharded; the world itself where
                             // there is one replica
  Comm* replicas = nullptr;  // those that hold the same shards; null where there is one replica

  int rank() const;  // in the world
  int size() const;
  // The first failure of any of them, and what all of them sent.
  absl::Status status() const;
  CommCounts counts() const;
  void ResetCounts() const;
  std::vector<Comm*> all() const;  // each once
};

class Comm {
 public:
  using Clock = std::chrono::steady_clock;
  // Told of each collective that ended, on the thread of its stream. `tag`: what the caller named
  // it by.
  using Observer =
      std::function<void(Collective kind, int tag, int64_t bytes, Clock::time_point begin)>;

  // Neither is owned.
  Comm(Backend& backend, Transport& transport);
  // One that moves nothing: it counts, and takes its time on the plan's clocks.
  Comm(PlanBackend& plan, int rank, int size, const CollectiveCosts& costs = {});

  int rank() const { return rank_; }
  int size() const { return size_; }

  // out [1, size·n]: part r is rank r's `mine` [1, n]; mine may be part rank() of out. Any type.
  void AllGather(Stream& stream, Tensor out, Tensor mine, int tag = -1);
  // out [1, n] fp32 = (or += with accumulate) Σ over ranks of part rank() of their `in`
  // [1, size·n], fp32 or bf16. out may be part rank() of in.
  void ReduceScatter(Stream& stream, Tensor out, Tensor in, bool accumulate, int tag = -1);
  // tensor [1, size·n] fp32: the composition of the two, in place.
  void AllReduce(Stream& stream, Tensor tensor, int tag = -1);
  void Broadcast(Stream& stream, Tensor tensor, int root);
  void Barrier(Stream& stream);

  absl::Status status() const;
  const CommCounts& counts() const { return counts_; }
  void ResetCounts() { counts_ = {}; }
  // Before the first collective.
  void Observe(Observer observer) { observer_ = std::move(observer); }

 private:
  void Enqueue(Stream& stream, Collective kind, int64_t bytes, int tag,
               std::function<absl::Status()> run);

  Backend& backend_;
  const int rank_, size_;
  Transport* const transport_ = nullptr;  // or plan_
  PlanBackend* const plan_ = nullptr;
  const CollectiveCosts costs_ = {};
  CommCounts counts_;
  Observer observer_;
  mutable std::mutex mutex_;
  absl::Status status_;
};

}  // namespace tranche
