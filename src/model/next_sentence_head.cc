#include "model/next_sentence_head.h"

namespace tranche {
namespace {

constexpr AffineRoles kPooler{ParamRole::kPoolerWeight, ParamRole::kPoolerBias};
constexpr AffineRoles kNextSentence{ParamRole::kNextSentenceWeight, ParamRole::kNextSentenceBias};

}  // namespace

void NextSentenceHead::Allocate(const TransformerOptions& options, Arena& arena) {
  const auto matrix = [&](const char* name, int64_t cols) {
    return arena.Allocate(name, MemoryKind::kActivations, options.dtype, options.max_segments,
                          cols);
  };
  first_ = matrix("next_sentence.rows", config_.hidden_size);
  if (options.training) {
    pre_ = matrix("next_sentence.pre", config_.hidden_size);
    d_pooled_ = matrix("next_sentence.d_pooled", config_.hidden_size);
  }
  pooled_ = matrix("next_sentence.pooled", config_.hidden_size);
  logits_ = matrix("next_sentence.logits", 2);
}

void NextSentenceHead::Forward(const Pass& pass, Tensor x) const {
  const int64_t q = pass.batch.sequences;
  pass.backend.GatherRows(pass.stream, Rows(first_, q), x, pass.batch.first_rows);
  pass.backend.MatMul(pass.stream, {.a = Rows(first_, q),
                                    .b = params_.weight(kPooler.weight),
                                    .c = Rows(pooled_, q),
                                    .transpose_b = true,
                                    .bias = params_.weight(kPooler.bias),
                                    .activation = Activation::kTanh,
                                    .pre_activation = Rows(pre_, q)});
  pass.backend.MatMul(pass.stream, {.a = Rows(pooled_, q),
                                    .b = params_.weight(kNextSentence.weight),
                                    .c = Rows(logits_, q),
                                    .transpose_b = true,
                                    .bias = params_.weight(kNextSentence.bias)});
}

void NextSentenceHead::LossAndGradient(const Pass& pass, Tensor x, float scale, Tensor loss_sum,
                                       Tensor d_x) const {
  const int64_t q = pass.batch.sequences;
  if (q == 0) return;
  Forward(pass, x);
  pass.backend.CrossEntropy(pass.stream, Rows(logits_, q), pass.batch.next_sentence_labels,
                            /*gradient=*/true, scale, loss_sum, Tensor());
  const Tensor d_pooled = Rows(d_pooled_, q), d_first = Rows(pooled_, q);
  AffineBackward(pass, params_, kNextSentence, Rows(pooled_, q), Rows(logits_, q), Tensor(),
                 d_pooled);
  pass.backend.ActivationBackward(pass.stream, Activation::kTanh, d_pooled, Rows(pre_, q),
                                  d_pooled);
  // pooled has served: its memory takes the gradient of the pooler's input.
  AffineBackward(pass, params_, kPooler, Rows(first_, q), d_pooled, Tensor(), d_first);
  pass.backend.ScatterAddRows(pass.stream, d_x, d_first, pass.batch.first_rows);
}

void NextSentenceHead::Loss(const Pass& pass, Tensor x, Tensor loss_sum) const {
  if (pass.batch.sequences == 0) return;
  Forward(pass, x);
  pass.backend.CrossEntropy(pass.stream, Rows(logits_, pass.batch.sequences),
                            pass.batch.next_sentence_labels, /*gradient=*/false, 1.0f, loss_sum,
                            Tensor());
}

void NextSentenceHead::Logits(const Pass& pass, Tensor x, Tensor logits) const {
  if (pass.batch.sequences == 0) return;
  Forward(pass, x);
  pass.backend.Copy(pass.stream, logits, Rows(logits_, pass.batch.sequences));
}

}  // namespace tranche
