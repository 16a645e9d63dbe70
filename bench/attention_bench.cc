// Speed of attention, rotary positions, dropout, the loss and the update, on memory from an arena
// as in a run. "of_peak" is the share of the machine's multiply-add peak on as many threads.
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"

#include "base/rng.h"
#include "tensor/arena.h"
#include "tensor/cpu/kernels.h"
#include "tensor_peak.h"

namespace tranche {
namespace {

Arena Memory(int64_t bytes) {
  absl::StatusOr<Arena> arena = Arena::OnHost(bytes);
  TRANCHE_CHECK(arena.ok()) << arena.status();
  return *std::move(arena);
}

Tensor Random(Arena& arena, int64_t rows, int64_t cols) {
  const Tensor t = arena.Allocate("t", MemoryKind::kActivations, DType::kFloat32, rows, cols);
  RandomSequence random(1);
  for (int64_t i = 0; i < t.size(); ++i) {
    t.Row<float>(0)[i] = static_cast<float>(random.Uniform() - 0.5);
  }
  return t;
}

// Segments of `length` that make up `tokens`; FLOPs count each visible pair: 4·head_dim forward,
// 10·head_dim backward.
void AttentionRun(benchmark::State& state, bool backward) {
  const int64_t tokens = state.range(0), length = state.range(1), dim = state.range(2);
  const int64_t heads = state.range(3), kv_heads = state.range(4);
  const bool causal = state.range(5) != 0;
  const int threads = static_cast<int>(state.range(6));
  Arena arena = Memory(int64_t{1} << 28);
  const Tensor q = Random(arena, tokens, heads * dim), out = Random(arena, tokens, heads * dim);
  const Tensor d_out = Random(arena, tokens, heads * dim), d_q = Random(arena, tokens, heads * dim);
  const Tensor k = Random(arena, tokens, kv_heads * dim), v = Random(arena, tokens, kv_heads * dim);
  const Tensor d_k = Random(arena, tokens, kv_heads * dim);
  const Tensor d_v = Random(arena, tokens, kv_heads * dim);
  const Tensor lse = Random(arena, tokens, heads);
  std::vector<int32_t> offsets;
  for (int64_t at = 0; at <= tokens; at += length) offsets.push_back(static_cast<int32_t>(at));
  std::vector<uint64_t> token_keys(static_cast<size_t>(tokens));
  for (size_t i = 0; i < token_keys.size(); ++i) token_keys[i] = i;
  AttentionArgs args;
  args.heads = heads;
  args.kv_heads = kv_heads;
  args.head_dim = dim;
  args.scale = 1 / std::sqrt(static_cast<float>(dim));
  args.causal = causal;
  args.segments = static_cast<int64_t>(offsets.size()) - 1;
  args.query_offsets = MakeTensor(offsets.data(), DType::kInt32, 1, args.segments + 1);
  args.key_offsets = args.query_offsets;
  args.max_length = length;
  args.dropout.probability = static_cast<float>(state.range(7)) / 100;
  args.dropout.token_keys = MakeTensor(token_keys.data(), DType::kUInt64, 1, tokens);
  WorkspaceLimits limits;
  limits.max_tokens = tokens;
  limits.max_segments = args.segments;
  limits.heads = heads;
  limits.head_dim = dim;
  const Tensor scratch = Random(arena, 1, cpu::AttentionScratchBytes(limits, threads) / 4);
  cpu::Attention(args, q, k, v, out, lse, scratch.data, threads);
  for (auto _ : state) {
    if (backward) {
      cpu::AttentionBackward(args, d_out, q, k, v, out, lse, d_q, d_k, d_v, scratch.data, threads);
    } else {
      cpu::Attention(args, q, k, v, out, lse, scratch.data, threads);
    }
  }
  const int64_t pairs = args.segments * (causal ? length * (length + 1) / 2 : length * length);
  const double flops = static_cast<double>(pairs * heads * dim) * (backward ? 10 : 4);
  const double total = flops * static_cast<double>(state.iterations());
  state.counters["FLOP/s"] = benchmark::Counter(total, benchmark::Counter::kIsRate);
  state.counters["of_peak"] =
      benchmark::Counter(total / MeasurePeakFlops(threads), benchmark::Counter::kIsRate);
}

void BM_Attention(benchmark::State& state) { AttentionRun(state, false); }
void BM_AttentionBackward(benchmark::State& state) { AttentionRun(state, true); }

void AttentionShapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"tokens", "length", "dim", "heads", "kv_heads", "causal", "threads", "dropout%"});
  b->Args({2048, 2048, 64, 8, 8, 1, 1, 0});
  b->Args({2048, 2048, 64, 8, 8, 0, 1, 0});
  b->Args({2048, 2048, 80, 4, 4, 1, 1, 0});
  b->Args({2048, 2048, 128, 4, 1, 1, 1, 0});
  b->Args({1024, 128, 64, 4, 4, 1, 1, 0});
  b->Args({4096, 128, 64, 12, 12, 0, 1, 0});
  b->Args({4096, 128, 64, 12, 12, 0, 1, 10});
  b->Args({2048, 2048, 64, 8, 8, 1, 2, 0});
  b->Args({4096, 32, 64, 12, 12, 0, 2, 0});
  b->UseRealTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(BM_Attention)->Apply(AttentionShapes);
