#include "model/param_spec.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tranche {

int64_t HfPart::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

namespace {

// The Hugging Face names of one family without ".weight" and ".bias".
struct Names {
  std::string embeddings, position, token_type, embedding_norm;
  std::string layer;  // up to and with the dot before the index
  std::string attention_norm, mlp_norm;
  std::vector<std::string> qkv;  // one fused tensor or three
  std::string query_norm, key_norm, attention_output;
  std::vector<std::string> mlp_in;  // one tensor, or gate and up
  std::string mlp_out;
  std::string final_norm, transform, transform_norm, decoder;
  std::string decoder_bias;                       // the whole name
  std::vector<std::string> decoder_bias_aliases;  // whole names
};

Names BertNames(bool roberta) {
  const std::string body = roberta ? "roberta." : "bert.";
  Names names;
  names.embeddings = body + "embeddings.word_embeddings";
  names.position = body + "embeddings.position_embeddings";
  names.token_type = body + "embeddings.token_type_embeddings";
  names.embedding_norm = body + "embeddings.LayerNorm";
  names.layer = body + "encoder.layer.";
  names.attention_norm = "attention.output.LayerNorm";
  names.mlp_norm = "output.LayerNorm";
  names.qkv = {"attention.self.query", "attention.self.key", "attention.self.value"};
  names.attention_output = "attention.output.dense";
  names.mlp_in = {"intermediate.dense"};
  names.mlp_out = "output.dense";
  const std::string head = roberta ? "lm_head." : "cls.predictions.";
  names.transform = roberta ? head + "dense" : head + "transform.dense";
  names.transform_norm = roberta ? head + "layer_norm" : head + "transform.LayerNorm";
  names.decoder = head + "decoder";
  names.decoder_bias = head + "bias";
  names.decoder_bias_aliases = {head + "decoder.bias"};
  return names;
}

Names ModernBertNames() {
  Names names;
  names.embeddings = "model.embeddings.tok_embeddings";
  names.embedding_norm = "model.embeddings.norm";
  names.layer = "model.layers.";
  names.attention_norm = "attn_norm";
  names.mlp_norm = "mlp_norm";
  names.qkv = {"attn.Wqkv"};
  names.attention_output = "attn.Wo";
  names.mlp_in = {"mlp.Wi"};
  names.mlp_out = "mlp.Wo";
  names.final_norm = "model.final_norm";
  names.transform = "head.dense";
  names.transform_norm = "head.norm";
  names.decoder = "decoder";
  names.decoder_bias = "decoder.bias";
  return names;
}

Names DecoderNames(const std::string& model_type) {
  Names names;
  names.embeddings = "model.embed_tokens";
  names.layer = "model.layers.";
  names.attention_norm = "input_layernorm";
  names.mlp_norm = "post_attention_layernorm";
  names.qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
  names.query_norm = "self_attn.q_norm";
  names.key_norm = "self_attn.k_norm";
  names.attention_output = "self_attn.o_proj";
  names.mlp_in = {"mlp.gate_proj", "mlp.up_proj"};
  names.mlp_out = "mlp.down_proj";
  names.final_norm = "model.norm";
  names.decoder = "lm_head";
  names.decoder_bias = "lm_head.bias";
  if (model_type == "phi") {
    names.query_norm = "self_attn.q_layernorm";
    names.key_norm = "self_attn.k_layernorm";
    names.attention_output = "self_attn.dense";
    names.mlp_in = {"mlp.fc1"};
    names.mlp_out = "mlp.fc2";
    names.final_norm = "model.final_layernorm";
  } else if (model_type == "phi3") {
    names.qkv = {"self_attn.qkv_proj"};
    names.mlp_in = {"mlp.gate_up_proj"};
  }
  return names;
}

Names NamesOf(const ModelConfig& config) {
  if (config.model_type == "bert" || config.model_type == "roberta")
    return BertNames(config.model_type == "roberta");
  if (config.model_type == "modernbert") return ModernBertNames();
  return DecoderNames(config.model_type);
}

class Builder {
 public:
  explicit Builder(const ModelConfig& config) : config_(config), names_(NamesOf(config)) {}

  std::vector<ParamSpec> Build() {
    Embeddings();
    for (int64_t i = 0; i < config_.num_layers; ++i) Layer(static_cast<int>(i));
    Head();
    return std::move(specs_);
  }

