#include "zero/group_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tranche {
namespace {

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

Range Range::Intersect(const Range& other) const {
  const int64_t first = std::max(begin, other.begin);
  return {first, std::max<int64_t>(0, std::min(end(), other.end()) - first)};
}

Layout BuildLayout(const std::vector<ParamSpec>& specs, int ranks, int replicas,
                   int64_t bucket_elements) {
  Layout layout;
  layout.ranks = ranks;
  layout.replicas = replicas;
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
      group.elements += RoundUp(specs[i].elements(), kLineElements);
    }
  }
  const int64_t unit = int64_t{ranks} * replicas * kLineElements;
  for (GroupLayout& group : layout.groups) {
    group.elements = RoundUp(group.elements, unit);
    const int64_t units = group.elements / unit;
    const int64_t per_bucket = std::max<int64_t>(1, bucket_elements / unit);
    const int64_t buckets = (units + per_bucket - 1) / per_bucket;
    for (int64_t b = 0; b < buckets; ++b) {
      const int64_t begin = b * units / buckets * unit, end = (b + 1) * units / buckets * unit;
      group.buckets.push_back({begin, end - begin});
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
