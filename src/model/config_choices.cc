#include "model/config_choices.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text.h"

namespace tranche {
namespace {

double Probability(const ConfigReader& reader, absl::string_view key, double otherwise) {
  const double p = reader.Number(key, otherwise, 0, 1);
  if (p == 1) reader.Error(key, "1 would drop everything; it must be below 1");
  return p;
}

void ReadKvHeads(const ConfigReader& reader, ModelConfig& config) {
  config.num_kv_heads = reader.Int("num_key_value_heads", config.num_heads, 1, 65536);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.Error("num_key_value_heads",
                 absl::StrFormat("num_attention_heads %d %% num_key_value_heads %d = %d, must be 0",
                                 config.num_heads, config.num_kv_heads,
                                 config.num_heads % config.num_kv_heads));
  }
}

// layer_types, or nothing where absent or faulty: true for sliding layers.
std::vector<bool> ReadLayerTypes(const ConfigReader& reader, const ModelConfig& config) {
  const std::vector<std::string> names = reader.Strings("layer_types");
  std::vector<bool> sliding;
  if (names.empty()) return sliding;
  if (static_cast<int64_t>(names.size()) != config.num_layers) {
    reader.Error("layer_types", absl::StrFormat("has %d entries, num_hidden_layers is %d",
                                                names.size(), config.num_layers));
    return sliding;
  }
  for (const std::string& name : names) {
    if (name != "full_attention" && name != "sliding_attention") {
      reader.Error("layer_types",
                   absl::StrCat("\"", name,
                                "\" is not supported; known: full_attention, sliding_attention"));
      return {};
    }
    sliding.push_back(name == "sliding_attention");
  }
  return sliding;
}

void ReadBert(const ConfigReader& reader, ModelConfig& config) {
  const bool roberta = config.model_type == "roberta";
  config.norm_place = NormPlace::kPost;
  config.embedding_norm = true;
  config.final_norm = false;
  config.position_kind = PositionKind::kLearned;
  config.num_token_types = reader.Int("type_vocab_size", 2, 1, kMaxWidth);
  config.causal = false;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  config.embedding_dropout = config.attention_output_dropout = config.mlp_output_dropout =
      Probability(reader, "hidden_dropout_prob", 0.1);
  config.attention_dropout = Probability(reader, "attention_probs_dropout_prob", 0.1);
  config.head = HeadKind::kMasked;
  config.decoder_bias = true;
  config.transform_activation = roberta ? Activation::kGelu : config.activation;
  config.next_sentence_head = config.architecture == "BertForPreTraining";
  if (roberta) {
    config.positions_skip_pad = config.pad_token_id >= 0;
    config.position_offset = config.pad_token_id + 1;
    if (config.position_offset >= config.max_positions) {
      reader.Error(
          "max_position_embeddings",
          absl::StrFormat(
              "max_position_embeddings %d - (pad_token_id %d + 1) leaves no position for a token",
              config.max_positions, config.pad_token_id));
    }
  }
}

void ReadModernBert(const ConfigReader& reader, ModelConfig& config) {
  config.embedding_norm = true;
  config.norm_bias = config.transform_norm_bias = reader.Bool("norm_bias", false);
  config.causal = false;
  config.qkv_bias = config.attention_output_bias = reader.Bool("attention_bias", false);
  config.mlp_bias = reader.Bool("mlp_bias", false);
  config.gated = true;
  config.embedding_dropout = Probability(reader, "embedding_dropout", 0);
  config.attention_dropout = config.attention_output_dropout =
      Probability(reader, "attention_dropout", 0);
  config.mlp_inner_dropout = Probability(reader, "mlp_dropout", 0);
  config.head = HeadKind::kMasked;
  config.decoder_bias = reader.Bool("decoder_bias", true);
  config.transform_bias = reader.Bool("classifier_bias", false);
  config.transform_activation = ReadActivation(reader, "classifier_activation", "gelu");
  config.init_cutoff = reader.Number("initializer_cutoff_factor", 2, 0.1, 100);
  config.output_init_std =
      config.init_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));

  const int64_t every = reader.Int("global_attn_every_n_layers", 3, 1, kMaxLayers);
  const int64_t window = reader.Int("local_attention", 128, 2, kMaxRows);
  std::vector<bool> sliding(config.num_layers);
  for (int64_t i = 0; i < config.num_layers; ++i) sliding[i] = i % every != 0;
  if (const std::vector<bool> named = ReadLayerTypes(reader, config); !named.empty()) {
    if (reader.Has("global_attn_every_n_layers") && named != sliding) {
      reader.Error(
          "layer_types",
          absl::StrFormat("contradicts global_attn_every_n_layers: %d; keep one of them", every));
    }
    sliding = named;
  }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    config.layers[i] = {
        .window = sliding[i] ? window / 2 : 0, .rope = sliding[i] ? 1 : 0, .attention_norm = i > 0};
  }
}

