#include "model/attention_block.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tranche {
namespace {

constexpr AffineRoles kQkv{ParamRole::kQkvWeight, ParamRole::kQkvBias};
constexpr AffineRoles kOutput{ParamRole::kAttentionOutputWeight, ParamRole::kAttentionOutputBias};

// Σ min(i, reach) over i in [begin, end): how far back the queries at these positions see.
int64_t SumReach(int64_t begin, int64_t end, int64_t reach) {
  const auto below = [](int64_t n) { return n * (n - 1) / 2; };  // Σ i over i < n
  const int64_t turn = std::clamp(reach, begin, end);
  return below(turn) - below(begin) + (end - turn) * reach;
}

}  // namespace

int64_t CountPairs(const std::vector<int32_t>& offsets, bool causal, int64_t reach,
                   int64_t history) {
  int64_t pairs = 0;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t queries = offsets[s + 1] - offsets[s];
    const int64_t keys = queries + history;
    const int64_t bounded = std::min(reach, keys);
    pairs += queries + SumReach(history, keys, bounded);
    if (!causal) pairs += SumReach(0, queries, bounded);
  }
  return pairs;
}

AttentionBlock::AttentionBlock(const ModelConfig& config, int layer, const GroupParams& params,
                               const RotaryTables& tables)
    : config_(config),
      group_(layer + 1),
      params_(params),
      tables_(tables),
      query_cols_(config.num_heads * config.head_dim),
      key_cols_(config.num_kv_heads * config.head_dim),
      has_norm_(config.qk_norm != QkNorm::kNone) {
  const NormKind kind =
      config.qk_norm == QkNorm::kRmsNorm ? NormKind::kRmsNorm : NormKind::kLayerNorm;
  query_norm_ = {kind, config.norm_eps, config.num_heads, ParamRole::kQueryNormWeight,
                 ParamRole::kQueryNormBias};
  key_norm_ = {kind, config.norm_eps, config.num_kv_heads, ParamRole::kKeyNormWeight,
               ParamRole::kKeyNormBias};
}

void AttentionBlock::AllocateCostly(const std::string& prefix, const TransformerOptions& options,
                                    Arena& arena, Saved* saved) const {
  const int64_t n = options.max_tokens;
  saved->qkv = arena.Allocate(prefix + "qkv", MemoryKind::kActivations, options.dtype, n,
                              query_cols_ + 2 * key_cols_);
  saved->output =
      arena.Allocate(prefix + "attention", MemoryKind::kActivations, options.dtype, n, query_cols_);
  saved->log_sum_exp = arena.Allocate(prefix + "attention.log_sum_exp", MemoryKind::kActivations,
                                      DType::kFloat32, n, config_.num_heads);
}

void AttentionBlock::AllocateCheap(const std::string& prefix, const TransformerOptions& options,
                                   Arena& arena, Saved* saved) const {
  if (!has_norm_) return;
  const int64_t n = options.max_tokens;
  saved->query_statistics = arena.Allocate(prefix + "query_norm", MemoryKind::kActivations,
                                           DType::kFloat32, n, 2 * config_.num_heads);
  saved->key_statistics = arena.Allocate(prefix + "key_norm", MemoryKind::kActivations,
                                         DType::kFloat32, n, 2 * config_.num_kv_heads);
  saved->normed = arena.Allocate(prefix + "normed_qk", MemoryKind::kActivations, options.dtype, n,
                                 query_cols_ + key_cols_);
}

void AttentionBlock::AllocateScratch(const std::string& prefix, const TransformerOptions& options,
                                     Arena& arena, Scratch* scratch) const {
  const int64_t n = options.max_tokens;
  const auto matrix = [&](const char* name, int64_t cols) {
    return arena.Allocate(prefix + name, MemoryKind::kActivations, options.dtype, n, cols);
  };
  if (config_.attention_output_dropout > 0) {
    scratch->d_branch = matrix("d_attention_branch", config_.hidden_size);
  }
  scratch->d_output = matrix("d_attention", query_cols_);
  scratch->d_qkv = matrix("d_qkv", query_cols_ + 2 * key_cols_);
}

AttentionArgs AttentionBlock::MakeAttentionArgs(const Pass& pass) const {
  const LayerConfig& layer = config_.layers[static_cast<size_t>(group_ - 1)];
  AttentionArgs args;
  args.heads = config_.num_heads;
  args.kv_heads = config_.num_kv_heads;
  args.head_dim = config_.head_dim;
  args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim)));
  args.causal = config_.causal;
  if (layer.window > 0) args.window = config_.causal ? layer.window - 1 : layer.window;
  args.segments = pass.batch.segments;
  args.query_offsets = pass.batch.segment_offsets;
  args.key_offsets = pass.batch.segment_offsets;
  args.max_length = pass.batch.max_length;
  args.pairs = CountPairs(pass.batch.offsets, config_.causal, args.window, 0);
  args.dropout = pass.Dropout(config_.attention_dropout, group_, DropoutPlace::kAttention);
  return args;
}

