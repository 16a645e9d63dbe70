// Collectives as messages between ranks (zero/ucx_transport_link.h). Every number of ranks takes
// the same paths; which, where hosts hold several, zero/hosts.h says.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "zero/hosts.h"
#include "zero/rank_sum.h"
#include "zero/transport.h"
#include "zero/ucx_transport_link.h"

namespace tranche {
namespace {

// Chunks in flight on each way: one arrives while another is summed.
constexpr int kWindow = 2;
// What the chunks in flight to a rank may take together. In a host, less than a core's cache. Over
// a network all ranks send to each at once, and what its link cannot take waits in the switch
// before it, then is dropped and sent again; so no more than keeps the link busy. And one chunk.
constexpr int64_t kHostBytes = int64_t{1} << 20;
constexpr int64_t kNetworkBytes = int64_t{192} << 10;
constexpr int64_t kMostChunkBytes = int64_t{256} << 10;
constexpr int64_t kLeastChunkBytes = int64_t{16} << 10;
// Below this size of its result an all-gather saves rounds, above it it saves nothing.
constexpr int64_t kBruckBytes = int64_t{64} << 10;
constexpr int kLeastSlots = 4;  // of the rounds of Bruck's gather and the barrier
constexpr int64_t kBroadcastChunkBytes = int64_t{1} << 20;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The chunks of a part on its way to or from a peer.
struct Flow {
  Flow() = default;
  Flow(Way its_way, int* slots)  // takes the next of the slots
      : way(its_way), first_slot(std::exchange(*slots, *slots + kWindow)) {}

  int Slot(int64_t chunk) const { return first_slot + static_cast<int>(chunk % kWindow); }

  Way way;
  int first_slot = 0;  // of kWindow
  int64_t posted = 0;  // the first chunk that was not yet
};

class UcxTransport : public Transport {
 public:
  UcxTransport(int rank, int size) : rank_(rank), size_(size) {}

  absl::Status Open(const BlobExchange& exchange, const TransportOptions& options);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::Status AllGather(void* out, const void* mine, int64_t bytes) override;
  absl::Status ReduceScatter(float* out, const void* in, DType dtype, int64_t n,
                             bool accumulate) override;
  absl::Status Broadcast(void* data, int64_t bytes, int root) override;
  absl::Status Barrier() override;
  void Abort(const absl::Status& why) override { link_->Abort(why); }

 private:
  struct Gather {
    std::vector<Flow> receives, sends;
  };
  struct Sum {
    SumWays::Sum ways;
    std::vector<Flow> terms;  // those that are messages
    Flow result;              // where it goes to another rank
    int64_t summed = 0;       // the first chunk that was not yet
  };
  struct Sums {
    std::vector<Sum> sums;
    std::vector<Flow> sends;
    int scratch_slots = 0;  // of terms and results: the first ones
  };

  int After(int distance) const { return (rank_ + distance) % size_; }
  int Before(int distance) const { return (rank_ - distance + size_) % size_; }

  Gather PlanGather(const Hosts& hosts);
  Sums PlanSums(const Hosts& hosts);
  // Whether the chunk has arrived, or left.
  bool Done(const Flow& flow, int64_t chunk) const {
    return flow.posted > chunk + kWindow || (flow.posted > chunk && Idle(flow, chunk));
  }
  bool Idle(const Flow& flow, int64_t chunk) const { return link_->Idle(flow.Slot(chunk)); }
  std::byte* Scratch(const Flow& flow, int64_t chunk) const {
    return scratch_ + flow.Slot(chunk) * chunk_bytes_;
  }

  absl::Status GatherParts(Gather& plan, std::byte* out, const void* mine, int64_t bytes);
  absl::Status GatherBruck(std::byte* out, int64_t bytes);
  void CopyOwn(std::byte* out, const void* mine, int64_t bytes) const {
    std::byte* const own = out + rank_ * bytes;
    if (own != mine) std::memcpy(own, mine, static_cast<size_t>(bytes));
  }

