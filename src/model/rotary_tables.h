// Cosines and sines of the rotary angles on the device, one pair of tables per kind of layer. Where
// angles depend on the length of what is read (longrope), a table holds one part after another for
// the classes of lengths (see LengthClasses), each as many rows as its longest length;
// DeviceBatch points positions into the part of their segment.
#pragma once

#include <vector>

#include "model/model_config.h"
#include "model/transformer_options.h"
#include "tensor/backend.h"

namespace tranche {

class RotaryTables {
 public:
  // [Σ of the parts' rows, dim/2] fp32 each. Waits until they are on the device.
  RotaryTables(const ModelConfig& config, const TransformerOptions& options, Backend& backend,
               Arena& arena);

  Tensor cosine(int rope) const { return cosines_[static_cast<size_t>(rope)]; }
  Tensor sine(int rope) const { return sines_[static_cast<size_t>(rope)]; }

 private:
  std::vector<Tensor> cosines_, sines_;
};

}  // namespace tranche
