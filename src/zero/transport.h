// Transport: blocking collectives among the ranks of a group, in host memory. zero/comm.h puts them
// on streams; this is what moves the bytes.
//
// Every rank makes the same calls in the same order with the same sizes, from one thread at a time.
// Nothing allocates after creation. Sums are taken in rank order in fp32, whatever the algorithm
// and however the data is cut: bf16 values are widened and added as fp32. So results are equal to
// the bit on every rank and for every bucket.
//
// Failure: a rank that dies, a link that breaks, a deadline that passes or Abort makes a transport
// fail for good. Its error names the rank and the collective; later calls return the same error at
// once. Nothing waits longer than the timeout.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tensor/dtype.h"

namespace tranche {

// Every rank gives a blob and receives all of them, in rank order: how addresses are exchanged
// before there is a transport. The launcher's store implements it (launch/store.h).
using BlobExchange = std::function<absl::StatusOr<std::vector<std::string>>(
    absl::string_view name, absl::string_view mine)>;

struct TransportOptions {
  double timeout_seconds = 300;  // of one collective
  // Ranks that give the same share a host. Empty: what the system says.
  std::string host;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // out: size() parts of `bytes` each, part r is rank r's `mine`, which may be part rank() of out.
  virtual absl::Status AllGather(void* out, const void* mine, int64_t bytes) = 0;
  // out [n] = Σ over ranks r of part rank() of r's `in` [size()·n] of fp32 or bf16; out + that sum
  // where `accumulate`. out may be part rank() of in.
  virtual absl::Status ReduceScatter(float* out, const void* in, DType dtype, int64_t n,
                                     bool accumulate) = 0;
  virtual absl::Status Broadcast(void* data, int64_t bytes, int root) = 0;
  virtual absl::Status Barrier() = 0;

  // Makes the collective in progress and all later ones fail with `why`. From any thread.
  virtual void Abort(const absl::Status& why) = 0;
};

// Real processes over UCX: shared memory inside a host, TCP or InfiniBand between hosts.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(int rank, int size,
                                                              const BlobExchange& exchange,
                                                              const TransportOptions& options);

// Ranks that are threads of this process, for unit tests: the same sums, copied through shared
// memory.
std::vector<std::unique_ptr<Transport>> CreateLocalTransports(int size,
                                                              const TransportOptions& options);

}  // namespace tranche