void ReadPhi(const ConfigReader& reader, ModelConfig& config) {
  ReadKvHeads(reader, config);
  config.parallel_residual = true;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = config.decoder_bias = true;
  config.qk_norm = reader.Bool("qk_layernorm", false) ? QkNorm::kLayerNorm : QkNorm::kNone;
  config.embedding_dropout = Probability(reader, "embd_pdrop", 0);
  config.attention_dropout = Probability(reader, "attention_dropout", 0);
  config.attention_output_dropout = config.mlp_output_dropout =
      Probability(reader, "resid_pdrop", 0);
}

// phi-3, Llama and Qwen: RMSNorm before attention and a gated mlp.
void ReadGatedDecoder(const ConfigReader& reader, ModelConfig& config) {
  ReadKvHeads(reader, config);
  config.norm_kind = NormKind::kRmsNorm;
  config.norm_bias = false;
  config.gated = true;
  config.attention_dropout = Probability(reader, "attention_dropout", 0);
  if (config.model_type == "phi3") {
    // transformers reads embd_pdrop here too and applies it nowhere.
    config.attention_output_dropout = config.mlp_output_dropout =
        Probability(reader, "resid_pdrop", 0);
    const int64_t window = reader.Int("sliding_window", 0, 1, kMaxToken);
    for (LayerConfig& layer : config.layers) layer.window = window;
  } else if (config.model_type == "llama") {
    config.qkv_bias = config.attention_output_bias = reader.Bool("attention_bias", false);
    config.mlp_bias = reader.Bool("mlp_bias", false);
  } else if (config.model_type == "qwen3") {
    config.qk_norm = QkNorm::kRmsNorm;
    config.qkv_bias = config.attention_output_bias = reader.Bool("attention_bias", false);
  } else {
    config.qkv_bias = true;
  }
}

void ReadQwenWindows(const ConfigReader& reader, ModelConfig& config) {
  const bool uses_window = reader.Bool("use_sliding_window", false);
  const int64_t window = reader.Int("sliding_window", 4096, 1, kMaxToken);
  const int64_t first = reader.Int("max_window_layers", 28, 0, kMaxToken);
  std::vector<bool> sliding(config.num_layers);
  for (int64_t i = 0; i < config.num_layers; ++i) sliding[i] = uses_window && i >= first;
  if (const std::vector<bool> named = ReadLayerTypes(reader, config);
      !named.empty() && named != sliding) {
    if (!uses_window) {
      reader.Error("layer_types",
                   "names sliding_attention, but use_sliding_window is false; keep one of them");
    } else if (reader.Has("max_window_layers")) {
      reader.Error("layer_types",
                   absl::StrFormat("contradicts max_window_layers: %d; keep one of them", first));
    }
    sliding = named;
  }
  for (int64_t i = 0; i < config.num_layers; ++i) config.layers[i].window = sliding[i] ? window : 0;
}

}  // namespace

Activation ReadActivation(const ConfigReader& reader, absl::string_view key,
                          absl::string_view otherwise) {
  static const auto* names = new std::vector<std::pair<std::string, Activation>>{
      {"gelu", Activation::kGelu},          {"gelu_python", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},  {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh}, {"silu", Activation::kSilu},
      {"swish", Activation::kSilu},         {"quick_gelu", Activation::kQuickGelu},
      {"relu", Activation::kRelu}};
  const std::string name = reader.String(key, otherwise);
  std::vector<std::string> known;
  for (const auto& [candidate, activation] : *names) {
    if (candidate == name) return activation;
    known.push_back(candidate);
  }
  reader.Error(key, absl::StrCat("unknown activation \"", name, "\"", DidYouMean(name, known),
                                 "; known: ", absl::StrJoin(known, ", ")));
  return Activation::kGelu;
}

void ReadChoices(const ConfigReader& reader, ModelConfig& config) {
  if (config.model_type == "bert" || config.model_type == "roberta")
    return ReadBert(reader, config);
  if (config.model_type == "modernbert") return ReadModernBert(reader, config);
  if (config.model_type == "phi") return ReadPhi(reader, config);
  ReadGatedDecoder(reader, config);
  if (absl::StartsWith(config.model_type, "qwen")) ReadQwenWindows(reader, config);
}

}  // namespace tranche
