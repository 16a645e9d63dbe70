#include "model/embedding_block.h"

namespace tranche {

EmbeddingBlock::EmbeddingBlock(const ModelConfig& config, const std::vector<ParamSpec>& specs,
                               GroupAccess& groups)
    : config_(config),
      params_(specs, 0, groups),
      norm_{config.norm_kind, config.norm_eps, 1, ParamRole::kEmbeddingNormWeight,
            ParamRole::kEmbeddingNormBias} {}

void EmbeddingBlock::Allocate(const TransformerOptions& options, Arena& arena, Saved* saved) const {
  if (!has_norm()) return;
  saved->sum = arena.Allocate("embeddings.sum", MemoryKind::kActivations, options.dtype,
                              options.max_tokens, config_.hidden_size);
  saved->statistics = arena.Allocate("embeddings.norm", MemoryKind::kActivations, DType::kFloat32,
                                     options.max_tokens, 2);
}

void EmbeddingBlock::Sum(const Pass& pass, Tensor out) const {
  const auto add = [&](ParamRole table, Tensor ids, bool accumulate) {
    pass.backend.Embedding(pass.stream, out, params_.weight(table), ids, accumulate);
  };
  add(ParamRole::kTokenEmbedding, pass.batch.ids, false);
  if (config_.num_token_types > 0) {
    add(ParamRole::kTokenTypeEmbedding, pass.batch.token_types, true);
  }
  if (config_.position_kind == PositionKind::kLearned) {
    add(ParamRole::kPositionEmbedding, pass.batch.positions, true);
  }
}

void EmbeddingBlock::Forward(const Pass& pass, const Saved& saved, Tensor out) const {
  if (has_norm()) {
    const Tensor sum = Rows(saved.sum, out.rows);
    Sum(pass, sum);
    NormForward(pass, params_, norm_, sum, out, Rows(saved.statistics, out.rows));
  } else {
    Sum(pass, out);
  }
  const DropoutArgs dropout = pass.Dropout(config_.embedding_dropout, 0, DropoutPlace::kEmbedding);
  if (dropout.probability > 0) pass.backend.Dropout(pass.stream, dropout, out, Tensor(), out);
}

void EmbeddingBlock::Backward(const Pass& pass, const Saved& saved, Tensor d) const {
  const DropoutArgs dropout = pass.Dropout(config_.embedding_dropout, 0, DropoutPlace::kEmbedding);
  if (dropout.probability > 0) pass.backend.Dropout(pass.stream, dropout, d, Tensor(), d);
  if (has_norm()) {
    NormBackward(pass, params_, norm_, d, Rows(saved.sum, d.rows), Rows(saved.statistics, d.rows),
                 d, Tensor());
  }
  const auto add = [&](ParamRole table, Tensor ids, int64_t padding_id) {
    pass.backend.EmbeddingBackward(pass.stream, params_.gradient(table), d, ids,
                                   static_cast<int32_t>(padding_id));
  };
  add(ParamRole::kTokenEmbedding, pass.batch.ids, config_.pad_token_id);
  if (config_.num_token_types > 0) {
    add(ParamRole::kTokenTypeEmbedding, pass.batch.token_types, -1);
  }
  if (config_.position_kind == PositionKind::kLearned) {
    add(ParamRole::kPositionEmbedding, pass.batch.positions,
        config_.positions_skip_pad ? config_.pad_token_id : -1);
  }
}

}  // namespace tranche
