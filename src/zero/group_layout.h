// Where each parameter lies in its group's flat buffer, and which rank owns which part of it.
//
// Inside a group, parameters start on 64-element lines (256 bytes of fp32), those with weight decay
// first. The elements between a parameter's end and the next line are padding and stay zero.
//
// A group is cut into buckets, the units of communication, and each bucket evenly over the ranks:
//
//   group      |          bucket 0          |          bucket 1          |
//   owner      | rank 0 | rank 1 | rank 2   | rank 0 | rank 1 | rank 2   |
//
// so a bucket is reduced and gathered without any other. Parts start on lines; a group is padded to
// ranks · 64 elements for it. Where whole groups of ranks are replicas of each other, a part is cut
// once more, evenly over the ranks that hold it, and the padding is to ranks · replicas · 64.
// Nothing that is summed or updated depends on where it is cut.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "model/param_spec.h"

namespace tranche {

inline constexpr int64_t kLineElements = 64;

struct Range {
  int64_t begin = 0, size = 0;

  int64_t end() const { return begin + size; }
  // Empty (size 0) where they do not meet.
  Range Intersect(const Range& other) const;
};

struct GroupLayout {
  std::vector<int> params;     // indices into the specs, in the order they lie
  int64_t elements = 0;        // with padding: a multiple of ranks · replicas · 64
  std::vector<Range> buckets;  // of about the same size, each such a multiple
};

struct Layout {
  int ranks = 1, replicas = 1;
  std::vector<GroupLayout> groups;
  std::vector<int64_t> offsets;  // of each parameter in its group, in elements

  // What `rank` owns of a bucket.
  Range Part(const Range& bucket, int rank) const {
    return {bucket.begin + rank * (bucket.size / ranks), bucket.size / ranks};
  }
  // What one of the ranks that hold a part answers for: its norm, its place in a checkpoint.
  Range Piece(const Range& part, int replica) const {
    return {part.begin + replica * (part.size / replicas), part.size / replicas};
  }
  // Where that part lies in a buffer that holds the rank's parts of a group, one after another.
  Range InShard(const Range& bucket) const { return {bucket.begin / ranks, bucket.size / ranks}; }
};

// Buckets have at most about `bucket_elements`, and at least ranks · replicas · 64.
Layout BuildLayout(const std::vector<ParamSpec>& specs, int ranks = 1, int replicas = 1,
                   int64_t bucket_elements = std::numeric_limits<int64_t>::max());

// "embeddings", "layers.3", "head".
std::string GroupName(int group, int num_groups);

}  // namespace tranche
