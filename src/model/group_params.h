// The parameters of one group by role, for the block that computes with them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/check.h"
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
      if (specs[i].group != group) continue;
      const size_t slot = Slot(specs[i].role);
      index_[slot] = static_cast<int>(i);
      TRANCHE_CHECK_LE(specs[i].parts.size(), seams_[slot].size() + 1) << specs[i].name;
      int64_t row = 0;
      for (size_t part = 0; part + 1 < specs[i].parts.size(); ++part) {
        row += specs[i].parts[part].shape[0];
        seams_[slot][part] = row;
      }
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
  // The rows of a matrix at which its second and third Hugging Face tensor begin: 0 for none.
  std::array<int64_t, 2> seams(ParamRole role) const { return seams_[Slot(role)]; }

 private:
  static constexpr size_t Slot(ParamRole role) { return static_cast<size_t>(role); }

  static constexpr size_t kSlots = static_cast<size_t>(ParamRole::kNextSentenceBias) + 1;

  GroupAccess* groups_;
  std::array<int, kSlots> index_;
  std::array<std::array<int64_t, 2>, kSlots> seams_{};
};

}  // namespace tranche
