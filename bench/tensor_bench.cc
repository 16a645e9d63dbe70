// Speed of the CPU's operations at the sizes of real models. Products report their share of the
// measured peak of the vector units
// ("of_peak"); where oneDNN is installed, its sgemm stands beside ours at the same sizes (run with
// --benchmark_enable_random_interleaving).
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "benchmark/benchmark.h"
#include "tensor/backend.h"
#include "tensor/workspace.h"
#include "tensor_peak.h"
#ifdef TRANCHE_BENCH_ONEDNN
#include "dnnl.h"
#endif

namespace tranche {
namespace {

class Device {
 public:
  Device() : backend_(CreateCpuBackend(0)), arena_(Arena::OnHost(int64_t{1} << 30).value()) {
    WorkspaceLimits limits;
    limits.max_tokens = 4096;
    limits.max_segments = 64;
    limits.heads = 12;
    limits.head_dim = 64;
    backend_->ReserveWorkspace(limits, arena_);
    start_ = arena_.Mark();
    stream_ = backend_->CreateStream("bench");
    peak_ = MeasurePeakFlops(CpuThreads(0));
  }
  static Device& Get() {
    static Device* const device = new Device();
    return *device;
  }

  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }
  double peak() const { return peak_; }
  void Sync() { backend_->Synchronize(*stream_); }
  void Clear() { arena_.Rewind(start_); }
  Tensor Make(int64_t rows, int64_t cols, DType dtype) {
    const Tensor tensor = arena_.Allocate("bench", MemoryKind::kActivations, dtype, rows, cols);
    RandomSequence random(static_cast<uint64_t>(rows * cols));
    for (int64_t i = 0; i < tensor.size(); ++i) {
      const float value = static_cast<float>(random.Uniform()) - 0.5f;
      if (dtype == DType::kFloat32) tensor.Row<float>(0)[i] = value;
      if (dtype == DType::kBFloat16) tensor.Row<BFloat16>(0)[i] = BFloat16(value);
    }
    return tensor;
  }