  const int rank_;
  const int size_;
  std::unique_ptr<UcxLink> link_;
  Gather gather_;
  Sums direct_sums_, relayed_sums_;
  std::vector<const void*> terms_;  // of one sum
  int64_t chunk_bytes_ = 0;
  std::unique_ptr<std::byte[]> scratch_memory_;
  std::byte* scratch_ = nullptr;  // [slots, chunk_bytes_], on a page
};

UcxTransport::Gather UcxTransport::PlanGather(const Hosts& hosts) {
  int slots = 0;
  Gather plan;
  const GatherWays ways = WaysOfGather(hosts, rank_);
  for (const Way& way : ways.receives) plan.receives.emplace_back(way, &slots);
  for (const Way& way : ways.sends) plan.sends.emplace_back(way, &slots);
  link_->Reserve(slots);
  return plan;
}

UcxTransport::Sums UcxTransport::PlanSums(const Hosts& hosts) {
  Sums plan;
  int slots = 0;
  const SumWays ways = WaysOfSums(hosts, rank_);
  for (const SumWays::Sum& each : ways.sums) {
    Sum& sum = plan.sums.emplace_back(Sum{.ways = each, .terms = {}, .result = {}});
    for (const Way& way : each.terms) {
      if (way.peer != rank_) sum.terms.emplace_back(way, &slots);
    }
    if (each.to != rank_) sum.result = Flow({each.to, each.part}, &slots);
    terms_.resize(std::max(terms_.size(), each.terms.size()));
  }
  plan.scratch_slots = slots;
  for (const Way& way : ways.sends) plan.sends.emplace_back(way, &slots);
  link_->Reserve(slots);
  return plan;
}

absl::Status UcxTransport::Open(const BlobExchange& exchange, const TransportOptions& options) {
  TRANCHE_ASSIGN_OR_RETURN(link_, UcxLink::Create(rank_, size_, exchange, options));
  link_->Reserve(kLeastSlots);
  Gather to_all = PlanGather(Hosts::One(size_));
  gather_ = PlanGather(link_->hosts());
  direct_sums_ = PlanSums(Hosts::One(size_));
  relayed_sums_ = PlanSums(link_->hosts());
  if (size_ > 1) {
    const int64_t most = link_->one_host() ? kHostBytes : kNetworkBytes;
    chunk_bytes_ =
        std::clamp(most / (kWindow * (size_ - 1)) / 4096 * 4096, kLeastChunkBytes, kMostChunkBytes);
    constexpr int64_t kAlign = 4096;
    const int64_t bytes =
        std::max(direct_sums_.scratch_slots, relayed_sums_.scratch_slots) * chunk_bytes_;
    scratch_memory_ = std::make_unique<std::byte[]>(bytes + kAlign);
    const auto address = reinterpret_cast<uintptr_t>(scratch_memory_.get());
    scratch_ = scratch_memory_.get() + (kAlign - address % kAlign);
  }
  // Connects all pairs now, and finds out here whether they talk to whom they think.
  std::vector<int32_t> ranks(size_);
  ranks[rank_] = rank_;
  TRANCHE_RETURN_IF_ERROR(link_->Begin("connecting", 0));
  TRANCHE_RETURN_IF_ERROR(GatherParts(to_all, reinterpret_cast<std::byte*>(ranks.data()),
                                      &ranks[rank_], sizeof(int32_t)));
  for (int r = 0; r < size_; ++r) {
    if (ranks[r] != r) {
      return absl::InternalError(
          absl::StrCat("rank ", r, "'s UCX address leads to rank ", ranks[r]));
    }
  }
  return absl::OkStatus();
}

// In a host a part is one message: it is read where it lies.
absl::Status UcxTransport::GatherParts(Gather& plan, std::byte* out, const void* mine,
                                       int64_t bytes) {
  const int64_t chunk_bytes = link_->one_host() ? bytes : std::min(bytes, chunk_bytes_);
  const int64_t chunks = CeilDiv(bytes, chunk_bytes);
  const auto length = [&](int64_t chunk) {
    return std::min(chunk_bytes, bytes - chunk * chunk_bytes);
  };
  for (Flow& flow : plan.receives) flow.posted = 0;
  for (Flow& flow : plan.sends) flow.posted = 0;
  const auto receive = [&](Flow& flow) {
    for (; flow.posted < chunks && Idle(flow, flow.posted); ++flow.posted) {
      link_->Receive(flow.Slot(flow.posted), flow.way.peer, flow.way.part,
                     out + flow.way.part * bytes + flow.posted * chunk_bytes, length(flow.posted));
    }
    return flow.posted == chunks;
  };
  const auto send = [&](Flow& flow) {
    const int part = flow.way.part;
    const auto* const from =
        part == rank_ ? static_cast<const std::byte*>(mine) : out + part * bytes;
    const auto has = [&](int64_t chunk) {
      return part == rank_ || Done(plan.receives[(part - rank_ + size_) % size_ - 1], chunk);
    };
    for (; flow.posted < chunks && has(flow.posted) && Idle(flow, flow.posted); ++flow.posted) {
      link_->Send(flow.Slot(flow.posted), flow.way.peer, part, from + flow.posted * chunk_bytes,
                  length(flow.posted));
    }
    return flow.posted == chunks;
  };
  const auto post = [&] {
    bool all = true;
    for (Flow& flow : plan.receives) all &= receive(flow);
    for (Flow& flow : plan.sends) all &= send(flow);
    return all;
  };
  bool posted = post();
  CopyOwn(out, mine, bytes);  // while the others read it
  for (; !posted; posted = post()) TRANCHE_RETURN_IF_ERROR(link_->Advance());
  return link_->Drain();
}

// ⌈log₂ p⌉ rounds. Before round k a rank holds the parts of itself and the 2^k - 1 ranks after it;
// it sends them 2^k down and receives those of the ranks 2^k up, in place: parts that wrap around
// the end of `out` are a second message.
absl::Status UcxTransport::GatherBruck(std::byte* out, int64_t bytes) {
  int round = 0;
  for (int held = 1; held < size_; held *= 2, ++round) {
    const int count = std::min(held, size_ - held);
    const int first = After(held);  // the part that comes first, and whose owner sends
    const auto transfer = [&](int begin, const auto& post) {
      const int before_wrap = std::min(count, size_ - begin);
      post(0, out + begin * bytes, before_wrap * bytes);
      if (before_wrap < count) post(1, out, (count - before_wrap) * bytes);
    };
    transfer(first, [&](int piece, std::byte* to, int64_t length) {
      link_->Receive(piece, first, 2 * round + piece, to, length);
    });
    transfer(rank_, [&](int piece, const std::byte* from, int64_t length) {
      link_->Send(2 + piece, Before(held), 2 * round + piece, from, length);
    });
    TRANCHE_RETURN_IF_ERROR(link_->Drain());
  }
  return absl::OkStatus();
}

absl::Status UcxTransport::AllGather(void* out, const void* mine, int64_t bytes) {
  TRANCHE_RETURN_IF_ERROR(link_->Begin("all_gather", bytes * size_));
  if (bytes == 0) return absl::OkStatus();
  auto* const parts = static_cast<std::byte*>(out);
  if (bytes * size_ > kBruckBytes) return GatherParts(gather_, parts, mine, bytes);
  CopyOwn(parts, mine, bytes);
  return GatherBruck(parts, bytes);
}

absl::Status UcxTransport::ReduceScatter(float* out, const void* in, DType dtype, int64_t n,
                                         bool accumulate) {
  const int64_t size_of = SizeOf(dtype);
  const int64_t bytes = n * size_of * size_;
  TRANCHE_RETURN_IF_ERROR(link_->Begin("reduce_scatter", bytes));
  // A relay passes on sums, which are fp32.
  const bool relayed =
      dtype == DType::kFloat32 && SumsAreFasterThroughRelays(link_->hosts(), bytes);
  Sums& plan = relayed ? relayed_sums_ : direct_sums_;
  const int64_t chunk_elements = size_ == 1 ? std::max<int64_t>(n, 1) : chunk_bytes_ / size_of;
  const int64_t chunks = CeilDiv(n, chunk_elements);
  const auto elements = [&](int64_t chunk) {
    return std::min(chunk_elements, n - chunk * chunk_elements);
  };
  const auto own = [&](int part, int64_t chunk) {
    return static_cast<const std::byte*>(in) + (part * n + chunk * chunk_elements) * size_of;
  };
  const auto receive = [&](Flow& flow) {
    if (flow.posted == chunks) return;
    const int64_t chunk = flow.posted++;
    link_->Receive(flow.Slot(chunk), flow.way.peer, flow.way.part, Scratch(flow, chunk),
                   elements(chunk) * size_of);
  };
  const auto send = [&](Flow& flow, const void* from) {
    const int64_t chunk = flow.posted++;
    link_->Send(flow.Slot(chunk), flow.way.peer, flow.way.part, from, elements(chunk) * size_of);
  };
  const auto add_up = [&](Sum& sum, int64_t chunk) {
    const bool is_result = sum.ways.to == rank_;
    std::byte* const to = is_result ? reinterpret_cast<std::byte*>(out + chunk * chunk_elements)
                                    : Scratch(sum.result, chunk);
    auto flow = sum.terms.begin();
    for (size_t i = 0; i < sum.ways.terms.size(); ++i) {
      terms_[i] =
          sum.ways.terms[i].peer == rank_ ? own(sum.ways.part, chunk) : Scratch(*flow++, chunk);
    }
    SumInRankOrder(reinterpret_cast<float*>(to),
                   absl::MakeSpan(terms_).first(sum.ways.terms.size()), dtype, elements(chunk),
                   accumulate && is_result);
    if (!is_result) send(sum.result, to);
    for (Flow& term : sum.terms) receive(term);
  };
  const auto ready = [&](const Sum& sum) {
    return (sum.ways.to == rank_ || Idle(sum.result, sum.summed)) &&
           std::all_of(sum.terms.begin(), sum.terms.end(),
                       [&](const Flow& flow) { return Done(flow, sum.summed); });
  };
  const auto post = [&] {
    bool all = true;
    for (Flow& flow : plan.sends) {
      while (flow.posted < chunks && Idle(flow, flow.posted)) {
        send(flow, own(flow.way.part, flow.posted));
      }
      all &= flow.posted == chunks;
    }
    for (Sum& sum : plan.sums) {
      for (; sum.summed < chunks && ready(sum); ++sum.summed) add_up(sum, sum.summed);
      all &= sum.summed == chunks;
    }
    return all;
  };

  for (Flow& flow : plan.sends) flow.posted = 0;
  for (Sum& sum : plan.sums) {
    sum.summed = sum.result.posted = 0;
    for (Flow& term : sum.terms) {
      term.posted = 0;
      for (int i = 0; i < kWindow; ++i) receive(term);
    }
  }
  while (!post()) TRANCHE_RETURN_IF_ERROR(link_->Advance());
  return link_->Drain();
}

// A binomial tree, in chunks that follow one another down it.
absl::Status UcxTransport::Broadcast(void* data, int64_t bytes, int root) {
  TRANCHE_CHECK(root >= 0 && root < size_) << root;
  TRANCHE_RETURN_IF_ERROR(link_->Begin("broadcast", bytes));
  auto* const memory = static_cast<std::byte*>(data);
  const auto from_root = static_cast<unsigned>(Before(root));
  // The rank at distance x from the root hears from the one at x without its lowest bit.
  const unsigned lowest =
      from_root == 0 ? std::bit_ceil(static_cast<unsigned>(size_)) : from_root & (~from_root + 1);
  const int parent = (root + static_cast<int>(from_root - lowest)) % size_;
  const int64_t chunks = CeilDiv(bytes, kBroadcastChunkBytes);
  const auto length = [&](int64_t chunk) {
    return std::min(kBroadcastChunkBytes, bytes - chunk * kBroadcastChunkBytes);
  };
  const auto receive = [&](int64_t chunk) {
    if (from_root == 0 || chunk >= chunks) return;
    link_->Receive(static_cast<int>(chunk % kWindow), parent, 0,
                   memory + chunk * kBroadcastChunkBytes, length(chunk));
  };
  const auto await = [&](int slot) -> absl::Status {
    while (!link_->Idle(slot)) TRANCHE_RETURN_IF_ERROR(link_->Advance());
    return absl::OkStatus();
  };
  for (int64_t chunk = 0; chunk < kWindow; ++chunk) receive(chunk);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int slot = static_cast<int>(chunk % kWindow);
    TRANCHE_RETURN_IF_ERROR(await(slot));
    receive(chunk + kWindow);
    int child_slot = kWindow + slot;
    for (unsigned step = lowest / 2; step > 0; step /= 2, child_slot += kWindow) {
      if (from_root + step >= static_cast<unsigned>(size_)) continue;
      TRANCHE_RETURN_IF_ERROR(await(child_slot));
      link_->Send(child_slot, After(static_cast<int>(step)), 0,
                  memory + chunk * kBroadcastChunkBytes, length(chunk));
    }
  }
  return link_->Drain();
}

// Dissemination: in round k a rank hears from the one 2^k below, and through it from all below
// that.
absl::Status UcxTransport::Barrier() {
  TRANCHE_RETURN_IF_ERROR(link_->Begin("barrier", 0));
  int round = 0;
  for (int distance = 1; distance < size_; distance *= 2, ++round) {
    link_->Receive(0, Before(distance), round, nullptr, 0);
    link_->Send(1, After(distance), round, nullptr, 0);
    TRANCHE_RETURN_IF_ERROR(link_->Drain());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(int rank, int size,
                                                              const BlobExchange& exchange,
                                                              const TransportOptions& options) {
  auto transport = std::make_unique<UcxTransport>(rank, size);
  TRANCHE_RETURN_IF_ERROR(transport->Open(exchange, options));
  return transport;
}

}  // namespace tranche
