#include "trainer/verbs/inspect_model.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "base/units.h"
#include "model/hf_weights.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

// One row of the table of tensors.
struct Row {
  std::string name;
  std::vector<int64_t> shape;
  std::string type;  // as stored; "" without weights
  bool decay = false;
  std::string parameter;
};

struct Report {
  ModelConfig config;
  std::vector<Row> rows;
  int64_t decayed = 0, undecayed = 0, decayed_tensors = 0;
  std::vector<std::string> notes;
  int64_t parameters() const { return decayed + undecayed; }
};

absl::StatusOr<Report> MakeReport(const std::string& path) {
  Report report;
  std::optional<HfWeights> weights;
  std::vector<ParamSpec> specs;
  if (IsDirectory(path) && HfFolder::HoldsWeights(path)) {
    TRANCHE_ASSIGN_OR_RETURN(const HfFolder folder, HfFolder::Open(path, &report.notes));
    report.config = folder.config();
    specs = BuildParamSpecs(report.config);
    TRANCHE_ASSIGN_OR_RETURN(weights, HfWeights::Match(folder, report.config, specs,
                                                       {.fresh_head = true}, &report.notes));
    if (!weights->fresh().empty()) {
      std::vector<std::string> names;
      for (const int spec : weights->fresh()) {
        for (const HfPart& part : specs[spec].parts) names.push_back(part.name);
      }
      report.notes.push_back(
          absl::StrCat("the head is incomplete; training it asks for a fresh one. Missing: ",
                       absl::StrJoin(names, ", ")));
    }
    if (!weights->carried().empty()) {
      std::vector<std::string> names;
      for (const StoredTensor& tensor : weights->carried()) names.push_back(tensor.name);
      report.notes.push_back(
          absl::StrCat("carried along without training: ", absl::StrJoin(names, ", ")));
    }
    if (!report.config.dtype.empty() &&
        report.config.dtype != DtypeName(weights->dominant_type())) {
      report.notes.push_back(absl::StrCat(
          "config.json says ", report.config.dtype, ", the weights are mostly ",
          DtypeName(weights->dominant_type()), "; each tensor is read by its own type"));
    }
  } else {
    TRANCHE_ASSIGN_OR_RETURN(report.config, ReadModelConfig(path));
    specs = BuildParamSpecs(report.config);
    report.notes.push_back("no weights here: names and shapes follow from the configuration");
  }
  for (const ParamSpec& spec : specs) {
    (spec.decay ? report.decayed : report.undecayed) += spec.elements();
    for (const HfPart& part : spec.parts) {
      report.rows.push_back({part.name, part.shape, weights ? weights->StoredType(part.name) : "",
                             spec.decay, spec.name});
      report.decayed_tensors += spec.decay ? 1 : 0;
    }
  }
  return report;
}

std::string RopeText(const RopeConfig& rope, int64_t head_dim) {
  std::string text = absl::StrFormat("theta %.10g, %s, %d of %d dimensions", rope.theta,
                                     Name(rope.type), rope.dim, head_dim);
  if (rope.type == RopeType::kDefault) return text;
  absl::StrAppendFormat(&text, ", factor %.10g", rope.factor);
  if (rope.type == RopeType::kLlama3) {
    absl::StrAppendFormat(&text, " (low %.10g, high %.10g)", rope.low_freq_factor,
                          rope.high_freq_factor);
  }
  if (rope.original_max_positions > 0)
    absl::StrAppendFormat(&text, ", trained at %d", rope.original_max_positions);
  if (rope.attention_scaling != 1)
    absl::StrAppendFormat(&text, ", cos and sin times %.10g", rope.attention_scaling);
  return text;
}

// "0, 3, 6" of the layers that `which` holds for.
template <typename Which>
std::string LayerList(const ModelConfig& config, Which which) {
  std::vector<int> layers;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (which(config.layers[i])) layers.push_back(static_cast<int>(i));
  }
  return layers.size() == config.layers.size()
             ? "all layers"
             : absl::StrCat("layers ", absl::StrJoin(layers, ", "));
}

}  // namespace

