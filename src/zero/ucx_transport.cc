// Collectives as messages between ranks (zero/ucx_transport_link.h). Every number of ranks takes
// the same paths. In each round rank r sends to r + d and receives from r - d, so that no rank is
// hit by all others at once.
#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "zero/rank_sum.h"
#include "zero/transport.h"
#include "zero/ucx_transport_link.h"

namespace tranche {
namespace {

// Chunks in flight from each peer: one arrives while another is summed.
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
constexpr int64_t kBroadcastChunkBytes = int64_t{1} << 20;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
  int After(int distance) const { return (rank_ + distance) % size_; }
  int Before(int distance) const { return (rank_ - distance + size_) % size_; }
  // Of chunk number `chunk` to or from the rank at `distance` 1 … size() - 1.
  int SendSlot(int64_t chunk, int distance) const {
    return ReceiveSlot(chunk, distance) + kWindow * (size_ - 1);
  }
  int ReceiveSlot(int64_t chunk, int distance) const {
    return static_cast<int>(chunk % kWindow) * (size_ - 1) + distance - 1;
  }
  std::byte* Scratch(int64_t chunk, int distance) const {
    return scratch_ + ReceiveSlot(chunk, distance) * chunk_bytes_;
  }

  // Posts what is free to go of the chunks of a part from each rank, or to it. `next`: the first
  // that was not posted yet, by distance. Whether all have been.
  template <class Post>
  bool PostChunks(int64_t chunks, std::vector<int64_t>& next, bool sends, const Post& post);
  absl::Status GatherDirect(std::byte* out, const void* mine, int64_t bytes);
  absl::Status GatherBruck(std::byte* out, int64_t bytes);
  void CopyOwn(std::byte* out, const void* mine, int64_t bytes) const {
    std::byte* const own = out + rank_ * bytes;
    if (own != mine) std::memcpy(own, mine, static_cast<size_t>(bytes));
  }