DropoutArgs AttentionBlock::OutputDropout(const Pass& pass) const {
  return pass.Dropout(config_.attention_output_dropout, group_, DropoutPlace::kAttentionOutput);
}

void AttentionBlock::Rotate(const Pass& pass, Tensor queries_and_keys, bool inverse) const {
  if (config_.position_kind != PositionKind::kRotary) return;
  const int rope = config_.layers[static_cast<size_t>(group_ - 1)].rope;
  pass.backend.Rotary(pass.stream, queries_and_keys, config_.num_heads + config_.num_kv_heads,
                      pass.batch.positions, tables_.cosine(rope), tables_.sine(rope), inverse);
}

void AttentionBlock::Forward(const Pass& pass, bool cheap_only, Tensor x, const Saved& saved,
                             KeyValueCache* cache) const {
  if (!cheap_only) {
    pass.backend.MatMul(pass.stream, {.a = x,
                                      .b = params_.weight(kQkv.weight),
                                      .c = saved.qkv,
                                      .transpose_b = true,
                                      .bias = params_.weight(kQkv.bias)});
    if (!has_norm_) Rotate(pass, saved.qkv.SliceCols(0, query_cols_ + key_cols_), false);
  }
  if (has_norm_) {
    NormForward(pass, params_, query_norm_, Queries(saved.qkv), Queries(saved.normed),
                saved.query_statistics);
    NormForward(pass, params_, key_norm_, Keys(saved.qkv), Keys(saved.normed),
                saved.key_statistics);
    Rotate(pass, saved.normed, false);
  }
  if (cheap_only) return;
  const Tensor rotated = has_norm_ ? saved.normed : saved.qkv;
  Tensor keys = Keys(rotated), values = Values(saved.qkv);
  AttentionArgs args = MakeAttentionArgs(pass);
  if (cache != nullptr) {
    pass.backend.Copy(pass.stream, cache->keys.SliceRows(cache->length, keys.rows), keys);
    pass.backend.Copy(pass.stream, cache->values.SliceRows(cache->length, values.rows), values);
    const int64_t total = cache->length + keys.rows;
    keys = cache->keys.SliceRows(0, total);
    values = cache->values.SliceRows(0, total);
    args.key_offsets = cache->key_offsets;
    args.max_length = total;
    args.pairs = CountPairs(pass.batch.offsets, config_.causal, args.window, cache->length);
  }
  pass.backend.Attention(pass.stream, args, Queries(rotated), keys, values, saved.output,
                         saved.log_sum_exp);
}

void AttentionBlock::Project(const Pass& pass, const Saved& saved, Tensor residual,
                             Tensor temporary, Tensor out) const {
  AffineDropoutResidual(pass, params_, kOutput, OutputDropout(pass), saved.output, residual,
                        temporary, out);
}

void AttentionBlock::Backward(const Pass& pass, Tensor d_out, Tensor x, const Saved& saved,
                              const Scratch& scratch, Tensor residual, Tensor d_x) const {
  const int64_t n = pass.batch.tokens;
  const Tensor d_output = Rows(scratch.d_output, n), d_qkv = Rows(scratch.d_qkv, n);
  AffineBackward(pass, params_, kOutput, saved.output,
                 ProductGradient(pass, OutputDropout(pass), d_out, scratch.d_branch), Tensor(),
                 d_output);

  const Tensor rotated = has_norm_ ? saved.normed : saved.qkv;
  pass.backend.AttentionBackward(pass.stream, MakeAttentionArgs(pass), d_output, Queries(rotated),
                                 Keys(rotated), Values(saved.qkv), saved.output, saved.log_sum_exp,
                                 Queries(d_qkv), Keys(d_qkv), Values(d_qkv));
  Rotate(pass, d_qkv.SliceCols(0, query_cols_ + key_cols_), true);
  if (has_norm_) {
    NormBackward(pass, params_, query_norm_, Queries(d_qkv), Queries(saved.qkv),
                 saved.query_statistics, Queries(d_qkv), Tensor());
    NormBackward(pass, params_, key_norm_, Keys(d_qkv), Keys(saved.qkv), saved.key_statistics,
                 Keys(d_qkv), Tensor());
  }
  AffineBackward(pass, params_, kQkv, x, d_qkv, residual, d_x);
}

}  // namespace tranche
