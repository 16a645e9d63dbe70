// One tiny model of each architecture and choice, as config.json texts.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tranche {

// Name and text. Vocabulary 32, at most 64 positions; dropout wherever the architecture has it when
// `dropout` is not 0.
inline std::vector<std::pair<std::string, std::string>> TinyConfigs(double dropout) {
  const std::string p = std::to_string(dropout);
  const std::string size =
      R"("vocab_size":32,"hidden_size":16,"num_hidden_layers":2,"num_attention_heads":2,
         "max_position_embeddings":64,"initializer_range":0.1,)";
  const std::string bert = size + R"("intermediate_size":24,"type_vocab_size":2,"pad_token_id":0,
      "layer_norm_eps":1e-5,"hidden_dropout_prob":)" +
                           p + R"(,"attention_probs_dropout_prob":)" + p;
  return {
      {"bert", R"({"model_type":"bert","architectures":["BertForMaskedLM"],)" + bert + "}"},
      {"bert_next_sentence",
       R"({"model_type":"bert","architectures":["BertForPreTraining"],)" + bert + "}"},
      {"roberta", R"({"model_type":"roberta","architectures":["RobertaForMaskedLM"],)" + size +
                      R"("intermediate_size":24,"type_vocab_size":1,"pad_token_id":1,
          "bos_token_id":0,"eos_token_id":2,"layer_norm_eps":1e-5,"hidden_dropout_prob":)" +
                      p + R"(,"attention_probs_dropout_prob":)" + p + "}"},
      {"modernbert",
       R"({"model_type":"modernbert","architectures":["ModernBertForMaskedLM"],"pad_token_id":0,
          "vocab_size":32,"hidden_size":16,"num_hidden_layers":3,"num_attention_heads":2,
          "max_position_embeddings":64,"intermediate_size":24,"local_attention":8,
          "global_attn_every_n_layers":3,"bos_token_id":1,"eos_token_id":2,"cls_token_id":1,
          "sep_token_id":2,"embedding_dropout":)" +
           p + R"(,"mlp_dropout":)" + p + R"(,"attention_dropout":)" + p + "}"},
      {"phi", R"({"model_type":"phi","architectures":["PhiForCausalLM"],)" + size +
                  R"("intermediate_size":24,"partial_rotary_factor":0.5,"bos_token_id":1,
          "eos_token_id":2,"resid_pdrop":)" +
                  p + R"(,"embd_pdrop":)" + p + R"(,"attention_dropout":)" + p + "}"},
      {"phi_qk_norm", R"({"model_type":"phi","architectures":["PhiForCausalLM"],)" + size +
                          R"("intermediate_size":24,"partial_rotary_factor":0.5,"bos_token_id":1,
          "eos_token_id":2,"qk_layernorm":true,"tie_word_embeddings":true,"resid_pdrop":)" +
                          p + "}"},
      {"phi3", R"({"model_type":"phi3","architectures":["Phi3ForCausalLM"],)" + size +
                   R"("intermediate_size":24,"num_key_value_heads":1,"pad_token_id":0,
          "bos_token_id":1,"eos_token_id":2,"original_max_position_embeddings":64,
          "sliding_window":6,"resid_pdrop":)" +
                   p + "}"},
      {"phi3_longrope", R"({"model_type":"phi3","architectures":["Phi3ForCausalLM"],)" + size +
                            R"("intermediate_size":24,"original_max_position_embeddings":10,
          "pad_token_id":0,"bos_token_id":1,"eos_token_id":2,"rope_scaling":{"type":"longrope",
          "short_factor":[1,1.1,1.2,1.3],"long_factor":[1.5,2,3,4]},"resid_pdrop":)" +
                            p + "}"},
      {"llama", R"({"model_type":"llama","architectures":["LlamaForCausalLM"],)" + size +
                    R"("intermediate_size":24,"num_key_value_heads":1,"bos_token_id":1,
          "eos_token_id":2,"attention_bias":true,"mlp_bias":true,"tie_word_embeddings":true,
          "attention_dropout":)" +
                    p + "}"},
      {"qwen2", R"({"model_type":"qwen2","architectures":["Qwen2ForCausalLM"],)" + size +
                    R"("intermediate_size":24,"num_key_value_heads":2,"bos_token_id":1,
          "eos_token_id":2})"},
      {"qwen3", R"({"model_type":"qwen3","architectures":["Qwen3ForCausalLM"],)" + size +
                    R"("intermediate_size":24,"num_key_value_heads":1,"head_dim":12,
          "bos_token_id":1,"eos_token_id":2})"},
  };
}

}  // namespace tranche
