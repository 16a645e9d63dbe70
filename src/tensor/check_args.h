// The programmer's errors: what every Backend demands of the shapes, types and aliasing of an
// operation's arguments (see backend.h). One home, so that `plan` finds the faults that `cpu`
// would.
#pragma once

#include <cstdint>

#include "tensor/backend.h"

namespace tranche::check_args {

void Fill(const Tensor& tensor, float value);
void HostCopy(const Tensor& tensor);
void Copy(const Tensor& to, const Tensor& from);
void Add(const Tensor& to, const Tensor& from);
// Rows of `many` picked by `rows` against rows of `few`.
void Rows(const Tensor& few, const Tensor& many, const Tensor& rows);
void MatMul(const MatMulArgs& args);
void BiasBackward(const Tensor& d_bias, const Tensor& d_out);
void Embedding(const Tensor& out, const Tensor& table, const Tensor& ids);
void EmbeddingBackward(const Tensor& d_table, const Tensor& d_out, const Tensor& ids);
void Norm(const NormArgs& args, const Tensor& x, const Tensor& y, const Tensor& statistics);
void NormBackward(const NormArgs& args, const Tensor& d_y, const Tensor& x,
                  const Tensor& statistics, const Tensor& d_x, const Tensor& residual,
                  const Tensor& d_weight, const Tensor& d_bias);
void ActivationForward(const Tensor& x, const Tensor& y);
void ActivationBackward(const Tensor& d_y, const Tensor& x, const Tensor& d_x);
void GatedForward(const Tensor& x, const Tensor& y);
void GatedBackward(const Tensor& d_y, const Tensor& x, const Tensor& d_x);
void Dropout(const DropoutArgs& args, const Tensor& x, const Tensor& residual, const Tensor& y);
void Rotary(const Tensor& x, int64_t heads, const Tensor& positions, const Tensor& cosine,
            const Tensor& sine);
void Attention(const AttentionArgs& args, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& out, const Tensor& log_sum_exp);
void AttentionBackward(const AttentionArgs& args, const Tensor& d_out, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& out,
                       const Tensor& log_sum_exp, const Tensor& d_q, const Tensor& d_k,
                       const Tensor& d_v);
void CrossEntropy(const Tensor& logits, const Tensor& labels, const Tensor& loss_sum,
                  const Tensor& row_losses);
void SquaredNorm(const Tensor& gradients, const Tensor& norm_state);
void SumRecords(const Tensor& records, const Tensor& total);
void FinishNorm(const Tensor& norm_state, const Tensor& loss_sum, const Tensor& control);
void AdamW(const AdamWArgs& args);

}  // namespace tranche::check_args
