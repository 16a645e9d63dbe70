// The CPU backend: checks arguments, enqueues kernels.
#include <omp.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tensor/backend.h"
#include "tensor/check_args.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/stream.h"
#include "tensor/workspace.h"

namespace tranche {
namespace {

using cpu::CpuEvent;
using cpu::CpuStream;

CpuStream& On(Stream& stream) { return static_cast<CpuStream&>(stream); }
CpuEvent& On(Event& event) { return static_cast<CpuEvent&>(event); }

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(int threads) : threads_(threads) {}

  std::string Describe() const override {
    return absl::StrCat("cpu (", cpu::InstructionSet(), ", ", threads_,
                        threads_ == 1 ? " thread)" : " threads)");
  }

  void ReserveWorkspace(const WorkspaceLimits& limits, Arena& arena) override {
    workspace_ = AllocateCpuWorkspace(limits, threads_, arena);
  }

  std::unique_ptr<Stream> CreateStream(absl::string_view name, StreamKind kind) override {
    return std::make_unique<CpuStream>(name, kind, threads_);
  }
  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<CpuEvent>(); }
  void Record(Stream& stream, Event& event) override { On(event).Record(On(stream)); }
  void Wait(Stream& stream, Event& event) override { On(event).Wait(On(stream)); }
  void Synchronize(Event& event) override { On(event).Synchronize(); }
  void Synchronize(Stream& stream) override {
    CpuEvent event;
    event.Record(On(stream));
    event.Synchronize();
  }

  void Call(Stream& stream, std::function<void()> work) override {
    On(stream).Enqueue(std::move(work));
  }

  void CopyToDevice(Stream& stream, Tensor to, const void* from) override {
    check_args::HostCopy(to);
    On(stream).Enqueue(
        [=] { std::memcpy(to.data, from, static_cast<size_t>(to.size() * SizeOf(to.dtype))); });
  }
  void CopyToHost(Stream& stream, void* to, Tensor from) override {
    check_args::HostCopy(from);
    On(stream).Enqueue(
        [=] { std::memcpy(to, from.data, static_cast<size_t>(from.size() * SizeOf(from.dtype))); });
  }
  void Fill(Stream& stream, Tensor tensor, float value) override {
    check_args::Fill(tensor, value);
    Run(stream, [=](int threads) { cpu::Fill(tensor, value, threads); });
  }
  void Copy(Stream& stream, Tensor to, Tensor from) override {
    check_args::Copy(to, from);
    Run(stream, [=](int threads) { cpu::Copy(to, from, threads); });
  }
  void Add(Stream& stream, Tensor to, Tensor from) override {
    check_args::Add(to, from);
    Run(stream, [=](int threads) { cpu::Add(to, from, threads); });
  }
  void GatherRows(Stream& stream, Tensor to, Tensor from, Tensor rows) override {
    check_args::Rows(to, from, rows);
    Run(stream, [=](int threads) { cpu::GatherRows(to, from, rows, threads); });
  }
  void ScatterAddRows(Stream& stream, Tensor to, Tensor from, Tensor rows) override {
    check_args::Rows(from, to, rows);
    Run(stream, [=](int threads) { cpu::ScatterAddRows(to, from, rows, threads); });
  }

  void MatMul(Stream& stream, const MatMulArgs& args) override {
    check_args::MatMul(args);
    RunWithWorkspace(stream,
                     [=](std::byte* scratch, int threads) { cpu::MatMul(args, scratch, threads); });
  }
  void BiasBackward(Stream& stream, Tensor d_bias, Tensor d_out) override {
    check_args::BiasBackward(d_bias, d_out);
    Run(stream, [=](int threads) { cpu::BiasBackward(d_bias, d_out, threads); });
  }

  void Embedding(Stream& stream, Tensor out, Tensor table, Tensor ids, bool accumulate) override {
    check_args::Embedding(out, table, ids);
    Run(stream, [=](int threads) { cpu::Embedding(out, table, ids, accumulate, threads); });
  }
  void EmbeddingBackward(Stream& stream, Tensor d_table, Tensor d_out, Tensor ids,
                         int32_t padding_id) override {
    check_args::EmbeddingBackward(d_table, d_out, ids);
    Run(stream,
        [=](int threads) { cpu::EmbeddingBackward(d_table, d_out, ids, padding_id, threads); });
  }

  void Norm(Stream& stream, const NormArgs& args, Tensor x, Tensor y, Tensor statistics) override {
    check_args::Norm(args, x, y, statistics);
    Run(stream, [=](int threads) { cpu::Norm(args, x, y, statistics, threads); });
  }
  void NormBackward(Stream& stream, const NormArgs& args, Tensor d_y, Tensor x, Tensor statistics,
                    Tensor d_x, Tensor residual, Tensor d_weight, Tensor d_bias) override {
    check_args::NormBackward(args, d_y, x, statistics, d_x, residual, d_weight, d_bias);
    RunWithWorkspace(stream, [=](std::byte* scratch, int threads) {
      cpu::NormBackward(args, d_y, x, statistics, d_x, residual, d_weight, d_bias, scratch,
                        threads);
    });
  }