BENCHMARK(BM_AttentionBackward)->Apply(AttentionShapes);

void BM_CrossEntropy(benchmark::State& state) {
  const int64_t rows = state.range(0), vocabulary = state.range(1);
  Arena arena = Memory(int64_t{1} << 26);
  const Tensor logits = Random(arena, rows, vocabulary);
  std::vector<int32_t> labels(static_cast<size_t>(rows), 1);
  std::vector<double> scratch(static_cast<size_t>(rows));
  double loss = 0;
  for (auto _ : state) {
    cpu::CrossEntropy(logits, MakeTensor(labels.data(), DType::kInt32, 1, rows), true, 1,
                      MakeTensor(&loss, DType::kFloat64, 1, 1), {},
                      reinterpret_cast<std::byte*>(scratch.data()), 1);
  }
  state.SetBytesProcessed(state.iterations() * logits.size() * 8);
}
BENCHMARK(BM_CrossEntropy)->ArgNames({"rows", "vocabulary"})->Args({64, 4096})->Args({16, 51200});

void BM_Dropout(benchmark::State& state) {
  Arena arena = Memory(int64_t{1} << 26);
  const Tensor x = Random(arena, 1024, 768);
  std::vector<uint64_t> token_keys(1024, 3);
  DropoutArgs args;
  args.probability = 0.1f;
  args.token_keys = MakeTensor(token_keys.data(), DType::kUInt64, 1, 1024);
  for (auto _ : state) cpu::Dropout(args, x, {}, x, 1);
  state.SetItemsProcessed(state.iterations() * x.size());
}
BENCHMARK(BM_Dropout);

void BM_Rotary(benchmark::State& state) {
  Arena arena = Memory(int64_t{1} << 26);
  const Tensor x = Random(arena, 2048, 768), cosine = Random(arena, 2048, 32);
  const Tensor sine = Random(arena, 2048, 32);
  std::vector<int32_t> positions(2048);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i);
  for (auto _ : state) {
    cpu::Rotary(x, 12, MakeTensor(positions.data(), DType::kInt32, 1, 2048), cosine, sine, false,
                1);
  }
  state.SetBytesProcessed(state.iterations() * x.size() * 8);
}
BENCHMARK(BM_Rotary);

constexpr int64_t kParameters = 1 << 23;

void BM_SquaredNorm(benchmark::State& state) {
  Arena arena = Memory(int64_t{1} << 26);
  const Tensor gradients = Random(arena, 1, kParameters);
  uint64_t words[4] = {};
  for (auto _ : state) {
    cpu::SquaredNorm(gradients, MakeTensor(words, DType::kUInt64, 1, 4),
                     static_cast<int>(state.range(0)));
  }
  state.SetBytesProcessed(state.iterations() * kParameters * 4);
}
BENCHMARK(BM_SquaredNorm)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

void BM_AdamW(benchmark::State& state) {
  Arena arena = Memory(int64_t{1} << 28);
  float control[4] = {1, 1, 1, 0};
  AdamWArgs args;
  args.master = Random(arena, 1, kParameters);
  args.gradients = Random(arena, 1, kParameters);
  args.m = Random(arena, 1, kParameters);
  args.v = arena.Allocate("v", MemoryKind::kOptimizer, DType::kFloat32, 1, kParameters);
  args.control = MakeTensor(control, DType::kFloat32, 1, 4);
  args.learning_rate = 1e-3;
  for (auto _ : state) cpu::AdamW(args, static_cast<int>(state.range(0)));
  state.SetBytesProcessed(state.iterations() * kParameters * 28);
}
BENCHMARK(BM_AdamW)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace tranche

BENCHMARK_MAIN();
