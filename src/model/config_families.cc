#include "model/config_families.h"

#include <algorithm>

namespace tranche {
namespace {

const std::vector<std::string> kRotaryKeys = {"rope_theta", "rope_scaling", "rope_parameters"};

std::vector<std::string> WithRotary(std::vector<std::string> keys) {
  keys.insert(keys.end(), kRotaryKeys.begin(), kRotaryKeys.end());
  return keys;
}

// Each family in full, or as what it was made from with what differs.
std::vector<ConfigFamily> MakeFamilies() {
  const ConfigFamily bert = {
      .model_type = "bert",
      .architectures = {"BertForMaskedLM", "BertForPreTraining", "BertModel"},
      .vocab_size = 30522,
      .hidden_size = 768,
      .intermediate_size = 3072,
      .num_layers = 12,
      .num_heads = 12,
      .max_positions = 512,
      .norm_eps = 1e-12,
      .norm_eps_key = "layer_norm_eps",
      .activation_key = "hidden_act",
      .activation = "gelu",
      .tied = true,
      .pad = 0,
      .own_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob", "type_vocab_size",
                   "position_embedding_type"}};

  ConfigFamily roberta = bert;
  roberta.model_type = "roberta";
  roberta.architectures = {"RobertaForMaskedLM", "RobertaModel"};
  roberta.vocab_size = 50265;
  roberta.pad = 1, roberta.bos = 0, roberta.eos = 2;

  const ConfigFamily modernbert = {
      .model_type = "modernbert",
      .architectures = {"ModernBertForMaskedLM", "ModernBertModel"},
      .vocab_size = 50368,
      .hidden_size = 768,
      .intermediate_size = 1152,
      .num_layers = 22,
      .num_heads = 12,
      .max_positions = 8192,
      .norm_eps = 1e-5,
      .norm_eps_key = "norm_eps",
      .activation_key = "hidden_activation",
      .activation = "gelu",
      .tied = true,
      .pad = 50283,
      .bos = 50281,
      .eos = 50282,
      .own_keys = {"attention_bias", "attention_dropout", "embedding_dropout", "mlp_dropout",
                   "mlp_bias", "norm_bias", "decoder_bias", "classifier_bias",
                   "classifier_activation", "global_attn_every_n_layers", "layer_types",
                   "local_attention", "global_rope_theta", "local_rope_theta", "rope_scaling",
                   "rope_parameters", "initializer_cutoff_factor"}};

  const ConfigFamily phi = {
      .model_type = "phi",
      .architectures = {"PhiForCausalLM", "PhiModel"},
      .vocab_size = 51200,
      .hidden_size = 2048,
      .intermediate_size = 8192,
      .num_layers = 24,
      .num_heads = 32,
      .max_positions = 2048,
      .norm_eps = 1e-5,
      .norm_eps_key = "layer_norm_eps",
      .activation_key = "hidden_act",
      .activation = "gelu_new",
      .bos = 1,
      .eos = 2,
      .own_keys = WithRotary({"num_key_value_heads", "head_dim", "attention_dropout", "embd_pdrop",
                              "resid_pdrop", "qk_layernorm", "partial_rotary_factor"})};

  const ConfigFamily llama = {
      .model_type = "llama",
      .architectures = {"LlamaForCausalLM", "LlamaModel"},
      .vocab_size = 32000,
      .hidden_size = 4096,
      .intermediate_size = 11008,
      .num_layers = 32,
      .num_heads = 32,
      .max_positions = 2048,
      .norm_eps = 1e-6,
      .norm_eps_key = "rms_norm_eps",
      .activation_key = "hidden_act",
      .activation = "silu",
      .bos = 1,
      .eos = 2,
      .own_keys = WithRotary({"num_key_value_heads", "head_dim", "attention_dropout",
                              "attention_bias", "mlp_bias", "original_max_position_embeddings"})};

  ConfigFamily phi3 = llama;
  phi3.model_type = "phi3";
  phi3.architectures = {"Phi3ForCausalLM", "Phi3Model"};
  phi3.vocab_size = 32064;
  phi3.hidden_size = 3072;
  phi3.intermediate_size = 8192;
  phi3.max_positions = 4096;
  phi3.norm_eps = 1e-5;
  phi3.pad = phi3.eos = 32000;
  phi3.own_keys =
      WithRotary({"num_key_value_heads", "head_dim", "attention_dropout", "resid_pdrop",
                  "sliding_window", "partial_rotary_factor", "original_max_position_embeddings"});

  ConfigFamily qwen2 = llama;
  qwen2.model_type = "qwen2";
  qwen2.architectures = {"Qwen2ForCausalLM", "Qwen2Model"};
  qwen2.vocab_size = 151936;
  qwen2.intermediate_size = 22016;
  qwen2.max_positions = 32768;
  qwen2.bos = qwen2.eos = -1;
  qwen2.own_keys =
      WithRotary({"num_key_value_heads", "head_dim", "attention_dropout", "use_sliding_window",
                  "sliding_window", "max_window_layers", "layer_types"});

  ConfigFamily qwen3 = qwen2;
  qwen3.model_type = "qwen3";
  qwen3.architectures = {"Qwen3ForCausalLM", "Qwen3Model"};
  qwen3.head_dim = 128;
  qwen3.own_keys.emplace_back("attention_bias");

  return {bert, roberta, modernbert, phi, phi3, llama, qwen2, qwen3};
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
