#include "zero/group_buffers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tranche {
namespace {

int RankIn(const Comm* comm) { return comm != nullptr ? comm->rank() : 0; }
int SizeOf(const Comm* comm) { return comm != nullptr ? comm->size() : 1; }

}  // namespace

GroupBuffers::GroupBuffers(const std::vector<ParamSpec>& specs, const EngineOptions& options,
                           const UpdateRule& rule, const CommGroups& comms, Arena& arena)
    : specs_(specs),
      options_(options),
      rule_(rule),
      rank_(RankIn(comms.shards)),
      replica_(RankIn(comms.replicas)),
      // With one rank nothing is anywhere else, and without others no bucket has a purpose.
      placement_(SizeOf(comms.shards) > 1 ? Placement::OfStage(options.zero_stage) : Placement()),
      layout_(comms.size() > 1 ? BuildLayout(specs, SizeOf(comms.shards), SizeOf(comms.replicas),
                                             options.bucket_bytes / SizeOf(DType::kFloat32))
                               : BuildLayout(specs)) {
  for (int g = 0; g < num_groups(); ++g) {
    groups_.push_back(Allocate(g, arena));
    if (options_.training) CutUpdates(g);
  }
}

GroupBuffers::Flat GroupBuffers::Array(int group, absl::string_view name) const {
  if (name == "master") return master(group);
  if (name == "gradients") return gradients(group);
  for (size_t i = 0; i < rule_.state().size(); ++i) {
    if (rule_.state()[i].name == name) return At(group).state[i];
  }
  TRANCHE_CHECK(false) << "no array of state is called " << std::string(name);
  return {};
}

Tensor GroupBuffers::Mine(const Flat& flat, const Range& bucket) const {
  const Range part = flat.sharded ? layout_.InShard(bucket) : layout_.Part(bucket, rank_);
  return flat.tensor.SliceCols(part.begin, part.size);
}

Tensor GroupBuffers::Piece(const Flat& flat, const Range& bucket) const {
  const Tensor mine = Mine(flat, bucket);
  const Range piece = layout_.Piece({0, mine.cols}, replica_);
  return mine.SliceCols(piece.begin, piece.size);
}

Tensor GroupBuffers::Updated(const Flat& flat, const Range& bucket) const {
  return placement_.optimizer_sharded ? Mine(flat, bucket)
                                      : flat.tensor.SliceCols(bucket.begin, bucket.size);
}

std::vector<std::string> GroupBuffers::state_names() const {
  std::vector<std::string> names;
  if (options_.training || options_.dtype == DType::kFloat32) names.push_back("master");
  if (options_.training) {
    for (const StateArray& array : rule_.state()) names.push_back(array.name);
  }
  return names;
}

DType GroupBuffers::StateType(absl::string_view name) const {
  for (const StateArray& array : rule_.state()) {
    if (array.name == name) return array.dtype;
  }
  return DType::kFloat32;
}

// What of a parameter lies in the stretches of its group's buckets that `of` gives, with their
// values.
template <typename OfBucket>
std::vector<Engine::Stretch> GroupBuffers::Stretches(int param, const OfBucket& of) const {
  const ParamSpec& spec = specs_[static_cast<size_t>(param)];
  const Range in_group{layout_.offsets[static_cast<size_t>(param)], spec.elements()};
  std::vector<Engine::Stretch> stretches;
  for (const Range& bucket : buckets(spec.group)) {
    const auto [range, values] = of(bucket);
    const Range common = range.Intersect(in_group);
    if (common.size == 0) continue;
    stretches.push_back(
        {common.begin - in_group.begin, values.SliceCols(common.begin - range.begin, common.size)});
  }
  return stretches;
}

std::vector<Engine::Stretch> GroupBuffers::Loadable(int param, absl::string_view name) const {
  const ParamSpec& spec = specs_[static_cast<size_t>(param)];
  Flat flat = Array(spec.group, name);
  if (flat.sharded) {
    return Stretches(param, [&](const Range& bucket) {
      return std::make_pair(layout_.Part(bucket, rank_), Mine(flat, bucket));
    });
  }
  if (!flat.tensor.defined()) flat = weights(spec.group);
  return {{0, flat.tensor.SliceCols(layout_.offsets[static_cast<size_t>(param)], spec.elements())}};
}

