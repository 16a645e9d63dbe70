#include "zero/group_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tranche {

Layout BuildLayout(const std::vector<ParamSpec>& specs) {
  Layout layout;
  layout.offsets.resize(specs.size());
  int num_groups = 0;
  for (const ParamSpec& spec : specs) num_groups = std::max(num_groups, spec.group + 1);
  layout.groups.resize(static_cast<size_t>(num_groups));
  for (const bool decay : {true, false}) {
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].decay != decay) continue;
      GroupLayout& group = layout.groups[static_cast<size_t>(specs[i].group)];
      group.params.push_back(static_cast<int>(i));
      layout.offsets[i] = group.elements;
      group.elements += (specs[i].elements() + kLineElements - 1) / kLineElements * kLineElements;
    }
  }
  return layout;
}

std::string GroupName(int group, int num_groups) {
  if (group == 0) return "embeddings";
  if (group == num_groups - 1) return "head";
  return absl::StrCat("layers.", group - 1);
}

}  // namespace tranche
