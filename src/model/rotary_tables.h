// Cosines and sines of the rotary angles on the device, one pair of tables per kind of layer.
#pragma once

#include <vector>

#include "model/model_config.h"
#include "model/transformer_options.h"
#include "tensor/backend.h"

namespace tranche {

class RotaryTables {
 public:
  // [max_length, dim/2] fp32 each. Waits until they are on the device.
  RotaryTables(const ModelConfig& config, const TransformerOptions& options, Backend& backend,
               Arena& arena);

  Tensor cosine(int rope) const { return cosines_[static_cast<size_t>(rope)]; }
  Tensor sine(int rope) const { return sines_[static_cast<size_t>(rope)]; }

 private:
  std::vector<Tensor> cosines_, sines_;
};

}  // namespace tranche
