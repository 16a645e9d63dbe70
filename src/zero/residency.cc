#include "zero/residency.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tranche {

Residency::Residency(int num_groups, int layer_slots)
    : slot_of_(static_cast<size_t>(num_groups), -1),
      pins_(static_cast<size_t>(num_groups)),
      holder_(static_cast<size_t>(2 + layer_slots), -1) {
  TRANCHE_CHECK(num_groups >= 2 && layer_slots >= 2);
}

bool Residency::Serves(int slot, int group) const {
  if (group == 0) return slot == 0;
  if (group == last_group()) return slot == 1;
  return slot >= 2;
}

int Residency::Place(int group) {
  TRANCHE_CHECK_EQ(SlotOf(group), -1);
  // How far off a layer's turn is, seen from `group`: what lies behind comes last.
  const bool upward = group > last_placed_;
  const auto distance = [&](int slot) {
    const int holder = holder_[static_cast<size_t>(slot)];
    if (holder < 0) return 3 * last_group();
    const int ahead = upward ? holder - group : group - holder;
    return ahead > 0 ? ahead : last_group() - ahead;
  };
  int slot = -1;
  for (int s = 0; s < num_slots(); ++s) {
    const int holder = holder_[static_cast<size_t>(s)];
    const bool in_use = holder >= 0 && pins_[static_cast<size_t>(holder)] > 0;
    if (Serves(s, group) && !in_use && (slot < 0 || distance(s) > distance(slot))) slot = s;
  }
  if (slot < 0) return -1;
  if (slot >= 2) last_placed_ = group;
  const int evicted = std::exchange(holder_[static_cast<size_t>(slot)], group);
  if (evicted >= 0) slot_of_[static_cast<size_t>(evicted)] = -1;
  slot_of_[static_cast<size_t>(group)] = slot;
  return slot;
}

void Residency::Clear() {
  std::fill(slot_of_.begin(), slot_of_.end(), -1);
  std::fill(holder_.begin(), holder_.end(), -1);
  last_placed_ = 0;
}

}  // namespace tranche