 private:
  std::unique_ptr<Backend> backend_;
  Arena arena_;
  int64_t start_;
  std::unique_ptr<Stream> stream_;
  double peak_;
};

void ReportFlops(benchmark::State& state, double flops) {
  using benchmark::Counter;
  state.counters["GFLOP/s"] = Counter(flops / 1e9, Counter::kIsIterationInvariantRate);
  state.counters["of_peak"] =
      Counter(flops / Device::Get().peak(), Counter::kIsIterationInvariantRate);
}

enum class Layout { kForward, kInputGradient, kWeightGradient };  // x·Wᵀ, dY·W, dYᵀ·X (+=)

// Rows, columns and inner size of the result of each layout.
void MatMul(benchmark::State& state, Layout layout, DType dtype, Activation activation, int64_t m,
            int64_t n, int64_t k) {
  Device& device = Device::Get();
  device.Clear();
  MatMulArgs args;
  args.transpose_a = layout == Layout::kWeightGradient;
  args.transpose_b = layout == Layout::kForward;
  args.accumulate = layout == Layout::kWeightGradient;
  args.a = args.transpose_a ? device.Make(k, m, dtype) : device.Make(m, k, dtype);
  args.b = args.transpose_b ? device.Make(n, k, dtype) : device.Make(k, n, dtype);
  args.c = device.Make(m, n, args.accumulate ? DType::kFloat32 : dtype);
  args.activation = activation;
  if (activation != Activation::kNone) {
    args.bias = device.Make(1, n, dtype);
    args.pre_activation = device.Make(m, n, dtype);
  }
  for (auto _ : state) {
    device.backend().MatMul(device.stream(), args);
    device.Sync();
  }
  ReportFlops(state,
              2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
}

#ifdef TRANCHE_BENCH_ONEDNN
void OneDnn(benchmark::State& state, Layout layout, int64_t m, int64_t n, int64_t k) {
  Device& device = Device::Get();
  device.Clear();
  const bool ta = layout == Layout::kWeightGradient, tb = layout == Layout::kForward;
  const Tensor a = device.Make(m, k, DType::kFloat32), b = device.Make(k, n, DType::kFloat32);
  const Tensor c = device.Make(m, n, DType::kFloat32);
  for (auto _ : state) {
    dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a.Row<float>(0), ta ? m : k,
               b.Row<float>(0), tb ? k : n, ta ? 1.0f : 0.0f, c.Row<float>(0), n);
  }
  ReportFlops(state,
              2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
}
#endif

void RegisterProducts() {
  struct Size {
    const char* name;
    int64_t tokens, out, in;
  };
  for (const Size& s : {Size{"tiny_qkv", 4096, 768, 256},
                        {"tiny_dense", 4096, 256, 256},
                        {"tiny_fc1", 4096, 1024, 256},
                        {"tiny_fc2", 4096, 256, 1024},
                        {"tiny_head", 1024, 8192, 256},
                        {"bert_dense", 2048, 768, 768},
                        {"bert_fc1", 2048, 3072, 768},
                        {"bert_fc2", 2048, 768, 3072},
                        {"phi2_fc1", 512, 10240, 2560}}) {
    const std::string size = absl::StrCat(s.name, "/", s.tokens, "x", s.out, "x", s.in);
    const auto add = [&](const std::string& name, auto&&... args) {
      benchmark::RegisterBenchmark(absl::StrCat(name, "/", size).c_str(), args...)->UseRealTime();
    };
    const DType fp32 = DType::kFloat32, bf16 = DType::kBFloat16;
    const Activation none = Activation::kNone;
    add("forward", MatMul, Layout::kForward, fp32, none, s.tokens, s.out, s.in);
    add("input_gradient", MatMul, Layout::kInputGradient, fp32, none, s.tokens, s.in, s.out);
    add("weight_gradient", MatMul, Layout::kWeightGradient, fp32, none, s.out, s.in, s.tokens);
    add("forward_bf16", MatMul, Layout::kForward, bf16, none, s.tokens, s.out, s.in);
    add("forward_gelu", MatMul, Layout::kForward, fp32, Activation::kGelu, s.tokens, s.out, s.in);
    add("one_row", MatMul, Layout::kForward, fp32, none, int64_t{1}, s.out, s.in);
#ifdef TRANCHE_BENCH_ONEDNN
    add("onednn_forward", OneDnn, Layout::kForward, s.tokens, s.out, s.in);
    add("onednn_input_gradient", OneDnn, Layout::kInputGradient, s.tokens, s.in, s.out);
    add("onednn_weight_gradient", OneDnn, Layout::kWeightGradient, s.out, s.in, s.tokens);
#endif
  }
}

// Operations bound by memory report bytes per second of what they must read and write.
void Bytes(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

void Activations(benchmark::State& state, Activation kind) {
  Device& device = Device::Get();
  device.Clear();
  const Tensor x = device.Make(2048, 3072, DType::kFloat32),
               y = device.Make(2048, 3072, DType::kFloat32);
  for (auto _ : state) {
    device.backend().ActivationForward(device.stream(), kind, x, y);
    device.Sync();
  }
  Bytes(state, 2 * x.size() * 4);
}
BENCHMARK_CAPTURE(Activations, gelu, Activation::kGelu)->UseRealTime();
BENCHMARK_CAPTURE(Activations, gelu_tanh, Activation::kGeluTanh)->UseRealTime();
BENCHMARK_CAPTURE(Activations, silu, Activation::kSilu)->UseRealTime();

void Norms(benchmark::State& state, NormKind kind, bool backward) {
  Device& device = Device::Get();
  device.Clear();
  NormArgs args;
  args.kind = kind;
  args.weight = device.Make(1, 768, DType::kFloat32);
  const Tensor x = device.Make(2048, 768, DType::kFloat32),
               y = device.Make(2048, 768, DType::kFloat32);
  const Tensor statistics = device.Make(2048, 2, DType::kFloat32),
               d_x = device.Make(2048, 768, DType::kFloat32);
  const Tensor d_weight = device.Make(1, 768, DType::kFloat32);
  device.backend().Norm(device.stream(), args, x, y, statistics);
  for (auto _ : state) {
    if (backward) {
      device.backend().NormBackward(device.stream(), args, y, x, statistics, d_x, Tensor(),
                                    d_weight, Tensor());
    } else {
      device.backend().Norm(device.stream(), args, x, y, statistics);
    }
    device.Sync();
  }
  Bytes(state, (backward ? 3 : 2) * x.size() * 4);
}
BENCHMARK_CAPTURE(Norms, layer_norm, NormKind::kLayerNorm, false)->UseRealTime();
BENCHMARK_CAPTURE(Norms, rms_norm, NormKind::kRmsNorm, false)->UseRealTime();
BENCHMARK_CAPTURE(Norms, layer_norm_backward, NormKind::kLayerNorm, true)->UseRealTime();

void EmbeddingBackward(benchmark::State& state) {
  Device& device = Device::Get();
  device.Clear();
  const Tensor d_table = device.Make(8192, 256, DType::kFloat32),
               d_out = device.Make(4096, 256, DType::kFloat32);
  const Tensor ids = device.Make(1, 4096, DType::kInt32);
  RandomSequence random(1);
  for (int64_t i = 0; i < 4096; ++i)
    ids.Row<int32_t>(0)[i] = static_cast<int32_t>(random.Below(8192));
  for (auto _ : state) {
    device.backend().EmbeddingBackward(device.stream(), d_table, d_out, ids, -1);
    device.Sync();
  }
  Bytes(state, 3 * d_out.size() * 4);
}
BENCHMARK(EmbeddingBackward)->UseRealTime();

void BiasBackward(benchmark::State& state) {
  Device& device = Device::Get();
  device.Clear();
  const Tensor d_bias = device.Make(1, 1024, DType::kFloat32),
               d_out = device.Make(4096, 1024, DType::kFloat32);
  for (auto _ : state) {
    device.backend().BiasBackward(device.stream(), d_bias, d_out);
    device.Sync();
  }
  Bytes(state, d_out.size() * 4);
}
BENCHMARK(BiasBackward)->UseRealTime();

// What a call costs beside its work: enqueue and wait.
void RoundTrip(benchmark::State& state) {
  Device& device = Device::Get();
  device.Clear();
  const Tensor x = device.Make(1, 1, DType::kFloat32);
  for (auto _ : state) {
    device.backend().Fill(device.stream(), x, 0);
    device.Sync();
  }
}
BENCHMARK(RoundTrip)->UseRealTime();

}  // namespace
}  // namespace tranche

int main(int argc, char** argv) {
  tranche::RegisterProducts();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("backend", tranche::Device::Get().backend().Describe());
  benchmark::AddCustomContext("peak GFLOP/s", absl::StrCat(tranche::Device::Get().peak() / 1e9));
  benchmark::RunSpecifiedBenchmarks();
}
