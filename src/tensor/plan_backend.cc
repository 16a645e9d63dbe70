#include "tensor/plan_backend.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensor/check_args.h"
#include "tensor/workspace.h"

namespace tranche {
namespace {

struct ClockedStream : Stream {
  explicit ClockedStream(StreamKind stream_kind) : kind(stream_kind) {}
  const StreamKind kind;
  double seconds = 0;
};
struct ClockedEvent : Event {
  double seconds = 0;
};

class CountingBackend : public PlanBackend {
 public:
  explicit CountingBackend(int threads) : threads_(threads) {}

  void SetRates(const PlanRates& rates) override { rates_ = rates; }
  double Seconds(const Stream& stream) const override {
    return static_cast<const ClockedStream&>(stream).seconds;
  }
  void Spend(Stream& stream, double seconds, double core_seconds) override {
    auto& clocked = static_cast<ClockedStream&>(stream);
    clocked.seconds += seconds;
    if (clocked.kind == StreamKind::kTransfer) taken_seconds_ += core_seconds;
  }

  const PlanCounts& counts() const override { return counts_; }
  void ResetCounts() override { counts_ = {}; }

  std::string Describe() const override {
    return absl::StrCat("plan (cpu, ", threads_, " threads)");
  }
  void ReserveWorkspace(const WorkspaceLimits& limits, Arena& arena) override {
    AllocateCpuWorkspace(limits, threads_, arena);
  }

  std::unique_ptr<Stream> CreateStream(absl::string_view, StreamKind kind) override {
    return std::make_unique<ClockedStream>(kind);
  }
  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<ClockedEvent>(); }
  void Record(Stream& stream, Event& event) override {
    static_cast<ClockedEvent&>(event).seconds = Seconds(stream);
  }
  void Wait(Stream& stream, Event& event) override {
    auto& clocked = static_cast<ClockedStream&>(stream);
    const double waits = std::max(0.0, static_cast<ClockedEvent&>(event).seconds - clocked.seconds);
    clocked.seconds += waits;
    if (clocked.kind == StreamKind::kCompute)
      taken_seconds_ = std::max(0.0, taken_seconds_ - waits);
  }
  void Synchronize(Event&) override {}
  void Synchronize(Stream&) override {}
  void Call(Stream&, std::function<void()>) override {}

