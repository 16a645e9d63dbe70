#include "zero/engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "zero/group_buffers.h"
#include "zero/group_layout.h"
#include "zero/placement.h"
#include "zero/residency.h"

namespace tranche {
namespace {

using Clock = std::chrono::steady_clock;
using Cause = StreamMeter::Cause;

// Steps whose counts may be on their way to the device.
constexpr size_t kCountsInFlight = 4;

class EngineImpl : public Engine {
 public:
  EngineImpl(std::vector<ParamSpec> specs, const EngineOptions& options, Backend& backend,
             Arena& arena, const CommGroups& comms)
      : specs_(std::move(specs)),
        options_(options),
        backend_(backend),
        comms_(comms),
        world_(comms.size()),
        replicas_(comms.replicas != nullptr ? comms.replicas->size() : 1),
        rule_(CreateAdamW(options.update)),
        buffers_(specs_, options_, *rule_, comms, arena),
        placement_(buffers_.placement()),
        residency_(num_groups(), std::max(2, std::min(options.layer_slots, num_groups() - 2))),
        meter_(backend, num_groups()) {
    TRANCHE_CHECK(options_.training || world_ == 1);
    for (int g = 0; g < num_groups(); ++g) {
      gathered_.push_back(backend_.CreateEvent());
      reduced_.push_back(backend_.CreateEvent());
    }
    AllocateSlots(arena);
    records_ = arena.Allocate("sums of each rank", MemoryKind::kWorkspace, DType::kUInt64, world_,
                              kRecordWords);
    totals_ = arena.Allocate("sums", MemoryKind::kWorkspace, DType::kUInt64, 1, kRecordWords);
    control_ = arena.Allocate("control", MemoryKind::kWorkspace, DType::kFloat32, 1, 4);
    for (auto* event : {&hop_, &summed_, &weights_ready_}) *event = backend_.CreateEvent();
    if (world_ > 1 && options_.overlap) {
      comm_stream_ = backend_.CreateStream("communication", StreamKind::kTransfer);
    }
  }
  ~EngineImpl() override {
    if (comm_stream_ != nullptr) backend_.Synchronize(*comm_stream_);
  }

  const std::vector<ParamSpec>& specs() const override { return specs_; }
  const EngineOptions& options() const override { return options_; }

  // --- what the model asks ---

  void Prefetch(int group) override {
    if (comm_stream_ != nullptr) Gather(*comm_stream_, group);
  }

  void Acquire(Stream& stream, int group) override {
    if (world_ > 1) {
      Gather(Beside(stream), group);
      Await(stream, *gathered_[Index(group)], Cause::kGather, group);
    }
    meter_.Begin(stream, group);
    if (!placement_.weights_sharded) return;
    TRANCHE_CHECK(residency_.SlotOf(group) >= 0) << "no room for the weights of group " << group;
    residency_.Pin(group);
  }

  void Release(Stream& stream, int group) override {
    // The head goes both ways at once.
    const bool both = options_.training && group == num_groups() - 1;
    meter_.End(stream, both ? "forward and backward" : backward_ ? "backward" : "forward", group);
    if (!placement_.weights_sharded) return;
    residency_.Unpin(group);
    backend_.Record(stream, *weight_slots_[Index(residency_.SlotOf(group))].free);
  }

  void Reduce(Stream& stream, int group) override {
    backward_ = group > 0;  // the head's is the first, the embeddings' the last
    if (world_ == 1) return;
    const int64_t earlier = micro_batch_;
    if (group == 0) ++micro_batch_;  // the last group of a backward pass
    if (!placement_.gradients_sharded && earlier + 1 < micro_batches_) return;
    Stream& beside = Beside(stream);
    Hop(stream, beside);
    const Tensor whole = WholeGradients(group);
    for (const Range& bucket : buffers_.buckets(group)) {
      const Tensor all = Slice(whole, bucket);
      const Tensor mine = buffers_.Mine(buffers_.gradients(group), bucket);
      comms_.shards->ReduceScatter(beside, mine, all, placement_.gradients_sharded && earlier > 0,
                                   group);
      // Replicas add up, once a step, what each has added up by itself.
      if (replicas_ > 1 && earlier + 1 == micro_batches_) {
        comms_.replicas->AllReduce(beside, mine, group);
      }
      if (!placement_.optimizer_sharded) comms_.shards->AllGather(beside, all, mine, group);
    }
    backend_.Record(beside, *reduced_[Index(group)]);
    if (!placement_.gradients_sharded) return;
    // The buffer is clean again for the next group that computes its gradients there.
    Slot& slot = gradient_slots_[Index(GradientSlot(group))];
    backend_.Fill(beside, slot.buffer, 0);
    backend_.Record(beside, *slot.free);
    if (group > 0) {
      Await(stream, *gradient_slots_[Index(GradientSlot(group - 1))].free, Cause::kReduction,
            group);
    } else {
      for (const Slot& each : gradient_slots_) {
        Await(stream, *each.free, Cause::kReduction, group);
      }
    }
  }