 private:
  // A matrix stacked from `hf` tensors of `part_rows` rows each.
  ParamSpec& Matrix(std::string name, ParamRole role, const std::vector<std::string>& hf,
                    const std::vector<int64_t>& part_rows, int64_t cols, double std) {
    ParamSpec spec;
    spec.name = std::move(name), spec.group = group_, spec.role = role;
    spec.rows = 0, spec.cols = cols, spec.decay = true;
    spec.init = config_.init_cutoff > 0 ? InitKind::kTruncatedNormal : InitKind::kNormal;
    spec.init_std = std, spec.init_cutoff = config_.init_cutoff;
    for (size_t i = 0; i < hf.size(); ++i) {
      spec.parts.push_back({hf[i] + ".weight", {part_rows[i], cols}, {}});
      spec.rows += part_rows[i];
    }
    specs_.push_back(std::move(spec));
    return specs_.back();
  }

  // A vector joined from `hf` tensors of `sizes` each; `hf` are whole names.
  ParamSpec& Vector(std::string name, ParamRole role, const std::vector<std::string>& hf,
                    const std::vector<int64_t>& sizes, InitKind init) {
    ParamSpec spec;
    spec.name = std::move(name), spec.group = group_, spec.role = role, spec.init = init;
    for (size_t i = 0; i < hf.size(); ++i) {
      spec.parts.push_back({hf[i], {sizes[i]}, {}});
      spec.cols += sizes[i];
    }
    specs_.push_back(std::move(spec));
    return specs_.back();
  }

  // Weight and bias of a norm; the bias's role follows the weight's.
  void Norm(const std::string& name, ParamRole weight, const std::string& hf, int64_t size,
            bool bias) {
    Vector(name + ".weight", weight, {hf + ".weight"}, {size}, InitKind::kOnes);
    if (bias) Vector(name + ".bias", Next(weight), {hf + ".bias"}, {size}, InitKind::kZeros);
  }

  void Linear(const std::string& name, ParamRole weight, const std::vector<std::string>& hf,
              const std::vector<int64_t>& rows, int64_t cols, double std, bool bias) {
    Matrix(name + ".weight", weight, hf, rows, cols, std);
    if (!bias) return;
    std::vector<std::string> biases;
    for (const std::string& each : hf) biases.push_back(each + ".bias");
    Vector(name + ".bias", Next(weight), biases, rows, InitKind::kZeros);
  }

  static ParamRole Next(ParamRole role) {
    return static_cast<ParamRole>(static_cast<int>(role) + 1);
  }

  void Embeddings() {
    const int64_t hidden = config_.hidden_size;
    ParamSpec& token = Matrix("embeddings.token.weight", ParamRole::kTokenEmbedding,
                              {names_.embeddings}, {config_.vocab_size}, hidden, config_.init_std);
    // ModernBERT draws the padding row like the others.
    if (config_.init_cutoff == 0) token.init_zero_row = config_.pad_token_id;
    if (config_.tied) token.parts[0].aliases = {names_.decoder + ".weight"};
    if (config_.position_kind == PositionKind::kLearned) {
      ParamSpec& position =
          Matrix("embeddings.position.weight", ParamRole::kPositionEmbedding, {names_.position},
                 {config_.max_positions}, hidden, config_.init_std);
      if (config_.positions_skip_pad) position.init_zero_row = config_.pad_token_id;
    }
    if (config_.num_token_types > 0) {
      Matrix("embeddings.token_type.weight", ParamRole::kTokenTypeEmbedding, {names_.token_type},
             {config_.num_token_types}, hidden, config_.init_std);
    }
    if (config_.embedding_norm) {
      Norm("embeddings.norm", ParamRole::kEmbeddingNormWeight, names_.embedding_norm, hidden,
           config_.norm_bias);
    }
  }

