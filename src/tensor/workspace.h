// The scratch memory of the CPU backend, reserved alike by the backend and by the plan that stands
// in for it.
#pragma once

#include "tensor/backend.h"

namespace tranche {

// One region, as large as the most demanding operation needs: operations of a stream run one after
// another.
Tensor AllocateCpuWorkspace(const WorkspaceLimits& limits, int threads, Arena& arena);

// `requested`, or where it is not positive the threads that the process may use: its affinity,
// OMP_NUM_THREADS.
int CpuThreads(int requested);

}  // namespace tranche
