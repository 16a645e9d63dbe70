// The backend that does no arithmetic. Running a real step on it, with a rehearsal arena, gives the
// memory, the FLOPs and the bytes moved of that step before any device exists.
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

class PlanBackend : public Backend {
 public:
  virtual const PlanCounts& counts() const = 0;
  virtual void ResetCounts() = 0;
};

// Stands in for the CPU backend with this many threads: reserves the same workspace.
std::unique_ptr<PlanBackend> CreatePlanBackend(int threads);

}  // namespace tranche