  void Layer(int layer) {
    group_ = layer + 1;
    const std::string own = absl::StrCat("layers.", layer, ".");
    const std::string hf = absl::StrCat(names_.layer, layer, ".");
    const auto prefixed = [&](std::vector<std::string> names) {
      for (std::string& name : names) name.insert(0, hf);
      return names;
    };
    const int64_t hidden = config_.hidden_size, head_dim = config_.head_dim;
    const int64_t q_rows = config_.num_heads * head_dim, kv_rows = config_.num_kv_heads * head_dim;
    const bool pre = config_.norm_place == NormPlace::kPre;

    const auto attention_norm = [&] {
      if (config_.layers[layer].attention_norm) {
        Norm(own + "attention_norm", ParamRole::kAttentionNormWeight, hf + names_.attention_norm,
             hidden, config_.norm_bias);
      }
    };
    const auto mlp_norm = [&] {
      if (!config_.parallel_residual) {
        Norm(own + "mlp_norm", ParamRole::kMlpNormWeight, hf + names_.mlp_norm, hidden,
             config_.norm_bias);
      }
    };

    if (pre) attention_norm();
    const std::vector<int64_t> qkv_rows = names_.qkv.size() == 1
                                              ? std::vector<int64_t>{q_rows + 2 * kv_rows}
                                              : std::vector<int64_t>{q_rows, kv_rows, kv_rows};
    Linear(own + "qkv", ParamRole::kQkvWeight, prefixed(names_.qkv), qkv_rows, hidden,
           config_.init_std, config_.qkv_bias);
    if (config_.qk_norm != QkNorm::kNone) {
      const bool bias = config_.qk_norm == QkNorm::kLayerNorm;
      Norm(own + "query_norm", ParamRole::kQueryNormWeight, hf + names_.query_norm, head_dim, bias);
      Norm(own + "key_norm", ParamRole::kKeyNormWeight, hf + names_.key_norm, head_dim, bias);
    }
    Linear(own + "attention_output", ParamRole::kAttentionOutputWeight,
           {hf + names_.attention_output}, {hidden}, q_rows, config_.output_init_std,
           config_.attention_output_bias);
    if (!pre) attention_norm();
    if (pre) mlp_norm();
    const int64_t inner = config_.intermediate_size;
    std::vector<int64_t> in_rows(names_.mlp_in.size(), inner);
    if (config_.gated && in_rows.size() == 1) in_rows[0] = 2 * inner;
    Linear(own + "mlp_in", ParamRole::kMlpInWeight, prefixed(names_.mlp_in), in_rows, hidden,
           config_.init_std, config_.mlp_bias);
    Linear(own + "mlp_out", ParamRole::kMlpOutWeight, {hf + names_.mlp_out}, {hidden}, inner,
           config_.output_init_std, config_.mlp_bias);
    if (!pre) mlp_norm();
  }

  void Head() {
    group_ = static_cast<int>(config_.num_layers) + 1;
    const int64_t hidden = config_.hidden_size;
    if (config_.final_norm) {
      Norm("head.final_norm", ParamRole::kFinalNormWeight, names_.final_norm, hidden,
           config_.norm_bias);
    }
    if (config_.head == HeadKind::kMasked) {
      Linear("head.transform", ParamRole::kTransformWeight, {names_.transform}, {hidden}, hidden,
             config_.output_init_std, config_.transform_bias);
      Norm("head.transform_norm", ParamRole::kTransformNormWeight, names_.transform_norm, hidden,
           config_.transform_norm_bias);
    }
    if (!config_.tied) {
      Matrix("head.decoder.weight", ParamRole::kDecoderWeight, {names_.decoder},
             {config_.vocab_size}, hidden, config_.output_init_std);
    }
    if (config_.decoder_bias) {
      Vector("head.decoder.bias", ParamRole::kDecoderBias, {names_.decoder_bias},
             {config_.vocab_size}, InitKind::kZeros)
          .parts[0]
          .aliases = names_.decoder_bias_aliases;
    }
    if (config_.next_sentence_head) {
      Linear("head.pooler", ParamRole::kPoolerWeight, {"bert.pooler.dense"}, {hidden}, hidden,
             config_.init_std, true);
      Linear("head.next_sentence", ParamRole::kNextSentenceWeight, {"cls.seq_relationship"}, {2},
             hidden, config_.init_std, true);
    }
  }

  const ModelConfig& config_;
  const Names names_;
  std::vector<ParamSpec> specs_;
  int group_ = 0;
};

}  // namespace

std::vector<ParamSpec> BuildParamSpecs(const ModelConfig& config) {
  return Builder(config).Build();
}

int FindParam(const std::vector<ParamSpec>& specs, int group, ParamRole role) {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].group == group && specs[i].role == role) return static_cast<int>(i);
  }
  return -1;
}

int64_t TotalElements(const std::vector<ParamSpec>& specs) {
  int64_t total = 0;
  for (const ParamSpec& spec : specs) total += spec.elements();
  return total;
}

}  // namespace tranche