  const int rank_;
  const int size_;
  std::unique_ptr<UcxLink> link_;
  int64_t chunk_bytes_ = 0;
  std::unique_ptr<std::byte[]> scratch_memory_;
  std::byte* scratch_ = nullptr;  // [kWindow, size() - 1, chunk_bytes_], on a cache line
  // Of one collective, by distance and by rank.
  std::vector<int64_t> sent_chunks_, received_chunks_;
  std::vector<const void*> parts_;
};

absl::Status UcxTransport::Open(const BlobExchange& exchange, const TransportOptions& options) {
  const int peers = size_ - 1;
  TRANCHE_ASSIGN_OR_RETURN(
      link_, UcxLink::Create(rank_, size_, exchange, options, std::max(4, 2 * kWindow * peers)));
  if (peers > 0) {
    const int64_t most = link_->one_host() ? kHostBytes : kNetworkBytes;
    chunk_bytes_ =
        std::clamp(most / (kWindow * peers) / 4096 * 4096, kLeastChunkBytes, kMostChunkBytes);
    constexpr int64_t kAlign = 4096;
    const int64_t bytes = kWindow * peers * chunk_bytes_;
    scratch_memory_ = std::make_unique<std::byte[]>(bytes + kAlign);
    const auto address = reinterpret_cast<uintptr_t>(scratch_memory_.get());
    scratch_ = scratch_memory_.get() + (kAlign - address % kAlign);
  }
  sent_chunks_.resize(size_);
  received_chunks_.resize(size_);
  parts_.resize(size_);
  // Connects all pairs now, and finds out here whether they talk to whom they think.
  std::vector<int32_t> ranks(size_);
  ranks[rank_] = rank_;
  TRANCHE_RETURN_IF_ERROR(link_->Begin("connecting", 0));
  TRANCHE_RETURN_IF_ERROR(
      GatherDirect(reinterpret_cast<std::byte*>(ranks.data()), &ranks[rank_], sizeof(int32_t)));
  for (int r = 0; r < size_; ++r) {
    if (ranks[r] != r) {
      return absl::InternalError(
          absl::StrCat("rank ", r, "'s UCX address leads to rank ", ranks[r]));
    }
  }
  return absl::OkStatus();
}

template <class Post>
bool UcxTransport::PostChunks(int64_t chunks, std::vector<int64_t>& next, bool sends,
                              const Post& post) {
  bool all = true;
  for (int d = 1; d < size_; ++d) {
    int64_t& chunk = next[static_cast<size_t>(d)];
    for (; chunk < chunks; ++chunk) {
      const int slot = sends ? SendSlot(chunk, d) : ReceiveSlot(chunk, d);
      if (!link_->Idle(slot)) break;
      post(slot, d, chunk);
    }
    all &= chunk == chunks;
  }
  return all;
}

// In a host a part is one message: it is read where it lies.
absl::Status UcxTransport::GatherDirect(std::byte* out, const void* mine, int64_t bytes) {
  const int64_t chunk_bytes = link_->one_host() ? bytes : std::min(bytes, chunk_bytes_);
  const int64_t chunks = CeilDiv(bytes, chunk_bytes);
  const auto length = [&](int64_t chunk) {
    return std::min(chunk_bytes, bytes - chunk * chunk_bytes);
  };
  const auto receive = [&](int slot, int d, int64_t chunk) {
    link_->Receive(slot, Before(d), 0, out + Before(d) * bytes + chunk * chunk_bytes,
                   length(chunk));
  };
  const auto send = [&](int slot, int d, int64_t chunk) {
    link_->Send(slot, After(d), 0, static_cast<const std::byte*>(mine) + chunk * chunk_bytes,
                length(chunk));
  };
  std::fill(sent_chunks_.begin(), sent_chunks_.end(), 0);
  std::fill(received_chunks_.begin(), received_chunks_.end(), 0);
  const auto post = [&] {
    const bool received = PostChunks(chunks, received_chunks_, /*sends=*/false, receive);
    return PostChunks(chunks, sent_chunks_, /*sends=*/true, send) && received;
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
  if (bytes * size_ > kBruckBytes) return GatherDirect(parts, mine, bytes);
  CopyOwn(parts, mine, bytes);
  return GatherBruck(parts, bytes);
}

// Direct exchange: every rank receives its part from all others, chunk by chunk, and sums.
absl::Status UcxTransport::ReduceScatter(float* out, const void* in, DType dtype, int64_t n,
                                         bool accumulate) {
  const int64_t size_of = SizeOf(dtype);
  TRANCHE_RETURN_IF_ERROR(link_->Begin("reduce_scatter", n * size_of * size_));
  const auto* const parts = static_cast<const std::byte*>(in);
  const int64_t chunk_elements = size_ == 1 ? std::max<int64_t>(n, 1) : chunk_bytes_ / size_of;
  const int64_t chunks = CeilDiv(n, chunk_elements);
  const auto elements = [&](int64_t chunk) {
    return std::min(chunk_elements, n - chunk * chunk_elements);
  };
  const auto part = [&](int rank, int64_t chunk) {
    return parts + (rank * n + chunk * chunk_elements) * size_of;
  };
  const auto receive = [&](int64_t chunk) {
    for (int d = 1; d < size_; ++d) {
      link_->Receive(ReceiveSlot(chunk, d), Before(d), 0, Scratch(chunk, d),
                     elements(chunk) * size_of);
    }
  };
  std::fill(sent_chunks_.begin(), sent_chunks_.end(), 0);
  const auto send = [&] {
    return PostChunks(chunks, sent_chunks_, /*sends=*/true, [&](int slot, int d, int64_t chunk) {
      link_->Send(slot, After(d), 0, part(After(d), chunk), elements(chunk) * size_of);
    });
  };

  for (int64_t chunk = 0; chunk < std::min<int64_t>(kWindow, chunks); ++chunk) receive(chunk);
  send();
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int d = 1; d < size_; ++d) {
      while (!link_->Idle(ReceiveSlot(chunk, d))) {
        TRANCHE_RETURN_IF_ERROR(link_->Advance());
        send();
      }
      parts_[Before(d)] = Scratch(chunk, d);
    }
    parts_[rank_] = part(rank_, chunk);
    SumInRankOrder(out + chunk * chunk_elements, parts_, dtype, elements(chunk), accumulate);
    if (chunk + kWindow < chunks) receive(chunk + kWindow);
  }
  while (!send()) TRANCHE_RETURN_IF_ERROR(link_->Advance());
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
