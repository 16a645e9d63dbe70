// The parameters of one group by role, for the block that computes with them.
#pragma once

#include <array>
#include <vector>

#include "model/group_access.h"
#include "model/param_spec.h"

namespace tranche {

class GroupParams {
 public:
  // `groups` must outlive this.
  GroupParams(const std::vector<ParamSpec>& specs, int group, GroupAccess& groups)
      : groups_(&groups) {
    index_.fill(-1);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].group == group) index_[Slot(specs[i].role)] = static_cast<int>(i);
    }
  }

  // Undefined where the model has no such parameter.
  Tensor weight(ParamRole role) const {
    const int index = index_[Slot(role)];
    return index < 0 ? Tensor() : groups_->Weight(index);
  }
  Tensor gradient(ParamRole role) const {
    const int index = index_[Slot(role)];
    return index < 0 ? Tensor() : groups_->Gradient(index);
  }

 private:
  static constexpr size_t Slot(ParamRole role) { return static_cast<size_t>(role); }

  GroupAccess* groups_;
  std::array<int, static_cast<size_t>(ParamRole::kNextSentenceBias) + 1> index_;
};

}  // namespace tranche