  Tensor Weight(int param) const override {
    const int group = GroupOf(param);
    if (!placement_.weights_sharded) return buffers_.View(param, buffers_.weights(group).tensor);
    const int slot = residency_.SlotOf(group);
    TRANCHE_CHECK(slot >= 0) << specs_[Index(param)].name << " is not acquired";
    return buffers_.View(param, weight_slots_[Index(slot)].buffer);
  }
  Tensor Gradient(int param) const override {
    TRANCHE_CHECK(options_.training);
    return buffers_.View(param, WholeGradients(GroupOf(param)));
  }

  // --- a step ---

  void BeginStep(Stream& stream, int64_t micro_batches) override {
    TRANCHE_CHECK(options_.training && micro_batches > 0);
    micro_batches_ = micro_batches;
    micro_batch_ = 0;
    ClearSums(stream);
    if (placement_.gradients_sharded) return;  // slots are clean, shards are overwritten
    for (int g = 0; g < num_groups(); ++g) {
      backend_.Fill(stream, buffers_.gradients(g).tensor, 0);
    }
  }

  Tensor loss_sum(int which) const override {
    const Tensor word = MyRecord().SliceCols(4 + which, 1);
    return {word.data, DType::kFloat64, 1, 1, 1};
  }

  void Step(Stream& stream, float learning_rate, int64_t step, const HostCounts& counts) override {
    TRANCHE_CHECK(options_.training);
    for (int g = num_groups() - 1; g >= 0; --g) {
      if (world_ > 1) Await(stream, *reduced_[Index(g)], Cause::kReduction, g);
      for (const Range& bucket : buffers_.buckets(g)) {
        backend_.SquaredNorm(stream, buffers_.Piece(buffers_.gradients(g), bucket),
                             MyRecord().SliceCols(0, 4));
      }
    }
    SumOverRanks(stream, counts);
    const Tensor loss = totals_.SliceCols(4, 1);
    backend_.FinishNorm(stream, totals_.SliceCols(0, 4), {loss.data, DType::kFloat64, 1, 1, 1},
                        options_.update.max_grad_norm, control_);
    for (int g = 0; g < num_groups(); ++g) {
      meter_.Begin(stream, g);
      for (size_t b = 0; b < buffers_.buckets(g).size(); ++b) {
        for (const UpdateSlice& slice : buffers_.updates(g)[b]) {
          rule_->Apply(backend_, stream, slice, control_, learning_rate, step);
        }
        GatherUpdated(stream, g, buffers_.buckets(g)[b]);
      }
      meter_.End(stream, "update", g);
    }
    WeightsChanged(stream);
  }

  Tensor control() const override { return control_; }
  Tensor totals() const override { return totals_; }

  void ClearSums(Stream& stream) override { backend_.Fill(stream, MyRecord(), 0); }

  void SumOverRanks(Stream& stream, const HostCounts& counts) override {
    HostCounts& kept = counts_[next_counts_++ % kCountsInFlight];
    kept = counts;
    backend_.CopyToDevice(stream, MyRecord().SliceCols(3, 1), &kept.requests);
    backend_.CopyToDevice(stream, MyRecord().SliceCols(6, 4), kept.numbers.data());
    if (world_ > 1) {
      Stream& beside = Beside(stream);
      Hop(stream, beside);
      comms_.world->AllGather(beside, records_.Reshape(1, records_.size()), MyRecord(),
                              num_groups());
      backend_.Record(beside, *summed_);
      Await(stream, *summed_, Cause::kSums, num_groups());
    }
    backend_.SumRecords(stream, records_, totals_);
  }

