// The CPU's kernels: plain functions that compute at once, in the calling thread's OpenMP team of
// `threads`. CpuBackend enqueues them; arguments and meaning are those of the Backend operation of
// the same name. Each is vector code compiled per instruction set (Highway) and chosen at run time.
// Scratch is uninitialised memory of at least the size that the *ScratchBytes function gives.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/backend.h"

namespace tranche::cpu {

// "AVX2", "AVX-512": what run-time dispatch chose.
const char* InstructionSet();

// gemm.cc: blocked product with packed panels. Element (i, j) is summed over k in an order that
// depends on K alone.
int64_t MatMulScratchBytes(int threads);
void MatMul(const MatMulArgs& args, std::byte* scratch, int threads);
void BiasBackward(Tensor d_bias, Tensor d_out, int threads);

// movement.cc
void Fill(Tensor tensor, float value, int threads);
void Copy(Tensor to, Tensor from, int threads);
void Add(Tensor to, Tensor from, int threads);
void GatherRows(Tensor to, Tensor from, Tensor rows, int threads);
void ScatterAddRows(Tensor to, Tensor from, Tensor rows, int threads);
void Embedding(Tensor out, Tensor table, Tensor ids, bool accumulate, int threads);
void EmbeddingBackward(Tensor d_table, Tensor d_out, Tensor ids, int32_t padding_id, int threads);

// norm.cc. Sums over tokens for d_weight and d_bias run over fixed chunks of rows, so that they do
// not depend on `threads`.
int64_t NormScratchBytes(const WorkspaceLimits& limits, int threads);
void Norm(const NormArgs& args, Tensor x, Tensor y, Tensor statistics, int threads);
void NormBackward(const NormArgs& args, Tensor d_y, Tensor x, Tensor statistics, Tensor d_x,
                  Tensor residual, Tensor d_weight, Tensor d_bias, std::byte* scratch, int threads);

// activation.cc
void ActivationForward(Activation kind, Tensor x, Tensor y, int threads);
void ActivationBackward(Activation kind, Tensor d_y, Tensor x, Tensor d_x, int threads);
void GatedForward(Activation kind, bool gate_first, Tensor x, Tensor y, int threads);
void GatedBackward(Activation kind, bool gate_first, Tensor d_y, Tensor x, Tensor d_x, int threads);

// attention.cc: tiles with a running maximum and sum (Milakov & Gimelshein 2018; Dao et al.,
// "FlashAttention", 2022).
int64_t AttentionScratchBytes(const WorkspaceLimits& limits, int threads);
void Attention(const AttentionArgs& args, Tensor q, Tensor k, Tensor v, Tensor out,
               Tensor log_sum_exp, std::byte* scratch, int threads);
void AttentionBackward(const AttentionArgs& args, Tensor d_out, Tensor q, Tensor k, Tensor v,
                       Tensor out, Tensor log_sum_exp, Tensor d_q, Tensor d_k, Tensor d_v,
                       std::byte* scratch, int threads);
void Rotary(Tensor x, int64_t heads, Tensor positions, Tensor cosine, Tensor sine, bool inverse,
            int threads);

// dropout.cc
void Dropout(const DropoutArgs& args, Tensor x, Tensor residual, Tensor y, int threads);

// loss.cc
void CrossEntropy(Tensor logits, Tensor labels, bool gradient, float scale, Tensor loss_sum,
                  Tensor row_losses, std::byte* scratch, int threads);
int64_t CrossEntropyScratchBytes(
    const WorkspaceLimits& limits);  // a loss per row of a call: calls have at most max_tokens rows

// optimizer.cc
void SquaredNorm(Tensor gradients, Tensor norm_state, int threads);
void SumRecords(Tensor records, Tensor total);
void FinishNorm(Tensor norm_state, Tensor loss_sum, float max_norm, Tensor control);
void AdamW(const AdamWArgs& args, int threads);

}  // namespace tranche::cpu
