#include "model/rotary_tables.h"

#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "model/rope.h"

namespace tranche {
namespace {

constexpr double kPi = 3.14159265358979323846;

// sin on [-π/2, π/2] within 2e-9·|angle|. The coefficients are fitted to the values of PyTorch,
// whose tables these are then, to the bit: what is trained here is as exact elsewhere, and a
// table's rounding is in every token.
double SinOfReduced(double x) {
  const double s = x * x;
  return x +
         x * s *
             (-0.1666665955045144 + s * (0.008333066246820146 +
                                         s * (-0.000198096029656645 + s * 2.6057807945167076e-06)));
}

float Sin(float angle) {
  const double turns = std::rint(static_cast<double>(angle) / kPi);
  const double sine = SinOfReduced(static_cast<double>(angle) - turns * kPi);
  return static_cast<float>(std::fmod(turns, 2) == 0 ? sine : -sine);
}

float Cos(float angle) {
  const double turns = std::rint(static_cast<double>(angle) / kPi - 0.5);
  const double sine = SinOfReduced(static_cast<double>(angle) - (turns + 0.5) * kPi);
  return static_cast<float>(std::fmod(turns, 2) == 0 ? -sine : sine);
}

}  // namespace

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
          cosine.push_back(Cos(angle) * scaling);
          sine.push_back(Sin(angle) * scaling);
        }
      }
    }
    backend.CopyToDevice(*stream, cosines_.back(), cosine.data());
    backend.CopyToDevice(*stream, sines_.back(), sine.data());
    backend.Synchronize(*stream);
  }
}

}  // namespace tranche
