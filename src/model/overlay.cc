#include "model/overlay.h"

#include <algorithm>
#include <utility>

namespace tranche {

void AllocateOverlaid(Arena& arena, const std::vector<ArenaPhase>& phases) {
  std::vector<std::pair<int64_t, size_t>> by_size;
  for (size_t i = 0; i < phases.size(); ++i) {
    Arena alone = Arena::Rehearsal();
    phases[i](alone);
    by_size.emplace_back(alone.peak(), i);
  }
  std::sort(by_size.begin(), by_size.end());
  const int64_t mark = arena.Mark();
  for (const auto& [bytes, i] : by_size) {
    arena.Rewind(mark);
    phases[i](arena);
  }
}

}  // namespace tranche
