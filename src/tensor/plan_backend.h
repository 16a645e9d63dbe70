// The backend that does no arithmetic. Running a real step on it, with a rehearsal arena, gives the
// memory, the FLOPs and the bytes moved of that step before any device exists, and the seconds it
// would take: each stream has a clock that operations move on and waits push forward.
#pragma once

#include <cstdint>
#include <memory>

#include "tensor/backend.h"

namespace tranche {

struct PlanCounts {
  int64_t matmul_flops = 0;     // 2·M·N·K each
  int64_t attention_flops = 0;  // forward 4·pairs·heads·head_dim, backward 10
  int64_t host_to_device_bytes = 0;
  int64_t device_to_host_bytes = 0;
  int64_t operations = 0;
};

// How fast the device is that the plan stands in for. An operation takes the longer of its
// arithmetic and its way through memory, every tensor once.
struct PlanRates {
  double matmul_flops = 1e11;  // per second
  double memory_bytes = 1e10;  // per second
};

class PlanBackend : public Backend {
 public:
  virtual const PlanCounts& counts() const = 0;
  virtual void ResetCounts() = 0;

  virtual void SetRates(const PlanRates& rates) = 0;
  // The stream's clock, in seconds since it was made.
  virtual double Seconds(const Stream& stream) const = 0;
  // Work that is no operation, a collective say, takes this long. On a stream of transfers it also
  // takes `core_seconds` from what computes beside it: the next operations are longer by them, less
  // what computing waits before.
  virtual void Spend(Stream& stream, double seconds, double core_seconds) = 0;
};

// Stands in for the CPU backend with this many threads: reserves the same workspace.
std::unique_ptr<PlanBackend> CreatePlanBackend(int threads);

}  // namespace tranche