  // --- state ---

  std::vector<std::string> state_names() const override { return buffers_.state_names(); }
  DType StateType(absl::string_view name) const override { return buffers_.StateType(name); }
  std::vector<Stretch> Loadable(int param, absl::string_view name) const override {
    return buffers_.Loadable(param, name);
  }
  std::vector<Stretch> Owned(int param, absl::string_view name) const override {
    return buffers_.Owned(param, name);
  }

  void MasterChanged(Stream& stream) override {
    for (int g = 0; g < num_groups(); ++g) {
      const GroupBuffers::Flat master = buffers_.master(g);
      for (const Range& bucket : buffers_.buckets(g)) {
        if (options_.dtype != DType::kFloat32 && master.tensor.defined()) {
          backend_.Copy(stream, buffers_.Updated(buffers_.weights(g), bucket),
                        buffers_.Updated(master, bucket));
        }
        GatherUpdated(stream, g, bucket);
      }
    }
    WeightsChanged(stream);
  }

  void AwaitCommunication(Stream& stream) override {
    if (comm_stream_ != nullptr) Hop(*comm_stream_, stream);
  }

  ExposedSeconds TakeExposedSeconds() override { return meter_.Take(); }

  void SetTimeline(Timeline* timeline) override {
    meter_.SetTimeline(timeline);
    for (Comm* comm : comms_.all()) {
      comm->Observe([timeline](Collective kind, int tag, int64_t bytes, Clock::time_point begin) {
        timeline->Add({Timeline::Track::kCommunication, CollectiveName(kind).data(), tag, bytes,
                       begin, Clock::now()});
      });
    }
  }

  void RecordTimeline(Stream& stream, bool on) override {
    using Track = Timeline::Track;
    backend_.Call(stream, [this, on] {
      meter_.timeline()->Record(Track::kCompute, on);
      meter_.timeline()->Record(Track::kWaiting, on);
    });
    backend_.Call(Beside(stream),
                  [this, on] { meter_.timeline()->Record(Track::kCommunication, on); });
  }

 private:
  // A buffer for one group at a time.
  struct Slot {
    Tensor buffer;
    std::unique_ptr<Event> free;  // its last user is done
  };

  static size_t Index(int i) { return static_cast<size_t>(i); }
  int num_groups() const { return buffers_.num_groups(); }
  int GroupOf(int param) const { return specs_[Index(param)].group; }
  Tensor MyRecord() const { return records_.SliceRows(comms_.rank(), 1); }
  static Tensor Slice(Tensor flat, const Range& range) {
    return flat.SliceCols(range.begin, range.size);
  }
  // Collectives run beside the compute stream, or in it.
  Stream& Beside(Stream& stream) { return comm_stream_ != nullptr ? *comm_stream_ : stream; }
  // What comes on `to` starts after what is on `from` now.
  void Hop(Stream& from, Stream& to) {
    if (&from == &to) return;
    backend_.Record(from, *hop_);
    backend_.Wait(to, *hop_);
  }
  // Where collectives run in the compute stream, it never waits.
  void Await(Stream& stream, Event& event, StreamMeter::Cause cause, int group) {
    if (comm_stream_ != nullptr) meter_.Wait(stream, event, cause, group);
  }

  // Where weights are sharded: makes the group's lie in a slot, if one is to be had.
  void Gather(Stream& beside, int g) {
    if (!placement_.weights_sharded || residency_.SlotOf(g) >= 0) return;
    const int index = residency_.Place(g);
    if (index < 0) return;
    const Slot& slot = weight_slots_[Index(index)];
    backend_.Wait(beside, *slot.free);
    backend_.Wait(beside, *weights_ready_);
    for (const Range& bucket : buffers_.buckets(g)) {
      comms_.shards->AllGather(beside, Slice(slot.buffer, bucket),
                               buffers_.Mine(buffers_.weights(g), bucket), g);
    }
    backend_.Record(beside, *gathered_[Index(g)]);
  }

