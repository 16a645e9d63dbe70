// The only list of parameters anywhere: what is stored, its shape, start value, decay, and the
// Hugging Face tensors it is made of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace tranche {

// What a parameter is to the block that uses it: (group, role) is unique. Matrices are stored [out,
// in], row-major: y = x·Wᵀ + b. H hidden, I intermediate, V vocabulary, P positions, hd head_dim,
// nh/nkv query/key-value heads.
enum class ParamRole {
  // group 0
  kTokenEmbedding,       // [V, H]
  kPositionEmbedding,    // [P, H]
  kTokenTypeEmbedding,   // [num_token_types, H]
  kEmbeddingNormWeight,  // [1, H]
  kEmbeddingNormBias,    // [1, H]
  // groups 1..L
  kAttentionNormWeight,  // [1, H] before attention (pre-norm; with parallel residual it also feeds
                         // the mlp), after it (post-norm)
  kAttentionNormBias,    // [1, H]
  kQkvWeight,            // [(nh + 2·nkv)·hd, H]: all query heads, all key heads, all value heads
  kQkvBias,              // [1, (nh + 2·nkv)·hd]
  kQueryNormWeight,      // [1, hd]
  kQueryNormBias,        // [1, hd]
  kKeyNormWeight,        // [1, hd]
  kKeyNormBias,          // [1, hd]
  kAttentionOutputWeight,  // [H, nh·hd]
  kAttentionOutputBias,    // [1, H]
  kMlpNormWeight,          // [1, H] before the mlp (pre-norm, sequential), after it (post-norm)
  kMlpNormBias,            // [1, H]
  kMlpInWeight,   // [I, H], or gated [2I, H]: the rows under the activation, then their factor
  kMlpInBias,     // [1, I] or [1, 2I]
  kMlpOutWeight,  // [H, I]
  kMlpOutBias,    // [1, H]
  // group L+1
  kFinalNormWeight,      // [1, H]
  kFinalNormBias,        // [1, H]
  kTransformWeight,      // [H, H] masked head
  kTransformBias,        // [1, H]
  kTransformNormWeight,  // [1, H]
  kTransformNormBias,    // [1, H]
  kDecoderWeight,        // [V, H]; absent where tied to kTokenEmbedding
  kDecoderBias,          // [1, V]
  kPoolerWeight,         // [H, H] next-sentence head
  kPoolerBias,           // [1, H]
  kNextSentenceWeight,   // [2, H]
  kNextSentenceBias,     // [1, 2]
};

enum class InitKind { kZeros, kOnes, kNormal, kTruncatedNormal };

// One Hugging Face tensor; the parts of a parameter lie below each other in its rows (1-D: behind
// each other in its columns).
struct HfPart {
  std::string name;
  std::vector<int64_t> shape;        // as stored by Hugging Face: 1-D or 2-D
  std::vector<std::string> aliases;  // tensors that, where a file has them too, must hold the same
                                     // values (tied decoders)
  int64_t elements() const;
};

struct ParamSpec {
  std::string name;  // "layers.3.qkv.weight": Tranche's own, for tables and checkpoints
  int group = 0;     // 0 embeddings, 1..L layers, L+1 head
  ParamRole role = ParamRole::kTokenEmbedding;
  int64_t rows = 1;  // 1-D parameters have one row
  int64_t cols = 0;
  // How it is updated. As built, two-dimensional tensors decay and one-dimensional ones never do;
  // what a run wants else, it writes here before it makes its engine.
  bool decay = false;
  std::optional<float> weight_decay;  // where it decays: instead of the run's
  float lr_scale = 1;                 // of the run's learning rate
  InitKind init = InitKind::kZeros;
  double init_std = 0;
  double init_cutoff = 0;      // kTruncatedNormal: drawn again outside ±init_cutoff·init_std
  int64_t init_zero_row = -1;  // this row starts as zeros (the padding row); -1: none
  std::vector<HfPart> parts;
  int64_t elements() const { return rows * cols; }
};

// In group order, within a group in the order of use. The counts and names equal those of
// transformers' state dict, tied tensors once.
std::vector<ParamSpec> BuildParamSpecs(const ModelConfig& config);

// Its index, or -1 where the model has none.
int FindParam(const std::vector<ParamSpec>& specs, int group, ParamRole role);
int64_t TotalElements(const std::vector<ParamSpec>& specs);

}  // namespace tranche
