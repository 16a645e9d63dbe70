// How one transformer is run: types, what is recomputed, and the largest micro-batch it must hold.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tensor/dtype.h"

namespace tranche {

// What the backward finds saved and what it computes again by running Forward.
//   none: everything saved;  selective: cheap, large activations again (norm outputs, activation
//   functions, normalised queries and keys), the rest saved;  full: only each block's input saved.
enum class Recompute : uint8_t { kNone, kSelective, kFull };
absl::StatusOr<Recompute> ParseRecompute(absl::string_view name);
absl::string_view Name(Recompute recompute);

struct TransformerOptions {
  DType dtype = DType::kFloat32;  // of weights and activations
  Recompute recompute = Recompute::kNone;
  bool training = true;      // false: no memory for backward
  int64_t max_tokens = 0;    // of one micro-batch
  int64_t max_segments = 0;  // also bounds its sequences
  int64_t max_predicted = 0;
  // Of a segment: decides tables of positions, and the frequencies of dynamic rotation.
  int64_t max_length = 0;
  int64_t head_chunk_rows = 0;  // rows whose logits exist at once; 0: about 32 MiB of them
};

}  // namespace tranche