  void CopyToDevice(Stream& stream, Tensor to, const void*) override {
    check_args::HostCopy(to);
    counts_.host_to_device_bytes += to.size() * SizeOf(to.dtype);
    Operation(stream, 0, {to});
  }
  void CopyToHost(Stream& stream, void*, Tensor from) override {
    check_args::HostCopy(from);
    counts_.device_to_host_bytes += from.size() * SizeOf(from.dtype);
    Operation(stream, 0, {from});
  }
  void Fill(Stream& stream, Tensor tensor, float value) override {
    check_args::Fill(tensor, value);
    Operation(stream, 0, {tensor});
  }
  void Copy(Stream& stream, Tensor to, Tensor from) override {
    check_args::Copy(to, from);
    Operation(stream, 0, {to, from});
  }
  void Add(Stream& stream, Tensor to, Tensor from) override {
    check_args::Add(to, from);
    Operation(stream, 0, {to, from});
  }
  void GatherRows(Stream& stream, Tensor to, Tensor from, Tensor rows) override {
    check_args::Rows(to, from, rows);
    Operation(stream, 0, {to, to, rows});
  }
  void ScatterAddRows(Stream& stream, Tensor to, Tensor from, Tensor rows) override {
    check_args::Rows(from, to, rows);
    Operation(stream, 0, {from, from, rows});
  }
  void MatMul(Stream& stream, const MatMulArgs& args) override {
    check_args::MatMul(args);
    const int64_t flops = 2 * args.c.size() * (args.transpose_a ? args.a.rows : args.a.cols);
    counts_.matmul_flops += flops;
    Operation(stream, flops,
              {args.a, args.b, args.c, args.residual, args.pre_activation, args.derivative_input});
  }
  void BiasBackward(Stream& stream, Tensor d_bias, Tensor d_out) override {
    check_args::BiasBackward(d_bias, d_out);
    Operation(stream, 0, {d_bias, d_out});
  }
  void Embedding(Stream& stream, Tensor out, Tensor table, Tensor ids, bool) override {
    check_args::Embedding(out, table, ids);
    Operation(stream, 0, {out, out, ids});
  }
  void EmbeddingBackward(Stream& stream, Tensor d_table, Tensor d_out, Tensor ids,
                         int32_t) override {
    check_args::EmbeddingBackward(d_table, d_out, ids);
    Operation(stream, 0, {d_out, d_out, ids});
  }
  void Norm(Stream& stream, const NormArgs& args, Tensor x, Tensor y, Tensor statistics) override {
    check_args::Norm(args, x, y, statistics);
    Operation(stream, 0, {x, y, statistics});
  }
  void NormBackward(Stream& stream, const NormArgs& args, Tensor d_y, Tensor x, Tensor statistics,
                    Tensor d_x, Tensor residual, Tensor d_weight, Tensor d_bias) override {
    check_args::NormBackward(args, d_y, x, statistics, d_x, residual, d_weight, d_bias);
    Operation(stream, 0, {d_y, x, statistics, d_x, residual, d_weight, d_bias});
  }
  void ActivationForward(Stream& stream, Activation, Tensor x, Tensor y) override {
    check_args::ActivationForward(x, y);
    Operation(stream, 0, {x, y});
  }
  void ActivationBackward(Stream& stream, Activation, Tensor d_y, Tensor x, Tensor d_x) override {
    check_args::ActivationBackward(d_y, x, d_x);
    Operation(stream, 0, {d_y, x, d_x});
  }
  void GatedForward(Stream& stream, Activation, bool, Tensor x, Tensor y) override {
    check_args::GatedForward(x, y);
    Operation(stream, 0, {x, y});
  }
  void GatedBackward(Stream& stream, Activation, bool, Tensor d_y, Tensor x, Tensor d_x) override {
    check_args::GatedBackward(d_y, x, d_x);
    Operation(stream, 0, {d_y, x, d_x});
  }
  void Dropout(Stream& stream, const DropoutArgs& args, Tensor x, Tensor residual,
               Tensor y) override {
    check_args::Dropout(args, x, residual, y);
    Operation(stream, 0, {x, residual, y});
  }
  void Rotary(Stream& stream, Tensor x, int64_t heads, Tensor positions, Tensor cosine, Tensor sine,
              bool) override {
    check_args::Rotary(x, heads, positions, cosine, sine);
    Operation(stream, 0, {x, positions, cosine, sine});
  }
  void Attention(Stream& stream, const AttentionArgs& args, Tensor q, Tensor k, Tensor v,
                 Tensor out, Tensor log_sum_exp) override {
    check_args::Attention(args, q, k, v, out, log_sum_exp);
    const int64_t flops = 4 * args.pairs * args.heads * args.head_dim;
    counts_.attention_flops += flops;
    Operation(stream, flops, {q, k, v, out, log_sum_exp});
  }
  void AttentionBackward(Stream& stream, const AttentionArgs& args, Tensor d_out, Tensor q,
                         Tensor k, Tensor v, Tensor out, Tensor log_sum_exp, Tensor d_q, Tensor d_k,
                         Tensor d_v) override {
    check_args::AttentionBackward(args, d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v);
    const int64_t flops = 10 * args.pairs * args.heads * args.head_dim;
    counts_.attention_flops += flops;
    Operation(stream, flops, {d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v});
  }
  void CrossEntropy(Stream& stream, Tensor logits, Tensor labels, bool, float, Tensor loss_sum,
                    Tensor row_losses) override {
    check_args::CrossEntropy(logits, labels, loss_sum, row_losses);
    Operation(stream, 0, {logits, labels, loss_sum, row_losses});
  }
  void SquaredNorm(Stream& stream, Tensor gradients, Tensor norm_state) override {
    check_args::SquaredNorm(gradients, norm_state);
    Operation(stream, 0, {gradients, norm_state});
  }
  void SumRecords(Stream& stream, Tensor records, Tensor total) override {
    check_args::SumRecords(records, total);
    Operation(stream, 0, {records, total});
  }
  void FinishNorm(Stream& stream, Tensor norm_state, Tensor loss_sum, float,
                  Tensor control) override {
    check_args::FinishNorm(norm_state, loss_sum, control);
    Operation(stream, 0, {norm_state, loss_sum, control});
  }
  void AdamW(Stream& stream, const AdamWArgs& args) override {
    check_args::AdamW(args);
    Operation(stream, 0, {args.master, args.weights, args.gradients, args.m, args.v});
  }

 private:
  void Operation(Stream& stream, int64_t flops, std::initializer_list<Tensor> tensors) {
    ++counts_.operations;
    int64_t bytes = 0;
    for (const Tensor& tensor : tensors) bytes += tensor.size() * SizeOf(tensor.dtype);
    auto& clocked = static_cast<ClockedStream&>(stream);
    clocked.seconds += std::max(static_cast<double>(flops) / rates_.matmul_flops,
                                static_cast<double>(bytes) / rates_.memory_bytes);
    if (clocked.kind == StreamKind::kCompute) {
      clocked.seconds += std::exchange(taken_seconds_, 0);
    }
  }

  const int threads_;
  PlanRates rates_;
  PlanCounts counts_;
  double taken_seconds_ = 0;  // by transfers, from the operations that follow
};

}  // namespace

std::unique_ptr<PlanBackend> CreatePlanBackend(int threads) {
  return std::make_unique<CountingBackend>(CpuThreads(threads));
}

}  // namespace tranche
