// Inverse frequencies of rotary position embeddings. The angle of pair i (components i and i +
// dim/2 of a head) at position p is p·inverse_frequencies[i]; its cosine and sine are both
// multiplied by attention_scaling.
//
// Formulas (D = dim, base = theta, f_i = base^(-2i/D)), as transformers' modeling_rope_utils has
// them:
//   default   f_i
//   linear    f_i / factor
//   dynamic   base' = base·(factor·L/max - (factor - 1))^(D/(D-2)), L = max(sequence length, max);
//   base'^(-2i/D) llama3    wavelength w = 2π/f_i: w > old/low -> f_i/factor; w < old/high -> f_i;
//   between, with s = (old/w - low)/(high - low):
//             (1-s)·f_i/factor + s·f_i
//   yarn      ramp r = clamp((i - lo)/(hi - lo), 0, 1): f_i/factor·r + f_i·(1-r); lo, hi from
//   beta_fast, beta_slow (arXiv:2309.00071) longrope  f_i / short_factor[i], or long_factor where
//   the sequence is longer than original_max_positions (arXiv:2402.13753)
// Rounded to float where the reference rounds, so that angles at large positions agree.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace tranche {

// dim/2 values. `sequence_length`: the largest position plus one; matters for dynamic and longrope.
std::vector<float> InverseFrequencies(const RopeConfig& rope, int64_t sequence_length);

// The lengths below max_length beyond which some of the model's ropes takes other frequencies
// (longrope), ascending. They part lengths into classes: class c ends with the c-th of them, the
// last with max_length.
std::vector<int64_t> LengthClasses(const ModelConfig& config, int64_t max_length);

}  // namespace tranche
