// The architectures Tranche knows and the documented defaults of their config.json keys
// (transformers' configuration classes).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tranche {

struct ConfigFamily {
  absl::string_view model_type;
  // Accepted in `architectures`; the first is the default. The last is the bare body, whose folders
  // lack a head.
  std::vector<std::string> architectures;
  int64_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads, max_positions;
  double norm_eps;
  absl::string_view norm_eps_key;
  absl::string_view activation_key;
  absl::string_view activation;
  bool tied = false;
  int64_t pad = -1, bos = -1, eos = -1;  // -1: none
  int64_t head_dim = 0;                  // 0: hidden_size / num_attention_heads
  std::vector<std::string> own_keys;     // beside those that every family has
};

// nullptr where the type is unknown.
const ConfigFamily* FindFamily(absl::string_view model_type);
const ConfigFamily* FindFamilyOfArchitecture(absl::string_view architecture);
const std::vector<ConfigFamily>& Families();
// Keys that every family reads, beside its norm_eps_key, activation_key and own_keys.
const std::vector<std::string>& CommonConfigKeys();

}  // namespace tranche