  void ActivationForward(Stream& stream, Activation kind, Tensor x, Tensor y) override {
    check_args::ActivationForward(x, y);
    Run(stream, [=](int threads) { cpu::ActivationForward(kind, x, y, threads); });
  }
  void ActivationBackward(Stream& stream, Activation kind, Tensor d_y, Tensor x,
                          Tensor d_x) override {
    check_args::ActivationBackward(d_y, x, d_x);
    Run(stream, [=](int threads) { cpu::ActivationBackward(kind, d_y, x, d_x, threads); });
  }
  void GatedForward(Stream& stream, Activation kind, bool gate_first, Tensor x, Tensor y) override {
    check_args::GatedForward(x, y);
    Run(stream, [=](int threads) { cpu::GatedForward(kind, gate_first, x, y, threads); });
  }
  void GatedBackward(Stream& stream, Activation kind, bool gate_first, Tensor d_y, Tensor x,
                     Tensor d_x) override {
    check_args::GatedBackward(d_y, x, d_x);
    Run(stream, [=](int threads) { cpu::GatedBackward(kind, gate_first, d_y, x, d_x, threads); });
  }

  void Dropout(Stream& stream, const DropoutArgs& args, Tensor x, Tensor residual,
               Tensor y) override {
    check_args::Dropout(args, x, residual, y);
    Run(stream, [=](int threads) { cpu::Dropout(args, x, residual, y, threads); });
  }

  void Rotary(Stream& stream, Tensor x, int64_t heads, Tensor positions, Tensor cosine, Tensor sine,
              bool inverse) override {
    check_args::Rotary(x, heads, positions, cosine, sine);
    Run(stream,
        [=](int threads) { cpu::Rotary(x, heads, positions, cosine, sine, inverse, threads); });
  }

  void Attention(Stream& stream, const AttentionArgs& args, Tensor q, Tensor k, Tensor v,
                 Tensor out, Tensor log_sum_exp) override {
    check_args::Attention(args, q, k, v, out, log_sum_exp);
    RunWithWorkspace(stream, [=](std::byte* scratch, int threads) {
      cpu::Attention(args, q, k, v, out, log_sum_exp, scratch, threads);
    });
  }
  void AttentionBackward(Stream& stream, const AttentionArgs& args, Tensor d_out, Tensor q,
                         Tensor k, Tensor v, Tensor out, Tensor log_sum_exp, Tensor d_q, Tensor d_k,
                         Tensor d_v) override {
    check_args::AttentionBackward(args, d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v);
    RunWithWorkspace(stream, [=](std::byte* scratch, int threads) {
      cpu::AttentionBackward(args, d_out, q, k, v, out, log_sum_exp, d_q, d_k, d_v, scratch,
                             threads);
    });
  }

  void CrossEntropy(Stream& stream, Tensor logits, Tensor labels, bool gradient, float scale,
                    Tensor loss_sum, Tensor row_losses) override {
    check_args::CrossEntropy(logits, labels, loss_sum, row_losses);
    RunWithWorkspace(stream, [=](std::byte* scratch, int threads) {
      cpu::CrossEntropy(logits, labels, gradient, scale, loss_sum, row_losses, scratch, threads);
    });
  }

  void SquaredNorm(Stream& stream, Tensor gradients, Tensor norm_state) override {
    check_args::SquaredNorm(gradients, norm_state);
    Run(stream, [=](int threads) { cpu::SquaredNorm(gradients, norm_state, threads); });
  }
  void SumRecords(Stream& stream, Tensor records, Tensor total) override {
    check_args::SumRecords(records, total);
    On(stream).Enqueue([=] { cpu::SumRecords(records, total); });
  }
  void FinishNorm(Stream& stream, Tensor norm_state, Tensor loss_sum, float max_norm,
                  Tensor control) override {
    check_args::FinishNorm(norm_state, loss_sum, control);
    On(stream).Enqueue([=] { cpu::FinishNorm(norm_state, loss_sum, max_norm, control); });
  }
  void AdamW(Stream& stream, const AdamWArgs& args) override {
    check_args::AdamW(args);
    Run(stream, [=](int threads) { cpu::AdamW(args, threads); });
  }

 private:
  template <typename Kernel>
  void Run(Stream& stream, Kernel kernel) {
    CpuStream& on = On(stream);
    on.Enqueue([kernel, threads = on.threads()] { kernel(threads); });
  }

  // All streams share one workspace: operations that need it take turns.
  template <typename Kernel>
  void RunWithWorkspace(Stream& stream, Kernel kernel) {
    TRANCHE_CHECK(workspace_.defined()) << "ReserveWorkspace comes before operations that compute";
    CpuStream& on = On(stream);
    on.Enqueue([kernel, this, threads = on.threads()] {
      const std::lock_guard<std::mutex> lock(workspace_in_use_);
      kernel(workspace_.data, threads);
    });
  }

  const int threads_;
  Tensor workspace_;
  std::mutex workspace_in_use_;
};

}  // namespace

std::unique_ptr<Backend> CreateCpuBackend(int threads) {
  return std::make_unique<CpuBackend>(CpuThreads(threads));
}

}  // namespace tranche
