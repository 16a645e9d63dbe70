// A parity folder: a tiny model in Hugging Face form, a batch, and what a reference implementation
// computes from them. The folder is untrusted input; InvalidArgument names the file and what is
// wrong with it.
//
//   config.json, model.safetensors  the model
//   batch.safetensors   input_ids, attention_mask, labels [B, T], −100 = no loss; optional
//                       token_type_ids, document_ids [B, T], next_sentence_label [B]
//   expect.safetensors  loss [1], logits [B, T, V], nsp_logits [B, 2], grad.NAME, losses [steps],
//                       grad_norms [steps], after.NAME
//   expect.toml         objective and hyper-parameters
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/batch.h"
#include "model/hf_folder.h"
#include "model/hf_weights.h"
#include "model/param_spec.h"
#include "optim/update_rule.h"

namespace tranche {

struct ParityCase {
  std::string name;  // the folder's own
  ModelConfig config;
  std::vector<ParamSpec> specs;
  HfFolder folder;
  HfWeights weights;

  // Unpadded: tokens with attention_mask 0 are left out; each document is a segment.
  MicroBatch batch;
  // The same tokens with every row predicted, for logits.
  MicroBatch every_row;
  std::vector<int64_t> row_in_expected;  // [N]: row of the expected [B·T, V] for each token
  int64_t padded_rows = 0;               // B·T
  // What the reference rotates by where rotation depends on length: the longest document, padding
  // included.
  int64_t rotary_length = 0;

  UpdateOptions update;
  double learning_rate = 0;
  int64_t steps = 0;
  std::map<std::string, std::vector<float>> expected;

  // The expected values under a name: `elements` of them, or an error that names the file.
  absl::StatusOr<const std::vector<float>*> Expected(const std::string& key,
                                                     int64_t elements) const;
};

absl::StatusOr<ParityCase> ReadParityCase(const std::string& path);

}  // namespace tranche
