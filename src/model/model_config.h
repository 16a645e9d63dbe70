// The numbers and choices that make one transformer a BERT, RoBERTa, ModernBERT, phi, phi-3, Llama
// or Qwen. Plain values, read from a config.json (transformers 4 and 5 spellings) or from a
// recipe's [model] keys, which are the same vocabulary.
//
//   x = Dropout_embedding(Norm?(token[ids] + position[p]? + token_type[t]?))
//   pre-norm, sequential:  x += Dropout(attention(Norm(x)));  x += Dropout(mlp(Norm(x)))
//   pre-norm, parallel:    n = Norm(x);  x += Dropout(attention(n)) + Dropout(mlp(n)) (phi-1/1.5/2)
//   post-norm:             x = Norm(x + Dropout(attention(x)));  x = Norm(x + Dropout(mlp(x)))
//   (BERT, RoBERTa) mlp(n) = W_out · Dropout_inner(act(W_in·n)), or gated: [a | b] = W_in·n, W_out
//   · Dropout_inner(act(a) * b) causal head:  logits = W·Norm(x) + bias? masked head:  logits =
//   W·LayerNorm(act(D·Norm?(x) + bias?)) + bias? next-sentence head:  logits2 = N·tanh(P·x[first
//   token] + b) + b
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "tensor/kinds.h"

namespace tranche {

enum class NormPlace { kPre, kPost };
// Normalisation of each query and key head over head_dim, before the rotation; weights [head_dim]
// shared by the heads.
enum class QkNorm { kNone, kLayerNorm, kRmsNorm };
enum class PositionKind { kRotary, kLearned };
enum class HeadKind { kCausal, kMasked };
enum class RopeType { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

// How the angles of one kind of layer are made; see rope.h for the formulas. Components [0, dim) of
// each head rotate in the pairs (i, i + dim/2), the others pass through.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  int64_t dim = 0;  // rotary dimension: even, <= head_dim
  double factor = 1;
  int64_t max_positions = 0;  // the config's max_position_embeddings
  int64_t original_max_positions =
      0;  // llama3, yarn, longrope: what the model was first trained at
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  bool truncate = true;  // yarn: round the correction range outwards to whole dimensions
  std::vector<double> short_factor, long_factor;  // longrope, dim/2 each
  // Multiplies cos and sin (yarn, longrope; 1 elsewhere), resolved from attention_factor, mscale,
  // factor.
  double attention_scaling = 1;
};

struct LayerConfig {
  // 0: every position in sight. Causal w: key k is visible to query q where q - w < k <= q.
  // Bidirectional w: where |q - k| <= w.
  int64_t window = 0;
  int rope = 0;  // index into ModelConfig::ropes
  bool attention_norm =
      true;  // false: attention reads the residual stream as it is (ModernBERT's first layer)
};

struct ModelConfig {
  std::string
      model_type;  // "bert", "roberta", "modernbert", "phi", "phi3", "llama", "qwen2", "qwen3"
  std::string
      architecture;  // "PhiForCausalLM", …: decided by model_type where config.json names none

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads; key/value head j serves query heads j·g … j·g +
                             // g-1, g = num_heads/num_kv_heads
  int64_t head_dim = 0;  // num_heads·head_dim need not equal hidden_size

  NormKind norm_kind = NormKind::kLayerNorm;
  NormPlace norm_place = NormPlace::kPre;
  double norm_eps = 1e-5;
  bool norm_bias = true;           // of LayerNorms in the body (RMSNorm has none)
  bool parallel_residual = false;  // one norm feeds attention and mlp
  bool embedding_norm = false;     // a norm behind the embeddings
  bool final_norm = true;          // a norm before the head

  PositionKind position_kind = PositionKind::kRotary;
  int64_t max_positions =
      0;  // rows of the learned table; for rotary models the length the model was made for
  // Learned positions: the i-th token (from 0) of a document reads row position_offset + i.
  // RoBERTa: pad_token_id + 1, and pad tokens are not counted, read row pad_token_id and send no
  // gradient there (positions_skip_pad).
  int64_t position_offset = 0;
  bool positions_skip_pad = false;
  int64_t num_token_types = 0;      // rows of the token type table; 0: no such table
  std::vector<RopeConfig> ropes;    // empty for learned positions
  std::vector<LayerConfig> layers;  // num_layers

  bool causal = true;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  QkNorm qk_norm = QkNorm::kNone;  // with norm_eps
  bool mlp_bias = false;           // of both projections
  bool gated =
      false;  // mlp_in has 2·intermediate_size rows: the activated half first, then its factor
  Activation activation = Activation::kGelu;

  // Probabilities of dropping.
  double embedding_dropout = 0;
  double attention_dropout = 0;         // on the attention probabilities
  double attention_output_dropout = 0;  // on the attention's output projection
  double mlp_inner_dropout = 0;         // on the input of the mlp's output projection
  double mlp_output_dropout = 0;        // on the mlp's output projection

  HeadKind head = HeadKind::kCausal;
  bool tied = false;  // the decoder's weight is the token embedding
  bool decoder_bias = false;
  bool transform_bias = true;       // masked head: of the dense layer
  bool transform_norm_bias = true;  // masked head: of its LayerNorm
  Activation transform_activation = Activation::kGelu;
  bool next_sentence_head = false;  // pooler + two logits. Clear it to train masked tokens only:
                                    // its tensors are then carried along

  // The lookup of this row of the token embedding sends no gradient to it (the decoder's gradient
  // still does, where tied) and a fresh row starts as zeros: torch's padding_idx. -1: no such row.
  int64_t pad_token_id = -1;
  int64_t bos_token_id = -1;           // -1: none
  std::vector<int64_t> eos_token_ids;  // one or several

  double init_std = 0.02;
  double init_cutoff = 0;         // truncated normal at ±init_cutoff·std; 0: plain normal
  double output_init_std = 0.02;  // of attention output, mlp output, masked head's dense and
                                  // decoder (ModernBERT: std/sqrt(2·layers))

  std::string dtype;  // "float32", "bfloat16", "float16" as config.json declares (torch_dtype or
                      // dtype); "": not declared
};

// Reads config.json's object (or a recipe's [model] keys). null is as good as absent, absent means
// the documented default of that architecture. InvalidArgument, naming `source` and the key:
// unknown model type, unsupported feature, wrong type, two spellings that disagree (both values
// shown), impossible shapes (the formula shown). Everything wrong is reported at once, one line
// each.
absl::StatusOr<ModelConfig> ParseModelConfig(const nlohmann::ordered_json& config,
                                             const std::string& source);
// Of FILE, which may also be a folder that holds config.json.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& path);

// The keys that ParseModelConfig understands for one model type ("" = for any): what a recipe's
// [model] may say.
std::vector<std::string> ModelConfigKeys(absl::string_view model_type);

// What to write as config.json beside weights of type `dtype`: `source` with every key in its place
// and unknown ones untouched, dtype updated under the names it had, and the rotary settings
// completed so that transformers 4 and 5 read the same model. `source` must be one that
// ParseModelConfig accepted as `config`.
nlohmann::ordered_json ExportedConfig(const nlohmann::ordered_json& source,
                                      const ModelConfig& config, absl::string_view dtype);
// The text of a config.json: indented by two, a final newline.
std::string ConfigText(const nlohmann::ordered_json& config);

const char* Name(Activation activation);
const char* Name(RopeType type);

}  // namespace tranche
