// Memory for phases that are never alive together.
#pragma once

#include <functional>
#include <vector>

#include "tensor/arena.h"

namespace tranche {

using ArenaPhase = std::function<void(Arena&)>;

// Runs every phase's allocations from the same place. The largest comes last, so that what is
// taken from the arena later lies behind all of them. Each phase runs more than once (first on a
// rehearsal arena, for its size); the tensors of its last run hold.
void AllocateOverlaid(Arena& arena, const std::vector<ArenaPhase>& phases);

}  // namespace tranche
