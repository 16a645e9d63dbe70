// Who holds what: the flat buffers of every group on one rank, whole or sharded as the placement
// says (zero/engine.h moves what is in them).
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "model/param_spec.h"
#include "optim/update_rule.h"
#include "tensor/arena.h"
#include "zero/engine.h"
#include "zero/group_layout.h"
#include "zero/placement.h"

namespace tranche {

class GroupBuffers {
 public:
  // One array of a group, [1, elements], or [1, elements / ranks] where it is sharded.
  struct Flat {
    Tensor tensor;  // undefined where this engine has none
    bool sharded = false;
  };

  // Neither specs nor rule is owned.
  GroupBuffers(const std::vector<ParamSpec>& specs, const EngineOptions& options,
               const UpdateRule& rule, const CommGroups& comms, Arena& arena);

  const Layout& layout() const { return layout_; }
  const Placement& placement() const { return placement_; }
  int num_groups() const { return static_cast<int>(layout_.groups.size()); }
  int64_t elements(int group) const { return layout_.groups[static_cast<size_t>(group)].elements; }
  const std::vector<Range>& buckets(int group) const {
    return layout_.groups[static_cast<size_t>(group)].buckets;
  }

  Flat weights(int group) const { return At(group).weights; }
  Flat master(int group) const { return At(group).master; }  // in fp32 the weights themselves
  Flat gradients(int group) const { return At(group).gradients; }
  // "master", "gradients", or an array of the rule's state.
  Flat Array(int group, absl::string_view name) const;
  // What this rank updates of each bucket, in stretches that are updated alike.
  const std::vector<std::vector<UpdateSlice>>& updates(int group) const {
    return At(group).updates;
  }

  // This rank's part of a bucket.
  Tensor Mine(const Flat& flat, const Range& bucket) const;
  // Of this rank's part, what it alone of all replicas answers for.
  Tensor Piece(const Flat& flat, const Range& bucket) const;
  // All of it where every rank updates all, else this rank's part.
  Tensor Updated(const Flat& flat, const Range& bucket) const;
  // What Engine says of its state.
  std::vector<std::string> state_names() const;
  DType StateType(absl::string_view name) const;
  std::vector<Engine::Stretch> Loadable(int param, absl::string_view name) const;
  std::vector<Engine::Stretch> Owned(int param, absl::string_view name) const;
  // A parameter in a buffer that holds its whole group, [rows, cols].
  Tensor View(int param, Tensor whole) const;

 private:
  struct Group {
    Flat weights, master, gradients;
    std::vector<Flat> state;
    std::vector<std::vector<UpdateSlice>> updates;
  };
  struct Alike {
    Range range;
    float weight_decay, lr_scale;
  };

  const Group& At(int group) const { return groups_[static_cast<size_t>(group)]; }
  Group Allocate(int index, Arena& arena) const;
  std::vector<Alike> AlikeStretches(int index) const;
  void CutUpdates(int index);
  template <typename OfBucket>
  std::vector<Engine::Stretch> Stretches(int param, const OfBucket& of) const;

  const std::vector<ParamSpec>& specs_;
  const EngineOptions options_;
  const UpdateRule& rule_;
  const int rank_, replica_;  // among those that shard, and among those that hold the same
  const Placement placement_;
  const Layout layout_;
  std::vector<Group> groups_;
};

}  // namespace tranche
