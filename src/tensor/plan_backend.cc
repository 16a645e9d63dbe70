#include "tensor/plan_backend.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tensor/check_args.h"
#include "tensor/workspace.h"

namespace tranche {
namespace {

class CountingBackend : public PlanBackend {
 public:
  explicit CountingBackend(int threads) : threads_(threads) {}

  const PlanCounts& counts() const override { return counts_; }
  void ResetCounts() override { counts_ = {}; }

  std::string Describe() const override {
    return absl::StrCat("plan (cpu, ", threads_, " threads)");
  }
  void ReserveWorkspace(const WorkspaceLimits& limits, Arena& arena) override {
    AllocateCpuWorkspace(limits, threads_, arena);
  }

  std::unique_ptr<Stream> CreateStream(absl::string_view) override {
    return std::make_unique<Stream>();
  }
  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<Event>(); }
  void Record(Stream&, Event&) override {}
  void Wait(Stream&, Event&) override {}
  void Synchronize(Event&) override {}
  void Synchronize(Stream&) override {}

  void CopyToDevice(Stream&, Tensor to, const void*) override {
    check_args::HostCopy(to);
    counts_.host_to_device_bytes += to.size() * SizeOf(to.dtype);
    ++counts_.operations;
  }
  void CopyToHost(Stream&, void*, Tensor from) override {
    check_args::HostCopy(from);
    counts_.device_to_host_bytes += from.size() * SizeOf(from.dtype);
    ++counts_.operations;
  }
  void Fill(Stream&, Tensor tensor, float value) override {
    check_args::Fill(tensor, value);
    ++counts_.operations;
  }
  void Copy(Stream&, Tensor to, Tensor from) override {
    check_args::Copy(to, from);
    ++counts_.operations;
  }
  void Add(Stream&, Tensor to, Tensor from) override {
    check_args::Add(to, from);
    ++counts_.operations;
  }
  void GatherRows(Stream&, Tensor to, Tensor from, Tensor rows) override {
    check_args::Rows(to, from, rows);
    ++counts_.operations;
  }
  void ScatterAddRows(Stream&, Tensor to, Tensor from, Tensor rows) override {
    check_args::Rows(from, to, rows);
    ++counts_.operations;
  }
  void MatMul(Stream&, const MatMulArgs& args) override {
    check_args::MatMul(args);
    counts_.matmul_flops += 2 * args.c.size() * (args.transpose_a ? args.a.rows : args.a.cols);
    ++counts_.operations;
  }
  void BiasBackward(Stream&, Tensor d_bias, Tensor d_out) override {
    check_args::BiasBackward(d_bias, d_out);
    ++counts_.operations;
  }
  void Embedding(Stream&, Tensor out, Tensor table, Tensor ids, bool) override {
    check_args::Embedding(out, table, ids);
    ++counts_.operations;
  }
  void EmbeddingBackward(Stream&, Tensor d_table, Tensor d_out, Tensor ids, int32_t) override {
    check_args::EmbeddingBackward(d_table, d_out, ids);
    ++counts_.operations;
  }
  void Norm(Stream&, const NormArgs& args, Tensor x, Tensor y, Tensor statistics) override {
    check_args::Norm(args, x, y, statistics);
    ++counts_.operations;
  }
  void NormBackward(Stream&, const NormArgs& args, Tensor d_y, Tensor x, Tensor statistics,
                    Tensor d_x, Tensor residual, Tensor d_weight, Tensor d_bias) override {
    check_args::NormBackward(args, d_y, x, statistics, d_x, residual, d_weight, d_bias);
    ++counts_.operations;
  }
  void ActivationForward(Stream&, Activation, Tensor x, Tensor y) override {
    check_args::ActivationForward(x, y);
    ++counts_.operations;
  }
  void ActivationBackward(Stream&, Activation, Tensor d_y, Tensor x, Tensor d_x) override {
    check_args::ActivationBackward(d_y, x, d_x);
    ++counts_.operations;
  }
  void GatedForward(Stream&, Activation, bool, Tensor x, Tensor y) override {
    check_args::GatedForward(x, y);
    ++counts_.operations;
  }
  void GatedBackward(Stream&, Activation, bool, Tensor d_y, Tensor x, Tensor d_x) override {
    check_args::GatedBackward(d_y, x, d_x);
    ++counts_.operations;
  }
  void Dropout(Stream&, const DropoutArgs& args, Tensor x, Tensor residual, Tensor y) override {
    check_args::Dropout(args, x, residual, y);
    ++counts_.operations;
  }
  void Rotary(Stream&, Tensor x, int64_t heads, Tensor positions, Tensor cosine, Tensor sine,
              bool) override {
    check_args::Rotary(x, heads, positions, cosine, sine);
    ++counts_.operations;
  }
  void Attention(Stream&, const AttentionArgs& args, Tensor q, Tensor k, Tensor v, Tensor out,
                 Tensor log_sum_exp) override {
    check_args::Attention(args, q, k, v, out, log_sum_exp);
    counts_.attention_flops += 4 * args.pairs * args.heads * args.head_dim;
    ++counts_.operations;
  }
  void AttentionBackward(Stream&, const AttentionArgs& args, Tensor d_out, Tensor q, Tensor k,
                         Tensor v, Tensor out, Tensor log_sum_exp, Tensor d_q, Tensor d_k,
                         Tensor d_v) override {
    check_args::AttentionBackward(args, d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v);
    counts_.attention_flops += 10 * args.pairs * args.heads * args.head_dim;
    ++counts_.operations;
  }
  void CrossEntropy(Stream&, Tensor logits, Tensor labels, bool, float, Tensor loss_sum,
                    Tensor row_losses) override {
    check_args::CrossEntropy(logits, labels, loss_sum, row_losses);
    ++counts_.operations;
  }
  void SquaredNorm(Stream&, Tensor gradients, Tensor norm_state) override {
    check_args::SquaredNorm(gradients, norm_state);
    ++counts_.operations;
  }
  void FinishNorm(Stream&, Tensor norm_state, Tensor loss_sum, float, Tensor control) override {
    check_args::FinishNorm(norm_state, loss_sum, control);
    ++counts_.operations;
  }
  void AdamW(Stream&, const AdamWArgs& args) override {
    check_args::AdamW(args);
    ++counts_.operations;
  }

 private:
  const int threads_;
  PlanCounts counts_;
};

}  // namespace

std::unique_ptr<PlanBackend> CreatePlanBackend(int threads) {
  return std::make_unique<CountingBackend>(CpuThreads(threads));
}

}  // namespace tranche
