// Repeats the computation of a parity folder and measures how far it is from the reference: loss,
// logits, every gradient, and the weights after the folder's AdamW steps.
//
// Tolerances (in fp32): loss, losses, logits 5e-5 absolute; a gradient 1e-5 of its tensor's largest
// entry + 1e-6; gradient norms 1e-5 relative; weights 1e-3 · learning rate · steps, save elements
// whose gradient is under 1e-6 (there AdamW only normalises rounding noise) but not exactly 0 in a
// matrix (there weight decay still acts). In bf16 only losses are compared, within 0.1.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/transformer_options.h"
#include "trainer/parity_case.h"

namespace tranche {

struct ParityOptions {
  DType dtype = DType::kFloat32;
  Recompute recompute = Recompute::kNone;
  int threads = 0;  // <= 0: as many as the process may use
};

struct ParityResult {
  std::string quantity;  // "loss", "logits", "gradients", …
  std::string where;     // the tensor or step that is furthest off; empty where there is one only
  double error = 0;      // its difference; NaN and infinities count as infinitely far
  double tolerance = 0;
  bool passed() const { return error <= tolerance; }
};

absl::StatusOr<std::vector<ParityResult>> RunParity(const ParityCase& parity,
                                                    const ParityOptions& options);

}  // namespace tranche
