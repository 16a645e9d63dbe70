#include "model/rotary_tables.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "model/rope.h"

namespace tranche {

RotaryTables::RotaryTables(const ModelConfig& config, const TransformerOptions& options,
                           Backend& backend, Arena& arena) {
  const int64_t length = options.max_length;
  std::unique_ptr<Stream> stream = backend.CreateStream("rotary tables");
  for (size_t r = 0; r < config.ropes.size(); ++r) {
    const RopeConfig& rope = config.ropes[r];
    const int64_t pairs = rope.dim / 2;
    cosines_.push_back(arena.Allocate(absl::StrCat("rotary.", r, ".cosine"), MemoryKind::kWorkspace,
                                      DType::kFloat32, length, pairs));
    sines_.push_back(arena.Allocate(absl::StrCat("rotary.", r, ".sine"), MemoryKind::kWorkspace,
                                    DType::kFloat32, length, pairs));
    if (arena.rehearsal()) continue;
    const std::vector<float> frequencies = InverseFrequencies(rope, length);
    std::vector<float> cosine(static_cast<size_t>(length * pairs)), sine(cosine.size());
    const float scaling = static_cast<float>(rope.attention_scaling);
    for (int64_t position = 0; position < length; ++position) {
      for (int64_t i = 0; i < pairs; ++i) {
        // The reference multiplies in fp32; the angle's rounding is part of the model.
        const float angle = static_cast<float>(position) * frequencies[static_cast<size_t>(i)];
        const size_t at = static_cast<size_t>(position * pairs + i);
        cosine[at] = std::cos(angle) * scaling;
        sine[at] = std::sin(angle) * scaling;
      }
    }
    backend.CopyToDevice(*stream, cosines_.back(), cosine.data());
    backend.CopyToDevice(*stream, sines_.back(), sine.data());
    backend.Synchronize(*stream);
  }
}

}  // namespace tranche
