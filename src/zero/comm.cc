#include "zero/comm.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace tranche {
namespace {

int64_t ByteSize(Tensor tensor) { return tensor.size() * SizeOf(tensor.dtype); }

}  // namespace

absl::string_view CollectiveName(Collective kind) {
  switch (kind) {
    case Collective::kAllGather:
      return "all-gather";
    case Collective::kReduceScatter:
      return "reduce-scatter";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kBarrier:
      return "barrier";
  }
  return "?";
}

int64_t CommCounts::total_bytes() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

int CommGroups::rank() const { return world != nullptr ? world->rank() : 0; }
int CommGroups::size() const { return world != nullptr ? world->size() : 1; }

std::vector<Comm*> CommGroups::all() const {
  std::vector<Comm*> comms;
  for (Comm* comm : {world, shards, replicas}) {
    if (comm != nullptr && std::find(comms.begin(), comms.end(), comm) == comms.end()) {
      comms.push_back(comm);
    }
  }
  return comms;
}

absl::Status CommGroups::status() const {
  absl::Status status;
  for (const Comm* comm : all()) status.Update(comm->status());
  return status;
}

CommCounts CommGroups::counts() const {
  CommCounts sum;
  for (const Comm* comm : all()) {
    for (size_t kind = 0; kind < kNumCollectives; ++kind) {
      sum.calls[kind] += comm->counts().calls[kind];
      sum.bytes[kind] += comm->counts().bytes[kind];
    }
  }
  return sum;
}

void CommGroups::ResetCounts() const {
  for (Comm* comm : all()) comm->ResetCounts();
}

Comm::Comm(Backend& backend, Transport& transport)
    : backend_(backend), rank_(transport.rank()), size_(transport.size()), transport_(&transport) {}

Comm::Comm(PlanBackend& plan, int rank, int size, const CollectiveCosts& costs)
    : backend_(plan), rank_(rank), size_(size), plan_(&plan), costs_(costs) {
  TRANCHE_CHECK(0 <= rank && rank < size) << rank << " of " << size;
}

void Comm::AllGather(Stream& stream, Tensor out, Tensor mine, int tag) {
  TRANCHE_CHECK(out.contiguous() && mine.contiguous() && out.dtype == mine.dtype);
  TRANCHE_CHECK_EQ(out.size(), size_ * mine.size());
  const int64_t bytes = ByteSize(mine);
  Enqueue(stream, Collective::kAllGather, (size_ - 1) * bytes, tag,
          [=, this] { return transport_->AllGather(out.data, mine.data, bytes); });
}

void Comm::ReduceScatter(Stream& stream, Tensor out, Tensor in, bool accumulate, int tag) {
  TRANCHE_CHECK(out.contiguous() && in.contiguous() && out.dtype == DType::kFloat32);
  TRANCHE_CHECK_EQ(in.size(), size_ * out.size());
  const int64_t n = out.size();
  Enqueue(stream, Collective::kReduceScatter, (size_ - 1) * n * SizeOf(in.dtype), tag, [=, this] {
    return transport_->ReduceScatter(out.Row<float>(0), in.data, in.dtype, n, accumulate);
  });
}

void Comm::AllReduce(Stream& stream, Tensor tensor, int tag) {
  const int64_t n = tensor.size() / size_;
  const Tensor mine = tensor.SliceCols(rank_ * n, n);
  ReduceScatter(stream, mine, tensor, /*accumulate=*/false, tag);
  AllGather(stream, tensor, mine, tag);
}

void Comm::Broadcast(Stream& stream, Tensor tensor, int root) {
  TRANCHE_CHECK(tensor.contiguous() && 0 <= root && root < size_);
  const int64_t bytes = ByteSize(tensor);
  Enqueue(stream, Collective::kBroadcast, rank_ == root ? (size_ - 1) * bytes : 0, -1,
          [=, this] { return transport_->Broadcast(tensor.data, bytes, root); });
}

void Comm::Barrier(Stream& stream) {
  Enqueue(stream, Collective::kBarrier, 0, -1, [this] { return transport_->Barrier(); });
}

absl::Status Comm::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void Comm::Enqueue(Stream& stream, Collective kind, int64_t bytes, int tag,
                   std::function<absl::Status()> run) {
  ++counts_.calls[static_cast<size_t>(kind)];
  counts_.bytes[static_cast<size_t>(kind)] += bytes;
  if (plan_ != nullptr) {
    const CollectiveCost& cost = costs_[static_cast<size_t>(kind)];
    return plan_->Spend(stream, cost.Seconds(bytes), cost.CoreSeconds(bytes));
  }
  backend_.Call(stream, [=, this, run = std::move(run)] {
    if (!status().ok()) return;
    const Clock::time_point begin = Clock::now();
    const absl::Status status = run();
    if (status.ok()) {
      if (observer_) observer_(kind, tag, bytes, begin);
      return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    status_.Update(status);
  });
}

}  // namespace tranche
