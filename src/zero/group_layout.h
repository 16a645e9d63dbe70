// Where each parameter lies in its group's flat buffer.
//
// Inside a group, parameters start on 64-element lines (256 bytes of fp32), those with weight decay
// first. A slice of a group may be cut at any line: nothing that is summed or updated depends on
// where. The elements between a parameter's end and the next line are padding and stay zero.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/param_spec.h"

namespace tranche {

inline constexpr int64_t kLineElements = 64;

struct GroupLayout {
  std::vector<int> params;  // indices into the specs, in the order they lie
  int64_t elements = 0;     // with padding
};

struct Layout {
  std::vector<GroupLayout> groups;
  std::vector<int64_t> offsets;  // of each parameter in its group, in elements
};

Layout BuildLayout(const std::vector<ParamSpec>& specs);

// "embeddings", "layers.3", "head".
std::string GroupName(int group, int num_groups);

}  // namespace tranche