std::string ConfigurationText(const ModelConfig& config) {
  std::string text =
      absl::StrFormat("architecture  %s (%s), %s%s\n", config.architecture, config.model_type,
                      config.head == HeadKind::kCausal ? "causal" : "masked language model",
                      config.next_sentence_head ? " with next-sentence head" : "");
  absl::StrAppendFormat(&text, "sizes         hidden %d, intermediate %d, %d layers, %d heads",
                        config.hidden_size, config.intermediate_size, config.num_layers,
                        config.num_heads);
  if (config.num_kv_heads != config.num_heads)
    absl::StrAppendFormat(&text, " (%d key/value)", config.num_kv_heads);
  absl::StrAppendFormat(&text, " of %d, vocabulary %d, positions %d\n", config.head_dim,
                        config.vocab_size, config.max_positions);
  absl::StrAppendFormat(&text, "blocks        %s %s, eps %g, %s residual, %s%s\n",
                        config.norm_place == NormPlace::kPre ? "pre" : "post",
                        config.norm_kind == NormKind::kRmsNorm ? "RMSNorm" : "LayerNorm",
                        config.norm_eps, config.parallel_residual ? "parallel" : "sequential",
                        config.gated ? "gated " : "", Name(config.activation));
  if (config.position_kind == PositionKind::kLearned) {
    absl::StrAppendFormat(&text, "positions     learned, from row %d on\n", config.position_offset);
  }
  for (size_t i = 0; i < config.ropes.size(); ++i) {
    absl::StrAppendFormat(
        &text, "rotary        %s: %s\n",
        LayerList(config,
                  [&](const LayerConfig& layer) { return layer.rope == static_cast<int>(i); }),
        RopeText(config.ropes[i], config.head_dim));
  }
  std::map<int64_t, bool> windows;
  for (const LayerConfig& layer : config.layers) windows[layer.window] = true;
  for (const auto& [window, present] : windows) {
    if (window == 0) continue;
    absl::StrAppendFormat(
        &text, "window        %s: %d tokens%s\n",
        LayerList(config,
                  [window = window](const LayerConfig& layer) { return layer.window == window; }),
        window, config.causal ? ", the query's own included" : " to each side");
  }
  absl::StrAppendFormat(
      &text, "tokens        pad %d, bos %d, eos %s (-1: none)\n", config.pad_token_id,
      config.bos_token_id,
      config.eos_token_ids.empty() ? "-1" : absl::StrJoin(config.eos_token_ids, ", "));
  return text;
}

absl::StatusOr<std::string> InspectModel(const std::string& path, bool json) {
  TRANCHE_ASSIGN_OR_RETURN(const Report report, MakeReport(path));
  if (json) {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::object();
    for (const Row& row : report.rows) {
      tensors[row.name] = {{"shape", row.shape},
                           {"dtype", row.type},
                           {"decay", row.decay},
                           {"parameter", row.parameter}};
    }
    const nlohmann::ordered_json out = {{"model_type", report.config.model_type},
                                        {"architecture", report.config.architecture},
                                        {"parameters", report.parameters()},
                                        {"decayed_parameters", report.decayed},
                                        {"tied", report.config.tied},
                                        {"tensors", tensors},
                                        {"notes", report.notes}};
    return out.dump(2) + "\n";
  }
  std::string text = ConfigurationText(report.config);
  const int64_t tensors = static_cast<int64_t>(report.rows.size());
  absl::StrAppendFormat(
      &text, "parameters    %s in %d tensors%s\n", FormatInteger(report.parameters()), tensors,
      report.config.tied ? "; the decoder is the token embedding, counted once" : "");
  absl::StrAppendFormat(&text, "decay         %s in %d matrices; none for %s in %d vectors\n",
                        FormatInteger(report.decayed), report.decayed_tensors,
                        FormatInteger(report.undecayed), tensors - report.decayed_tensors);
  for (const std::string& note : report.notes)
    absl::StrAppendFormat(&text, "note          %s\n", note);
  size_t width = 0;
  for (const Row& row : report.rows) width = std::max(width, row.name.size());
  for (const Row& row : report.rows) {
    absl::StrAppendFormat(&text, "%-*s  %-15s %-5s%-6s %s\n", static_cast<int>(width), row.name,
                          absl::StrCat("[", absl::StrJoin(row.shape, ", "), "]"), row.type,
                          row.decay ? "decay" : "", row.parameter);
  }
  return text;
}

}  // namespace tranche
