#include "model/head_block.h"

#include <algorithm>

namespace tranche {
namespace {

constexpr AffineRoles kTransform{ParamRole::kTransformWeight, ParamRole::kTransformBias};
// Large enough for fast products, small enough to stay in the caches' reach.
constexpr int64_t kLogitsBytes = int64_t{32} << 20;
constexpr int64_t kMinChunkRows = 128;

int64_t ChunkRows(const ModelConfig& config, const TransformerOptions& options) {
  int64_t rows = options.head_chunk_rows;
  if (rows <= 0) {
    const int64_t row_bytes = config.vocab_size * SizeOf(options.dtype);
    rows = std::max(kLogitsBytes / row_bytes / 64 * 64, kMinChunkRows);
  }
  return std::clamp<int64_t>(rows, 1, std::max<int64_t>(options.max_predicted, 1));
}

}  // namespace

HeadBlock::HeadBlock(const ModelConfig& config, const std::vector<ParamSpec>& specs,
                     const TransformerOptions& options, GroupAccess& groups)
    : config_(config),
      params_(specs, static_cast<int>(config.num_layers) + 1, groups),
      embeddings_(specs, 0, groups),
      final_norm_{config.norm_kind, config.norm_eps, 1, ParamRole::kFinalNormWeight,
                  ParamRole::kFinalNormBias},
      transform_norm_{NormKind::kLayerNorm, config.norm_eps, 1, ParamRole::kTransformNormWeight,
                      ParamRole::kTransformNormBias},
      chunk_rows_(ChunkRows(config, options)) {}

void HeadBlock::Allocate(const TransformerOptions& options, Arena& arena) {
  const auto matrix = [&](const char* name, DType dtype, int64_t cols) {
    return arena.Allocate(name, MemoryKind::kActivations, dtype, chunk_rows_, cols);
  };
  const DType dtype = options.dtype;
  const int64_t hidden = config_.hidden_size;
  scratch_.gathered = matrix("head.rows", dtype, hidden);
  if (config_.final_norm) {
    scratch_.normed = matrix("head.normed", dtype, hidden);
    scratch_.statistics = matrix("head.norm", DType::kFloat32, 2);
  }
  if (config_.head == HeadKind::kMasked) {
    if (options.training) scratch_.pre = matrix("head.transform.pre", dtype, hidden);
    scratch_.activated = matrix("head.transform.activated", dtype, hidden);
    scratch_.features = matrix("head.transform.normed", dtype, hidden);
    scratch_.feature_statistics = matrix("head.transform.norm", DType::kFloat32, 2);
  }
  scratch_.logits = matrix("head.logits", dtype, config_.vocab_size);
  if (options.training) scratch_.d_features = matrix("head.d_features", dtype, hidden);
}

Tensor HeadBlock::DecoderWeight() const {
  return config_.tied ? embeddings_.weight(ParamRole::kTokenEmbedding)
                      : params_.weight(ParamRole::kDecoderWeight);
}

Tensor HeadBlock::DecoderGradient() const {
  return config_.tied ? embeddings_.gradient(ParamRole::kTokenEmbedding)
                      : params_.gradient(ParamRole::kDecoderWeight);
}

Tensor HeadBlock::TransformInput(const Chunk& chunk) const {
  return config_.final_norm ? chunk.normed : chunk.gathered;
}

Tensor HeadBlock::Features(const Chunk& chunk) const {
  return config_.head == HeadKind::kMasked ? chunk.features : TransformInput(chunk);
}

HeadBlock::Chunk HeadBlock::Forward(const Pass& pass, Tensor x, int64_t begin,
                                    int64_t count) const {
  const Chunk chunk{.rows = pass.batch.predict_rows.SliceCols(begin, count),
                    .gathered = Rows(scratch_.gathered, count),
                    .normed = Rows(scratch_.normed, count),
                    .statistics = Rows(scratch_.statistics, count),
                    .pre = Rows(scratch_.pre, count),
                    .activated = Rows(scratch_.activated, count),
                    .features = Rows(scratch_.features, count),
                    .feature_statistics = Rows(scratch_.feature_statistics, count),
                    .logits = Rows(scratch_.logits, count),
                    .d_features = Rows(scratch_.d_features, count)};
  pass.backend.GatherRows(pass.stream, chunk.gathered, x, chunk.rows);
  if (config_.final_norm) {
    NormForward(pass, params_, final_norm_, chunk.gathered, chunk.normed, chunk.statistics);
  }
  if (config_.head == HeadKind::kMasked) {
    pass.backend.MatMul(pass.stream, {.a = TransformInput(chunk),
                                      .b = params_.weight(kTransform.weight),
                                      .c = chunk.activated,
                                      .transpose_b = true,
                                      .bias = params_.weight(kTransform.bias),
                                      .activation = config_.transform_activation,
                                      .pre_activation = chunk.pre});
    NormForward(pass, params_, transform_norm_, chunk.activated, chunk.features,
                chunk.feature_statistics);
  }
  pass.backend.MatMul(pass.stream, {.a = Features(chunk),
                                    .b = DecoderWeight(),
                                    .c = chunk.logits,
                                    .transpose_b = true,
                                    .bias = params_.weight(ParamRole::kDecoderBias)});
  return chunk;
}

void HeadBlock::Backward(const Pass& pass, const Chunk& chunk, Tensor d_x) const {
  pass.backend.MatMul(pass.stream, {.a = chunk.logits,
                                    .b = Features(chunk),
                                    .c = DecoderGradient(),
                                    .transpose_a = true,
                                    .accumulate = true});
  if (const Tensor d_bias = params_.gradient(ParamRole::kDecoderBias); d_bias.defined()) {
    pass.backend.BiasBackward(pass.stream, d_bias, chunk.logits);
  }
  Tensor d = chunk.d_features;
  pass.backend.MatMul(pass.stream, {.a = chunk.logits, .b = DecoderWeight(), .c = d});
  if (config_.head == HeadKind::kMasked) {
    NormBackward(pass, params_, transform_norm_, d, chunk.activated, chunk.feature_statistics, d,
                 Tensor());
    pass.backend.ActivationBackward(pass.stream, config_.transform_activation, d, chunk.pre, d);
    // activated has served: its memory takes the gradient of the dense layer's input.
    AffineBackward(pass, params_, kTransform, TransformInput(chunk), d, Tensor(), chunk.activated);
    d = chunk.activated;
  }
  if (config_.final_norm) {
    NormBackward(pass, params_, final_norm_, d, chunk.gathered, chunk.statistics, d, Tensor());
  }
  pass.backend.ScatterAddRows(pass.stream, d_x, d, chunk.rows);
}

void HeadBlock::LossAndGradient(const Pass& pass, Tensor x, float scale, Tensor loss_sum,
                                Tensor d_x) const {
  for (int64_t begin = 0; begin < pass.batch.predicted; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, pass.batch.predicted - begin);
    const Chunk chunk = Forward(pass, x, begin, count);
    pass.backend.CrossEntropy(pass.stream, chunk.logits, pass.batch.labels.SliceCols(begin, count),
                              /*gradient=*/true, scale, loss_sum, Tensor());
    Backward(pass, chunk, d_x);
  }
}

void HeadBlock::Loss(const Pass& pass, Tensor x, Tensor loss_sum, Tensor row_losses) const {
  for (int64_t begin = 0; begin < pass.batch.predicted; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, pass.batch.predicted - begin);
    const Chunk chunk = Forward(pass, x, begin, count);
    pass.backend.CrossEntropy(pass.stream, chunk.logits, pass.batch.labels.SliceCols(begin, count),
                              /*gradient=*/false, 1.0f, loss_sum,
                              row_losses.defined() ? row_losses.SliceCols(begin, count) : Tensor());
  }
}

void HeadBlock::Logits(const Pass& pass, Tensor x, Tensor logits) const {
  for (int64_t begin = 0; begin < pass.batch.predicted; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, pass.batch.predicted - begin);
    const Chunk chunk = Forward(pass, x, begin, count);
    pass.backend.Copy(pass.stream, logits.SliceRows(begin, count), chunk.logits);
  }
}

}  // namespace tranche
