#include "tensor/workspace.h"

#include <omp.h>

#include <algorithm>

#include "tensor/cpu/kernels.h"

namespace tranche {

Tensor AllocateCpuWorkspace(const WorkspaceLimits& limits, int threads, Arena& arena) {
  const int64_t bytes = std::max(
      {cpu::MatMulScratchBytes(threads), cpu::NormScratchBytes(limits, threads),
       cpu::AttentionScratchBytes(limits, threads), cpu::CrossEntropyScratchBytes(limits)});
  return arena.Allocate("workspace", MemoryKind::kWorkspace, DType::kUInt64, 1, (bytes + 7) / 8);
}

int CpuThreads(int requested) { return requested > 0 ? requested : omp_get_max_threads(); }

}  // namespace tranche
