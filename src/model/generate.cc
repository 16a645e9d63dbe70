#include "model/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "base/status.h"
#include "model/rope.h"

namespace tranche {
namespace {

// Prompts are read in pieces of this many tokens, which bounds the memory of activations.
constexpr int64_t kChunkTokens = 256;

}  // namespace

int32_t SampleToken(const std::vector<float>& logits, const SamplingOptions& sampling,
                    double draw) {
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  if (sampling.temperature == 0 || sampling.top_k == 1) {
    return *std::min_element(order.begin(), order.end(), likelier);
  }
  if (sampling.top_k > 0 && sampling.top_k < static_cast<int64_t>(order.size())) {
    std::nth_element(order.begin(), order.begin() + sampling.top_k, order.end(), likelier);
    order.resize(static_cast<size_t>(sampling.top_k));
  }
  std::sort(order.begin(), order.end(), likelier);
  const double largest = logits[static_cast<size_t>(order[0])];
  std::vector<double> cumulative;
  double total = 0;
  for (const int32_t id : order) {
    total += std::exp((logits[static_cast<size_t>(id)] - largest) / sampling.temperature);
    cumulative.push_back(total);
  }
  // The shortest prefix that reaches top_p; never empty.
  const auto enough =
      std::lower_bound(cumulative.begin(), cumulative.end() - 1, sampling.top_p * total);
  const double kept = *enough;
  const auto chosen = std::upper_bound(cumulative.begin(), enough, draw * kept);
  return order[static_cast<size_t>(chosen - cumulative.begin())];
}

absl::StatusOr<std::unique_ptr<Generator>> Generator::Create(const ModelConfig& config,
                                                             const std::vector<ParamSpec>& specs,
                                                             const Options& options,
                                                             Backend& backend, Arena& arena,
                                                             GroupAccess& groups) {
  if (!config.causal || config.head != HeadKind::kCausal) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a ", config.model_type, " model fills in masked tokens; generating needs a causal model"));
  }
  auto generator = std::unique_ptr<Generator>(new Generator(backend));
  generator->options_ = options;
  TransformerOptions model_options;
  model_options.dtype = options.dtype;
  model_options.training = false;
  model_options.max_tokens = std::min(kChunkTokens, options.max_length);
  model_options.max_segments = 1;
  model_options.max_predicted = 1;
  model_options.max_length = options.max_length;
  generator->stream_ = backend.CreateStream("generate");
  generator->batch_ = std::make_unique<DeviceBatch>(config, model_options, backend, arena);
  generator->length_classes_ = LengthClasses(config, options.max_length);
  generator->history_.reserve(static_cast<size_t>(options.max_length));
  const int64_t cols = config.num_kv_heads * config.head_dim;
  generator->key_offsets_ =
      arena.Allocate("key offsets", MemoryKind::kActivations, DType::kInt32, 1, 2);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    KeyValueCache cache;
    cache.keys = arena.Allocate(absl::StrCat("layers.", i, ".keys"), MemoryKind::kActivations,
                                options.dtype, options.max_length, cols);
    cache.values = arena.Allocate(absl::StrCat("layers.", i, ".values"), MemoryKind::kActivations,
                                  options.dtype, options.max_length, cols);
    cache.key_offsets = generator->key_offsets_;
    generator->cache_.push_back(cache);
  }
  generator->logits_ =
      arena.Allocate("logits", MemoryKind::kActivations, DType::kFloat32, 1, config.vocab_size);
  generator->host_logits_.resize(static_cast<size_t>(config.vocab_size));
  backend.ReserveWorkspace({.dtype = options.dtype,
                            .max_tokens = model_options.max_tokens,
                            .max_segments = 1,
                            .heads = config.num_heads,
                            .head_dim = config.head_dim},
                           arena);
  TRANCHE_ASSIGN_OR_RETURN(
      generator->transformer_,
      Transformer::Create(config, specs, model_options, backend, arena, groups));
  return generator;
}

void Generator::Reset() {
  for (KeyValueCache& cache : cache_) cache.length = 0;
  history_.clear();
}

int64_t Generator::LengthClass(int64_t length) const {
  return std::lower_bound(length_classes_.begin(), length_classes_.end(), length) -
         length_classes_.begin();
}

void Generator::ReadChunk(absl::Span<const int32_t> tokens, int64_t total) {
  const int32_t count = static_cast<int32_t>(tokens.size());
  const int32_t begin = static_cast<int32_t>(cache_[0].length);
  TRANCHE_CHECK_LE(begin + count, options_.max_length);
  MicroBatch batch;
  batch.input_ids.assign(tokens.begin(), tokens.end());
  batch.positions.resize(tokens.size());
  std::iota(batch.positions.begin(), batch.positions.end(), begin);
  batch.token_types.assign(tokens.size(), 0);
  batch.token_keys.assign(tokens.size(), 0);
  batch.cu_seqlens = batch.cu_sequences = {0, count};
  batch.predict_rows = {count - 1};
  batch.labels = {0};
  const int32_t offsets[2] = {0, begin + count};
  backend_.CopyToDevice(*stream_, key_offsets_, offsets);
  batch_->Upload(*stream_, batch, total);
  transformer_->Decode(*stream_, *batch_, absl::MakeSpan(cache_), logits_);
  backend_.CopyToHost(*stream_, host_logits_.data(), logits_);
  backend_.Synchronize(*stream_);
  for (KeyValueCache& cache : cache_) cache.length += count;
}

const std::vector<float>& Generator::Read(absl::Span<const int32_t> tokens) {
  const int64_t before = static_cast<int64_t>(history_.size());
  history_.insert(history_.end(), tokens.begin(), tokens.end());
  const int64_t total = static_cast<int64_t>(history_.size());
  absl::Span<const int32_t> unread = tokens;
  if (before > 0 && LengthClass(before) != LengthClass(total)) {
    // The keys that are there were rotated by other angles.
    for (KeyValueCache& cache : cache_) cache.length = 0;
    unread = history_;
  }
  for (; !unread.empty(); unread.remove_prefix(std::min<size_t>(unread.size(), kChunkTokens))) {
    ReadChunk(unread.subspan(0, kChunkTokens), total);
  }
  return host_logits_;
}

std::vector<int32_t> Generator::Generate(const std::vector<int32_t>& prompt,
                                         const SamplingOptions& sampling, uint64_t sequence) {
  Reset();
  std::vector<int32_t> generated;
  const int64_t room = options_.max_length - static_cast<int64_t>(prompt.size());
  const int64_t limit = std::min(sampling.max_new_tokens, room);
  if (limit <= 0) return generated;
  RandomSequence random(DeriveKey(sampling.seed, sequence));
  const std::vector<float>* logits = &Read(prompt);
  for (;;) {
    const int32_t next = SampleToken(*logits, sampling, random.Uniform());
    const auto& stops = sampling.stop_ids;
    if (std::find(stops.begin(), stops.end(), next) != stops.end()) break;
    generated.push_back(next);
    if (static_cast<int64_t>(generated.size()) == limit) break;
    logits = &Read({&next, 1});
  }
  return generated;
}

}  // namespace tranche