  // Where every rank holds all weights but updates its own: after a bucket's update.
  void GatherUpdated(Stream& stream, int g, const Range& bucket) {
    if (!placement_.optimizer_sharded || placement_.weights_sharded) return;
    Stream& beside = Beside(stream);
    Hop(stream, beside);
    const GroupBuffers::Flat weights = buffers_.weights(g);
    comms_.shards->AllGather(beside, Slice(weights.tensor, bucket), buffers_.Mine(weights, bucket),
                             g);
    backend_.Record(beside, *gathered_[Index(g)]);
  }

  void WeightsChanged(Stream& stream) {
    if (!placement_.weights_sharded) return;
    backend_.Record(stream, *weights_ready_);
    residency_.Clear();
    for (int g = 0; g < 2; ++g) Prefetch(g);  // what the next pass begins with
  }

  // Where a group's whole gradients are computed while only shards are kept: neighbours apart, so
  // that one is reduced while the next is computed. The head's may lie where the embeddings' will
  // unless both grow at once.
  int GradientSlot(int g) const {
    if (g == 0) return 0;
    if (g == num_groups() - 1) return options_.tied_embeddings ? 3 : 0;
    return 1 + g % 2;
  }
  Tensor WholeGradients(int g) const {
    if (!placement_.gradients_sharded) return buffers_.gradients(g).tensor;
    return gradient_slots_[Index(GradientSlot(g))].buffer.SliceCols(0, buffers_.elements(g));
  }

  void AllocateSlots(Arena& arena);

  const std::vector<ParamSpec> specs_;
  const EngineOptions options_;
  Backend& backend_;
  const CommGroups comms_;
  const int world_, replicas_;
  const std::unique_ptr<UpdateRule> rule_;
  const GroupBuffers buffers_;
  const Placement& placement_;
  std::vector<std::unique_ptr<Event>> gathered_, reduced_;  // of each group, the last time
  Residency residency_;
  std::vector<Slot> weight_slots_, gradient_slots_;
  Tensor records_, totals_, control_;
  std::array<HostCounts, kCountsInFlight> counts_ = {};
  size_t next_counts_ = 0;
  int64_t micro_batch_ = 0, micro_batches_ = 0;
  std::unique_ptr<Event> hop_, summed_, weights_ready_;
  bool backward_ = false;  // the pass that is being enqueued
  StreamMeter meter_;
  std::unique_ptr<Stream> comm_stream_;  // last: its work uses the rest
};

void EngineImpl::AllocateSlots(Arena& arena) {
  const auto allocate = [&](const char* name, MemoryKind kind, DType dtype, int count,
                            const auto& serves) {
    std::vector<Slot> slots;
    for (int s = 0; s < count; ++s) {
      int64_t elements = 0;
      for (int g = 0; g < num_groups(); ++g) {
        if (serves(s, g)) elements = std::max(elements, buffers_.elements(g));
      }
      slots.push_back({arena.Allocate(absl::StrCat(name, ".", s), kind, dtype, 1, elements),
                       backend_.CreateEvent()});
    }
    return slots;
  };
  if (placement_.weights_sharded) {
    weight_slots_ =
        allocate("gathered weights", MemoryKind::kWeights, options_.dtype, residency_.num_slots(),
                 [&](int s, int g) { return residency_.Serves(s, g); });
  }
  if (placement_.gradients_sharded) {
    gradient_slots_ = allocate("whole gradients", MemoryKind::kGradients, DType::kFloat32,
                               options_.tied_embeddings ? 4 : 3,
                               [&](int s, int g) { return GradientSlot(g) == s; });
  }
}

}  // namespace

std::unique_ptr<Engine> Engine::Create(std::vector<ParamSpec> specs, const EngineOptions& options,
                                       Backend& backend, Arena& arena, const CommGroups& comms) {
  return std::make_unique<EngineImpl>(std::move(specs), options, backend, arena, comms);
}

Tensor Engine::State(int param, absl::string_view name) const {
  const ParamSpec& spec = specs()[static_cast<size_t>(param)];
  const std::vector<Stretch> here = Loadable(param, name);
  TRANCHE_CHECK(here.size() == 1 && here[0].values.cols == spec.elements())
      << spec.name << " does not lie here in one piece";
  return here[0].values.Reshape(spec.rows, spec.cols);
}

}  // namespace tranche