std::vector<Engine::Stretch> GroupBuffers::Owned(int param, absl::string_view name) const {
  const Flat flat = Array(specs_[static_cast<size_t>(param)].group, name);
  return Stretches(param, [&](const Range& bucket) {
    return std::make_pair(layout_.Piece(layout_.Part(bucket, rank_), replica_),
                          Piece(flat, bucket));
  });
}

Tensor GroupBuffers::View(int param, Tensor whole) const {
  TRANCHE_CHECK(whole.defined());
  const ParamSpec& spec = specs_[static_cast<size_t>(param)];
  return whole.SliceCols(layout_.offsets[static_cast<size_t>(param)], spec.elements())
      .Reshape(spec.rows, spec.cols);
}

GroupBuffers::Group GroupBuffers::Allocate(int index, Arena& arena) const {
  const std::string name = GroupName(index, num_groups());
  const auto allocate = [&](absl::string_view what, MemoryKind kind, DType dtype, bool sharded) {
    const int64_t size = elements(index) / (sharded ? layout_.ranks : 1);
    return Flat{arena.Allocate(absl::StrCat(name, ".", what), kind, dtype, 1, size), sharded};
  };
  Group group;
  group.weights =
      allocate("weights", MemoryKind::kWeights, options_.dtype, placement_.weights_sharded);
  if (options_.dtype == DType::kFloat32) group.master = group.weights;
  if (!options_.training) return group;
  group.gradients =
      allocate("gradients", MemoryKind::kGradients, DType::kFloat32, placement_.gradients_sharded);
  if (!group.master.tensor.defined()) {
    group.master =
        allocate("master", MemoryKind::kOptimizer, DType::kFloat32, placement_.optimizer_sharded);
  }
  for (const StateArray& array : rule_.state()) {
    group.state.push_back(
        allocate(array.name, MemoryKind::kOptimizer, array.dtype, placement_.optimizer_sharded));
  }
  return group;
}

// As long as they can be; padding belongs to the parameter before it.
std::vector<GroupBuffers::Alike> GroupBuffers::AlikeStretches(int index) const {
  const GroupLayout& layout = layout_.groups[static_cast<size_t>(index)];
  std::vector<Alike> stretches;
  for (size_t i = 0; i < layout.params.size(); ++i) {
    const ParamSpec& spec = specs_[static_cast<size_t>(layout.params[i])];
    const auto offset = [&](size_t at) {
      return at < layout.params.size() ? layout_.offsets[static_cast<size_t>(layout.params[at])]
                                       : layout.elements;
    };
    const int64_t size = offset(i + 1) - offset(i);
    const float weight_decay =
        spec.decay ? spec.weight_decay.value_or(options_.update.weight_decay) : 0;
    if (!stretches.empty() && stretches.back().weight_decay == weight_decay &&
        stretches.back().lr_scale == spec.lr_scale) {
      stretches.back().range.size += size;
    } else {
      stretches.push_back({{offset(i), size}, weight_decay, spec.lr_scale});
    }
  }
  return stretches;
}

void GroupBuffers::CutUpdates(int index) {
  Group& group = groups_[static_cast<size_t>(index)];
  const std::vector<Alike> stretches = AlikeStretches(index);
  for (const Range& bucket : buckets(index)) {
    const Range mine = placement_.optimizer_sharded ? layout_.Part(bucket, rank_) : bucket;
    std::vector<UpdateSlice>& slices = group.updates.emplace_back();
    for (const Alike& alike : stretches) {
      const Range piece = alike.range.Intersect(mine);
      if (piece.size == 0) continue;
      const auto cut = [&](const Flat& flat) {
        return Updated(flat, bucket).SliceCols(piece.begin - mine.begin, piece.size);
      };
      UpdateSlice& slice = slices.emplace_back();
      slice.master = cut(group.master);
      if (options_.dtype != DType::kFloat32) slice.weights = cut(group.weights);
      slice.gradients = cut(group.gradients);
      for (const Flat& array : group.state) slice.state.push_back(cut(array));
      slice.weight_decay = alike.weight_decay;
      slice.lr_scale = alike.lr_scale;
    }
  }
}

}  // namespace tranche
