// Text generation, as token ids: a causal model that keeps the keys and values of what it has read.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/transformer.h"

namespace tranche {

struct SamplingOptions {
  int64_t max_new_tokens = 128;
  double temperature = 0;  // 0: always the likeliest token
  int64_t top_k = 0;       // only the k likeliest; 0: all
  double top_p = 1;        // only the likeliest that together reach this probability
  uint64_t seed = 0;
  std::vector<int64_t> stop_ids;  // generation ends before any of these
};

class Generator {
 public:
  struct Options {
    DType dtype = DType::kFloat32;
    int64_t max_length = 0;  // prompt and new tokens together
  };

  // Takes all of its memory from the arena, workspace of the backend included. InvalidArgument for
  // a model that is not causal. Backend, arena and groups must outlive it.
  static absl::StatusOr<std::unique_ptr<Generator>> Create(const ModelConfig& config,
                                                           const std::vector<ParamSpec>& specs,
                                                           const Options& options, Backend& backend,
                                                           Arena& arena, GroupAccess& groups);

  // Forgets what was read.
  void Reset();
  // Reads `tokens` (at least one; with those read before, at most max_length) behind what was read,
  // and returns the logits [V] of the token after them.
  const std::vector<float>& Read(absl::Span<const int32_t> tokens);

  // What follows `prompt` (not empty, shorter than max_length). Ends at a stop id, which is left
  // out, after max_new_tokens, or where max_length is reached. Sampling draws from (seed,
  // `sequence`, place).
  std::vector<int32_t> Generate(const std::vector<int32_t>& prompt, const SamplingOptions& sampling,
                                uint64_t sequence);

 private:
  explicit Generator(Backend& backend) : backend_(backend) {}
  // `total`: tokens read when all of Read's are.
  void ReadChunk(absl::Span<const int32_t> tokens, int64_t total);
  // Of what is read, for rotations that depend on it; see LengthClasses.
  int64_t LengthClass(int64_t length) const;

  Backend& backend_;
  Options options_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<DeviceBatch> batch_;
  std::unique_ptr<Transformer> transformer_;
  std::vector<KeyValueCache> cache_;  // one per layer
  std::vector<int64_t> length_classes_;
  std::vector<int32_t> history_;  // what the cache holds
  Tensor key_offsets_, logits_;
  std::vector<float> host_logits_;
};

// Picks a token by its logits. `draw` in [0, 1) decides among those that top_k and top_p leave;
// equal logits rank by id.
int32_t SampleToken(const std::vector<float>& logits, const SamplingOptions& sampling, double draw);

}  // namespace tranche
