#include "trainer/weights.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status.h"
#include "model/hf_export.h"
#include "model/hf_folder.h"
#include "model/hf_weights.h"
#include "model/initialize.h"

namespace tranche {
namespace {

constexpr int64_t kChunkElements = 1 << 22;

// Elements [first, first + count) of parameter `param`.
using Values = std::function<void(int param, int64_t first, int64_t count, float* out)>;

// Cut into pieces that are worth a task of their own; each is a function of its place alone.
void FillParallel(const Values& values, int param, int64_t first, int64_t count, float* out) {
  constexpr int64_t kPiece = 1 << 16;
  const int64_t pieces = (count + kPiece - 1) / kPiece;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t begin = piece * kPiece;
    values(param, first + begin, std::min(kPiece, count - begin), out + begin);
  }
}

void SetParams(const Values& values, Engine& engine, Backend& backend, Stream& stream) {
  const bool has_master = !engine.state_names().empty();
  std::vector<float> staged(kChunkElements);
  std::vector<BFloat16> rounded(has_master ? 0 : kChunkElements);
  for (size_t i = 0; i < engine.specs().size(); ++i) {
    const int param = static_cast<int>(i);
    for (const Engine::Stretch& stretch : engine.Loadable(param, "master")) {
      const Tensor to = stretch.values;
      for (int64_t first = 0; first < to.cols; first += kChunkElements) {
        const int64_t count = std::min(kChunkElements, to.cols - first);
        FillParallel(values, param, stretch.begin + first, count, staged.data());
        const void* from = staged.data();
        if (!has_master) {
          std::transform(staged.begin(), staged.begin() + count, rounded.begin(),
                         [](float value) { return BFloat16(value); });
          from = rounded.data();
        }
        backend.CopyToDevice(stream, to.SliceCols(first, count), from);
        backend.Synchronize(stream);
      }
    }
  }
  engine.MasterChanged(stream);
  backend.Synchronize(stream);
}

struct Pretrained {
  HfFolder folder;
  HfWeights weights;
};

absl::StatusOr<Pretrained> OpenPretrained(const RunSetup& setup, bool aloud) {
  std::vector<std::string> warnings;
  TRANCHE_ASSIGN_OR_RETURN(HfFolder folder, HfFolder::Open(setup.recipe.model.path, &warnings));
  TRANCHE_ASSIGN_OR_RETURN(
      HfWeights weights,
      HfWeights::Match(folder, setup.config, setup.specs,
                       {.fresh_head = setup.recipe.model.fresh_head}, &warnings));
  if (aloud) {
    for (const std::string& warning : warnings) LogWarning(warning);
    std::vector<std::string> fresh;
    for (const int param : weights.fresh()) {
      for (const HfPart& part : setup.specs[static_cast<size_t>(param)].parts)
        fresh.push_back(part.name);
    }
    if (!fresh.empty()) {
      LogNote(absl::StrCat(setup.recipe.model.path,
                           ": not in the folder, initialised anew: ", absl::StrJoin(fresh, ", ")));
    } else if (setup.recipe.model.fresh_head) {
      LogNote("model.fresh_head has no effect: the folder holds the whole head");
    }
  }
  return Pretrained{std::move(folder), std::move(weights)};
}

}  // namespace

absl::Status CheckFirstWeights(const RunSetup& setup, bool aloud) {
  if (setup.recipe.model.init == "random") return absl::OkStatus();
  return OpenPretrained(setup, aloud).status();
}

absl::Status SetFirstWeights(const RunSetup& setup, Engine& engine, Backend& backend,
                             Stream& stream) {
  const auto seed = static_cast<uint64_t>(setup.recipe.run.seed);
  const Values random = [&](int param, int64_t first, int64_t count, float* out) {
    InitialValues(setup.specs[static_cast<size_t>(param)], seed, first, count, out);
  };
  if (setup.recipe.model.init == "random") {
    SetParams(random, engine, backend, stream);
    return absl::OkStatus();
  }
  TRANCHE_ASSIGN_OR_RETURN(const Pretrained pretrained, OpenPretrained(setup, true));
  std::vector<bool> fresh(setup.specs.size());
  for (const int param : pretrained.weights.fresh()) fresh[static_cast<size_t>(param)] = true;
  SetParams(
      [&](int param, int64_t first, int64_t count, float* out) {
        if (fresh[static_cast<size_t>(param)]) return random(param, first, count, out);
        pretrained.weights.CopyElements(param, first, count, TensorType::kF32, out);
      },
      engine, backend, stream);
  return absl::OkStatus();
}

absl::Status ExportModel(FileSystem& fs, const RunSetup& setup, Engine& engine, Backend& backend,
                         Stream& stream, const std::string& directory) {
  const Recipe& recipe = setup.recipe;
  ExportOptions options;
  options.directory = directory;
  options.max_shard_bytes = recipe.checkpoint.max_shard_size.value;
  options.model_folder = recipe.model.path;
  options.tokenizer_folder =
      recipe.tokenizer.path.empty() ? recipe.model.path : recipe.tokenizer.path;
  if (!options.tokenizer_folder.empty() && !IsDirectory(options.tokenizer_folder)) {
    options.tokenizer_folder = DirName(options.tokenizer_folder);
  }
  options.type = recipe.training.precision == "bf16" ? TensorType::kBF16 : TensorType::kF32;
  std::optional<Pretrained> pretrained;
  if (recipe.model.init == "pretrained") {
    // In the type the weights came in, so that nothing but training changes them.
    TRANCHE_ASSIGN_OR_RETURN(pretrained, OpenPretrained(setup, false));
    const TensorType type = pretrained->weights.dominant_type();
    options.type = type == TensorType::kF64 ? TensorType::kF32 : type;
  }
  const ParamReader read = [&](int param, int64_t first, int64_t count, float* out) {
    const Tensor master = engine.State(param, "master");
    backend.CopyToHost(stream, out, master.Reshape(1, master.size()).SliceCols(first, count));
    backend.Synchronize(stream);
    return absl::OkStatus();
  };
  TRANCHE_RETURN_IF_ERROR(fs.MakeDirs(DirName(directory)));
  LogNote(absl::StrCat(
      "exporting ", setup.config.architecture, " in ", DtypeName(options.type),
      "; tensors are named as transformers names them: ", setup.specs.front().parts.front().name,
      ", ..., ", setup.specs.back().parts.back().name));
  return ExportFolder(fs, options, setup.config_json, setup.config, setup.specs, read,
                      pretrained ? absl::MakeConstSpan(pretrained->weights.carried())
                                 : absl::Span<const StoredTensor>());
}

absl::Status ReplaceFolder(FileSystem& fs, const std::string& directory,
                           absl::FunctionRef<absl::Status(const std::string& folder)> write) {
  const std::string fresh = directory + ".new";
  TRANCHE_RETURN_IF_ERROR(fs.RemoveAll(fresh));
  TRANCHE_RETURN_IF_ERROR(write(fresh));
  TRANCHE_RETURN_IF_ERROR(fs.RemoveAll(directory));
  return fs.Rename(fresh, directory);
}

}  // namespace tranche
