// Which groups' gathered weights lie in which buffer, where weights are sharded.
//
// The embeddings and the head have a buffer of their own; the layers share a pool. A layer stays
// until its buffer is needed: the walk goes up and down the layers, so the one whose turn is
// furthest away is the one furthest behind (Belady's rule). What lies there is valid until the
// weights change, across micro-batches and evaluations.
#pragma once

#include <cstddef>
#include <vector>

namespace tranche {

class Residency {
 public:
  // Groups 0 and num_groups - 1 take slots 0 and 1, the layers share `layer_slots` >= 2 more.
  Residency(int num_groups, int layer_slots);

  int num_slots() const { return static_cast<int>(holder_.size()); }
  // Whether a group's weights may lie in a slot.
  bool Serves(int slot, int group) const;
  // Where a group's weights are, or -1.
  int SlotOf(int group) const { return slot_of_[static_cast<size_t>(group)]; }

  // Gives `group`, which has none, a slot; -1 where all that it may take are in use.
  int Place(int group);
  void Pin(int group) { ++pins_[static_cast<size_t>(group)]; }
  void Unpin(int group) { --pins_[static_cast<size_t>(group)]; }
  // The weights changed: no group is anywhere.
  void Clear();

 private:
  int last_group() const { return static_cast<int>(slot_of_.size()) - 1; }

  std::vector<int> slot_of_, pins_;  // by group
  std::vector<int> holder_;          // by slot; -1: free
  int last_placed_ = 0;
};

}  // namespace tranche
