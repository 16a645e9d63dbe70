#include "zero/engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "zero/group_layout.h"

namespace tranche {
namespace {

class SingleRankEngine : public Engine {
 public:
  SingleRankEngine(std::vector<ParamSpec> specs, const EngineOptions& options, Backend& backend,
                   Arena& arena)
      : specs_(std::move(specs)),
        options_(options),
        backend_(backend),
        rule_(CreateAdamW(options.update)),
        layout_(BuildLayout(specs_)) {
    for (size_t g = 0; g < layout_.groups.size(); ++g) AllocateGroup(static_cast<int>(g), arena);
    if (!options_.training) return;
    norm_state_ = arena.Allocate("norm state", MemoryKind::kWorkspace, DType::kUInt64, 1, 4);
    control_ = arena.Allocate("control", MemoryKind::kWorkspace, DType::kFloat32, 1, 4);
    for (size_t g = 0; g < groups_.size(); ++g) CutSlices(g);
  }

  const std::vector<ParamSpec>& specs() const override { return specs_; }
  const EngineOptions& options() const override { return options_; }

  void Prefetch(int) override {}
  void Acquire(Stream&, int) override {}
  void Release(Stream&, int) override {}
  void Reduce(Stream&, int) override {}

  Tensor Weight(int param) const override { return View(param, GroupOf(param).weights); }
  Tensor Gradient(int param) const override {
    TRANCHE_CHECK(options_.training);
    return View(param, GroupOf(param).gradients);
  }

  void BeginStep(Stream& stream) override {
    for (const Group& group : groups_) backend_.Fill(stream, group.gradients, 0);
  }

  void Step(Stream& stream, float learning_rate, int64_t step, Tensor loss_sum) override {
    TRANCHE_CHECK(options_.training);
    backend_.Fill(stream, norm_state_, 0);
    for (const Group& group : groups_) backend_.SquaredNorm(stream, group.gradients, norm_state_);
    backend_.FinishNorm(stream, norm_state_, loss_sum, options_.update.max_grad_norm, control_);
    for (const UpdateSlice& slice : slices_) {
      rule_->Apply(backend_, stream, slice, control_, learning_rate, step);
    }
  }

  Tensor control() const override { return control_; }

  std::vector<std::string> state_names() const override {
    std::vector<std::string> names;
    if (options_.training || options_.dtype == DType::kFloat32) names.push_back("master");
    if (options_.training) {
      for (const StateArray& array : rule_->state()) names.push_back(array.name);
    }
    return names;
  }

  Tensor State(int param, absl::string_view name) const override {
    const Group& group = GroupOf(param);
    if (name == "master") return View(param, group.master);
    for (size_t i = 0; i < rule_->state().size(); ++i) {
      if (rule_->state()[i].name == name) return View(param, group.state[i]);
    }
    TRANCHE_CHECK(false) << "no array of state is called " << std::string(name);
    return {};
  }

  void MasterChanged(Stream& stream) override {
    if (options_.dtype == DType::kFloat32) return;
    for (const Group& group : groups_) backend_.Copy(stream, group.weights, group.master);
  }

 private:
  struct Group {
    Tensor weights;    // in the compute dtype
    Tensor master;     // fp32; the weights themselves in fp32
    Tensor gradients;  // fp32
    std::vector<Tensor> state;
  };

  const Group& GroupOf(int param) const {
    return groups_[static_cast<size_t>(specs_[static_cast<size_t>(param)].group)];
  }

  Tensor View(int param, Tensor flat) const {
    TRANCHE_CHECK(flat.defined());
    const ParamSpec& spec = specs_[static_cast<size_t>(param)];
    return flat.SliceCols(layout_.offsets[static_cast<size_t>(param)], spec.elements())
        .Reshape(spec.rows, spec.cols);
  }

  void AllocateGroup(int index, Arena& arena) {
    const int64_t elements = layout_.groups[static_cast<size_t>(index)].elements;
    const std::string name = GroupName(index, static_cast<int>(layout_.groups.size()));
    const auto allocate = [&](absl::string_view what, MemoryKind kind, DType dtype) {
      return arena.Allocate(absl::StrCat(name, ".", what), kind, dtype, 1, elements);
    };
    Group group;
    group.weights = allocate("weights", MemoryKind::kWeights, options_.dtype);
    if (options_.dtype == DType::kFloat32) group.master = group.weights;
    if (options_.training) {
      group.gradients = allocate("gradients", MemoryKind::kGradients, DType::kFloat32);
      if (!group.master.defined()) {
        group.master = allocate("master", MemoryKind::kOptimizer, DType::kFloat32);
      }
      for (const StateArray& array : rule_->state()) {
        group.state.push_back(allocate(array.name, MemoryKind::kOptimizer, array.dtype));
      }
    }
    groups_.push_back(std::move(group));
  }

  // The stretches of a group that are updated alike, as long as they can be.
  void CutSlices(size_t index) {
    const Group& group = groups_[index];
    const GroupLayout& layout = layout_.groups[index];
    const auto spec = [&](size_t i) -> const ParamSpec& {
      return specs_[static_cast<size_t>(layout.params[i])];
    };
    const auto weight_decay = [&](size_t i) {
      return spec(i).decay ? spec(i).weight_decay.value_or(options_.update.weight_decay) : 0;
    };
    const auto offset = [&](size_t i) {
      return i == layout.params.size() ? layout.elements
                                       : layout_.offsets[static_cast<size_t>(layout.params[i])];
    };
    for (size_t first = 0, next = 0; first < layout.params.size(); first = next) {
      while (next < layout.params.size() && weight_decay(next) == weight_decay(first) &&
             spec(next).lr_scale == spec(first).lr_scale) {
        ++next;
      }
      const int64_t begin = offset(first), size = offset(next) - begin;
      UpdateSlice slice;
      slice.master = group.master.SliceCols(begin, size);
      if (options_.dtype != DType::kFloat32) slice.weights = group.weights.SliceCols(begin, size);
      slice.gradients = group.gradients.SliceCols(begin, size);
      for (const Tensor& array : group.state) slice.state.push_back(array.SliceCols(begin, size));
      slice.weight_decay = weight_decay(first);
      slice.lr_scale = spec(first).lr_scale;
      slices_.push_back(std::move(slice));
    }
  }

  const std::vector<ParamSpec> specs_;
  const EngineOptions options_;
  Backend& backend_;
  const std::unique_ptr<UpdateRule> rule_;
  const Layout layout_;
  std::vector<Group> groups_;
  std::vector<UpdateSlice> slices_;
  Tensor norm_state_, control_;
};

}  // namespace

std::unique_ptr<Engine> Engine::Create(std::vector<ParamSpec> specs, const EngineOptions& options,
                                       Backend& backend, Arena& arena) {
  return std::make_unique<SingleRankEngine>(std::move(specs), options, backend, arena);
}

}  // namespace tranche
