#include "model/config_families.h"

#include <algorithm>

namespace tranche {
namespace {

const std::vector<std::string> kRotaryKeys = {"rope_theta", "rope_scaling", "rope_parameters"};

std::vector<std::string> WithRotary(std::vector<std::string> keys) {
  keys.insert(keys.end(), kRotaryKeys.begin(), kRotaryKeys.end());
  return keys;
}

std::vector<ConfigFamily> MakeFamilies() {
  const std::vector<std::string> bert_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob",
                                              "type_vocab_size", "position_embedding_type"};
  const std::vector<std::string> qwen_keys = {
      "num_key_value_heads", "head_dim",          "attention_dropout", "use_sliding_window",
      "sliding_window",      "max_window_layers", "layer_types"};
  std::vector<std::string> qwen3_keys = qwen_keys;
  qwen3_keys.push_back("attention_bias");
  return {
      {"bert",
       {"BertForMaskedLM", "BertForPreTraining", "BertModel"},
       30522,
       768,
       3072,
       12,
       12,
       512,
       1e-12,
       "layer_norm_eps",
       "hidden_act",
       "gelu",
       true,
       0,
       -1,
       -1,
       0,
       bert_keys},
      {"roberta",
       {"RobertaForMaskedLM", "RobertaModel"},
       50265,
       768,
       3072,
       12,
       12,
       512,
       1e-12,
       "layer_norm_eps",
       "hidden_act",
       "gelu",
       true,
       1,
       0,
       2,
       0,
       bert_keys},
      {"modernbert",
       {"ModernBertForMaskedLM", "ModernBertModel"},
       50368,
       768,
       1152,
       22,
       12,
       8192,
       1e-5,
       "norm_eps",
       "hidden_activation",
       "gelu",
       true,
       50283,
       50281,
       50282,
       0,
       {"attention_bias", "attention_dropout", "embedding_dropout", "mlp_dropout", "mlp_bias",
        "norm_bias", "decoder_bias", "classifier_bias", "classifier_activation",
        "global_attn_every_n_layers", "layer_types", "local_attention", "global_rope_theta",
        "local_rope_theta", "rope_scaling", "rope_parameters", "initializer_cutoff_factor"}},
      {"phi",
       {"PhiForCausalLM", "PhiModel"},
       51200,
       2048,
       8192,
       24,
       32,
       2048,
       1e-5,
       "layer_norm_eps",
       "hidden_act",
       "gelu_new",
       false,
       -1,
       1,
       2,
       0,
       WithRotary({"num_key_value_heads", "head_dim", "attention_dropout", "embd_pdrop",
                   "resid_pdrop", "qk_layernorm", "partial_rotary_factor"})},
      {"phi3",
       {"Phi3ForCausalLM", "Phi3Model"},
       32064,
       3072,
       8192,
       32,
       32,
       4096,
       1e-5,
       "rms_norm_eps",
       "hidden_act",
       "silu",
       false,
       32000,
       1,
       32000,
       0,
       WithRotary({"num_key_value_heads", "head_dim", "attention_dropout", "resid_pdrop",
                   "sliding_window", "partial_rotary_factor", "original_max_position_embeddings"})},
      {"llama",
       {"LlamaForCausalLM", "LlamaModel"},
       32000,
       4096,
       11008,
       32,
       32,
       2048,
       1e-6,
       "rms_norm_eps",
       "hidden_act",
       "silu",
       false,
       -1,
       1,
       2,
       0,
       WithRotary({"num_key_value_heads", "head_dim", "attention_dropout", "attention_bias",
                   "mlp_bias", "original_max_position_embeddings"})},
      {"qwen2",
       {"Qwen2ForCausalLM", "Qwen2Model"},
       151936,
       4096,
       22016,
       32,
       32,
       32768,
       1e-6,
       "rms_norm_eps",
       "hidden_act",
       "silu",
       false,
       -1,
       -1,
       -1,
       0,
       WithRotary(qwen_keys)},
      {"qwen3",
       {"Qwen3ForCausalLM", "Qwen3Model"},
       151936,
       4096,
       22016,
       32,
       32,
       32768,
       1e-6,
       "rms_norm_eps",
       "hidden_act",
       "silu",
       false,
       -1,
       -1,
       -1,
       128,
       WithRotary(qwen3_keys)},
  };
}

}  // namespace

const std::vector<ConfigFamily>& Families() {
  static const auto* families = new std::vector<ConfigFamily>(MakeFamilies());
  return *families;
}

const ConfigFamily* FindFamily(absl::string_view model_type) {
  for (const ConfigFamily& family : Families()) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

const ConfigFamily* FindFamilyOfArchitecture(absl::string_view architecture) {
  for (const ConfigFamily& family : Families()) {
    const auto& names = family.architectures;
    if (std::find(names.begin(), names.end(), architecture) != names.end()) return &family;
  }
  return nullptr;
}

const std::vector<std::string>& CommonConfigKeys() {
  static const auto* keys = new std::vector<std::string>{"model_type",
                                                         "architectures",
                                                         "vocab_size",
                                                         "hidden_size",
                                                         "intermediate_size",
                                                         "num_hidden_layers",
                                                         "num_attention_heads",
                                                         "max_position_embeddings",
                                                         "initializer_range",
                                                         "tie_word_embeddings",
                                                         "pad_token_id",
                                                         "bos_token_id",
                                                         "eos_token_id",
                                                         "torch_dtype",
                                                         "dtype"};
  return *keys;
}

}  // namespace tranche
