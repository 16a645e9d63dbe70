#include "model/rotary_tables.h"

#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "model/rope.h"

namespace tranche {

RotaryTables::RotaryTables(const ModelConfig& config, const TransformerOptions& options,
                           Backend& backend, Arena& arena) {
  std::vector<int64_t> parts = LengthClasses(config, options.max_length);
  parts.push_back(options.max_length);
  const int64_t rows = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  std::unique_ptr<Stream> stream = backend.CreateStream("rotary tables");
  for (size_t r = 0; r < config.ropes.size(); ++r) {
    const RopeConfig& rope = config.ropes[r];
    const int64_t pairs = rope.dim / 2;
    cosines_.push_back(arena.Allocate(absl::StrCat("rotary.", r, ".cosine"), MemoryKind::kWorkspace,
                                      DType::kFloat32, rows, pairs));
    sines_.push_back(arena.Allocate(absl::StrCat("rotary.", r, ".sine"), MemoryKind::kWorkspace,
                                    DType::kFloat32, rows, pairs));
    if (arena.rehearsal()) continue;
    std::vector<float> cosine, sine;
    const float scaling = static_cast<float>(rope.attention_scaling);
    for (const int64_t length : parts) {
      const std::vector<float> frequencies = InverseFrequencies(rope, length);
      for (int64_t position = 0; position < length; ++position) {
        for (const float frequency : frequencies) {
          // The reference multiplies in fp32; the angle's rounding is part of the model.
          const float angle = static_cast<float>(position) * frequency;
          cosine.push_back(std::cos(angle) * scaling);
          sine.push_back(std::sin(angle) * scaling);
        }
      }
    }
    backend.CopyToDevice(*stream, cosines_.back(), cosine.data());
    backend.CopyToDevice(*stream, sines_.back(), sine.data());
    backend.Synchronize(*stream);
  }
}

}  // namespace tranche
