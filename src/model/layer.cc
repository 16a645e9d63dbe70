#include "model/layer.h"

#include "model/overlay.h"

namespace tranche {

std::array<Tensor*, 14> Layer::Saved::tensors() {
  return {&normed,
          &statistics,
          &attention.qkv,
          &attention.output,
          &attention.log_sum_exp,
          &attention.query_statistics,
          &attention.key_statistics,
          &attention.normed,
          &middle,
          &mlp_input,
          &mlp_statistics,
          &mlp.pre,
          &mlp.activated,
          &sum};
}

Layer::Saved Layer::Saved::Top(int64_t rows) const {
  Saved top = *this;
  for (Tensor* tensor : top.tensors()) *tensor = Rows(*tensor, rows);
  return top;
}

void Layer::Saved::Complete(const Saved& shared) {
  Saved from = shared;
  const auto to = tensors(), other = from.tensors();
  for (size_t i = 0; i < to.size(); ++i) {
    if (!to[i]->defined()) *to[i] = *other[i];
  }
}

Layer::Layer(const ModelConfig& config, int index, const std::vector<ParamSpec>& specs,
             GroupAccess& groups, const RotaryTables& tables)
    : config_(config),
      layer_(config.layers[static_cast<size_t>(index)]),
      params_(specs, index + 1, groups),
      attention_(config, index, params_, tables),
      mlp_(config, index, params_),
      attention_norm_{config.norm_kind, config.norm_eps, 1, ParamRole::kAttentionNormWeight,
                      ParamRole::kAttentionNormBias},
      mlp_norm_{config.norm_kind, config.norm_eps, 1, ParamRole::kMlpNormWeight,
                ParamRole::kMlpNormBias} {
  TRANCHE_CHECK(!parallel() || !reads_stream()) << "a parallel layer shares its one norm";
}

void Layer::AllocateCostly(const std::string& prefix, const TransformerOptions& options,
                           Arena& arena, Saved* saved) const {
  const auto stream = [&](const char* name) {
    return arena.Allocate(prefix + name, MemoryKind::kActivations, options.dtype,
                          options.max_tokens, config_.hidden_size);
  };
  attention_.AllocateCostly(prefix, options, arena, &saved->attention);
  if (!parallel()) saved->middle = stream("middle");
  mlp_.AllocateCostly(prefix, options, arena, &saved->mlp);
  if (post_norm()) saved->sum = stream("sum");
}

void Layer::AllocateCheap(const std::string& prefix, const TransformerOptions& options,
                          Arena& arena, Saved* saved) const {
  const auto normed = [&](const char* name) {
    return arena.Allocate(prefix + name, MemoryKind::kActivations, options.dtype,
                          options.max_tokens, config_.hidden_size);
  };
  const auto statistics = [&](const char* name) {
    return arena.Allocate(prefix + name, MemoryKind::kActivations, DType::kFloat32,
                          options.max_tokens, 2);
  };
  // Scratch of several layers is made by one of them: it must serve those with a norm as well.
  if (!post_norm()) saved->normed = normed("normed");
  saved->statistics = statistics("attention_norm");
  attention_.AllocateCheap(prefix, options, arena, &saved->attention);
  if (!parallel()) {
    saved->mlp_input = normed("mlp_input");
    saved->mlp_statistics = statistics("mlp_norm");
  }
  mlp_.AllocateCheap(prefix, options, arena, &saved->mlp);
}

void Layer::AllocateScratch(const TransformerOptions& options, Arena& arena,
                            Scratch* scratch) const {
  if (!post_norm()) {
    scratch->d_normed = arena.Allocate("backward.d_normed", MemoryKind::kActivations, options.dtype,
                                       options.max_tokens, config_.hidden_size);
  }
  AllocateOverlaid(
      arena,
      {[&](Arena& where) {
         attention_.AllocateScratch("backward.", options, where, &scratch->attention);
       },
       [&](Arena& where) { mlp_.AllocateScratch("backward.", options, where, &scratch->mlp); }});
}

Tensor Layer::AllocateTemporary(const TransformerOptions& options, Arena& arena) const {
  if (!parallel() || config_.mlp_output_dropout == 0 || !options.training) return Tensor();
  return arena.Allocate("forward.branch", MemoryKind::kActivations, options.dtype,
                        options.max_tokens, config_.hidden_size);
}

void Layer::Forward(const Pass& pass, Part part, Tensor x, const Saved& saved, Tensor temporary,
                    KeyValueCache* cache, Tensor out) const {
  const bool cheap_only = part == Part::kCheap;
  Tensor attention_input = x;
  if (!reads_stream()) {
    NormForward(pass, params_, attention_norm_, x, saved.normed, saved.statistics);
    attention_input = saved.normed;
  }
  attention_.Forward(pass, cheap_only, attention_input, saved.attention, cache);
  if (parallel()) {
    mlp_.Forward(pass, cheap_only, attention_input, saved.mlp);
    if (!out.defined()) return;
    attention_.Project(pass, saved.attention, x, temporary, out);
    mlp_.Project(pass, saved.mlp, out, temporary, out);
    return;
  }
  if (!cheap_only) attention_.Project(pass, saved.attention, x, Tensor(), saved.middle);
  if (post_norm()) {
    NormForward(pass, params_, attention_norm_, saved.middle, saved.mlp_input, saved.statistics);
  } else {
    NormForward(pass, params_, mlp_norm_, saved.middle, saved.mlp_input, saved.mlp_statistics);
  }
  mlp_.Forward(pass, cheap_only, saved.mlp_input, saved.mlp);
  if (post_norm()) {
    if (!cheap_only) mlp_.Project(pass, saved.mlp, saved.mlp_input, Tensor(), saved.sum);
    NormForward(pass, params_, mlp_norm_, saved.sum, out, saved.mlp_statistics);
  } else if (out.defined()) {
    mlp_.Project(pass, saved.mlp, saved.middle, Tensor(), out);
  }
}

void Layer::Backward(const Pass& pass, Tensor x, const Saved& saved, const Scratch& scratch,
                     Tensor d) const {
  const Tensor none;
  if (post_norm()) {
    NormBackward(pass, params_, mlp_norm_, d, saved.sum, saved.mlp_statistics, d, none);
    mlp_.Backward(pass, d, saved.mlp_input, saved.mlp, scratch.mlp, d, d);
    NormBackward(pass, params_, attention_norm_, d, saved.middle, saved.statistics, d, none);
    attention_.Backward(pass, d, x, saved.attention, scratch.attention, d, d);
    return;
  }
  const Tensor d_normed = Rows(scratch.d_normed, d.rows);
  if (parallel()) {
    mlp_.Backward(pass, d, saved.normed, saved.mlp, scratch.mlp, none, d_normed);
    attention_.Backward(pass, d, saved.normed, saved.attention, scratch.attention, d_normed,
                        d_normed);
    NormBackward(pass, params_, attention_norm_, d_normed, x, saved.statistics, d, d);
    return;
  }
  mlp_.Backward(pass, d, saved.mlp_input, saved.mlp, scratch.mlp, none, d_normed);
  NormBackward(pass, params_, mlp_norm_, d_normed, saved.middle, saved.mlp_statistics, d, d);
  if (reads_stream()) {
    attention_.Backward(pass, d, x, saved.attention, scratch.attention, d, d);
    return;
  }
  attention_.Backward(pass, d, saved.normed, saved.attention, scratch.attention, none, d_normed);
  NormBackward(pass, params_, attention_norm_, d_normed, x, saved.statistics, d, d);
}

}  // namespace tranche
