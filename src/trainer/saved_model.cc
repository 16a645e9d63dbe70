#include "trainer/saved_model.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "tensor/plan_backend.h"
#include "trainer/checkpoint.h"
#include "trainer/recipe_toml.h"
#include "trainer/rehearsal.h"
#include "trainer/start.h"
#include "trainer/weights.h"

namespace tranche {
namespace {

absl::StatusOr<SavedModel> OpenCheckpoint(const std::string& path,
                                          absl::Span<const std::string> sets) {
  SavedModel model;
  model.checkpoint = path;
  TRANCHE_RETURN_IF_ERROR(VerifyCheckpoint(path).status());
  // What the run read may be gone since; what is needed is opened, and named, when it is read.
  TRANCHE_ASSIGN_OR_RETURN(model.recipe,
                           LoadRecipe(JoinPath(path, "recipe.toml"), sets, RecipeFiles::kNone));
  return model;
}

}  // namespace

absl::StatusOr<Recipe> RecipeForFolder(const std::string& path,
                                       absl::Span<const std::string> sets) {
  TRANCHE_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(path));
  const int64_t learned_away =
      config.position_kind == PositionKind::kLearned ? config.position_offset : 0;
  const int64_t length = std::min<int64_t>(2048, config.max_positions - learned_away);
  const std::string text = absl::StrFormat(
      "[model]\npath = %s\ninit = \"random\"\n"
      "[data]\nobjective = \"%s\"\nsequence_length = %d\nsources = [{path = \"none\"}]\n"
      "[training]\nmax_steps = 1\nglobal_batch_size = 1\nmicro_batch_size = 1\n"
      "[optimizer]\nlr = 1e-4\n",
      TomlString(path), config.head == HeadKind::kMasked ? "mlm" : "clm", length);
  return ParseRecipe(text, JoinPath(path, "config.json"), sets, RecipeFiles::kNone);
}

absl::StatusOr<SavedModel> OpenSavedModel(const std::string& path,
                                          absl::Span<const std::string> sets) {
  if (IsCheckpoint(path)) return OpenCheckpoint(path, sets);
  if (IsDirectory(JoinPath(path, "checkpoints"))) {
    TRANCHE_ASSIGN_OR_RETURN(const StartPoint newest,
                             FindStart("auto", JoinPath(path, "checkpoints")));
    if (!newest.checkpoint.empty()) return OpenCheckpoint(newest.checkpoint, sets);
    return absl::NotFoundError(absl::StrCat(path, ": this run has no checkpoint yet"));
  }
  if (!FileExists(JoinPath(path, "config.json"))) {
    return absl::NotFoundError(absl::StrCat(
        path,
        ": is no checkpoint (manifest.toml), no run's directory (checkpoints/) and no model folder "
        "(config.json)"));
  }
  SavedModel model;
  TRANCHE_ASSIGN_OR_RETURN(model.recipe, RecipeForFolder(path, sets));
  model.recipe.model.init = "pretrained";
  return model;
}

absl::Status LoadSavedWeights(const SavedModel& model, const RunSetup& setup, Engine& engine,
                              Backend& backend, Stream& stream) {
  if (model.checkpoint.empty()) return SetFirstWeights(setup, engine, backend, stream);
  return LoadCheckpoint(model.checkpoint, engine, backend, stream);
}

absl::Status ExportCheckpoint(FileSystem& fs, const SavedModel& model,
                              const std::string& directory) {
  TRANCHE_ASSIGN_OR_RETURN(RunSetup setup, SetUpRun(model.recipe, /*with_tokenizer=*/true));
  EngineOptions options;
  options.training = false;
  Arena rehearsal = Arena::Rehearsal();
  const std::unique_ptr<Backend> plan = CreatePlanBackend(1);
  Engine::Create(setup.specs, options, *plan, rehearsal);
  TRANCHE_ASSIGN_OR_RETURN(Arena arena, Arena::OnHost(rehearsal.peak()));
  const std::unique_ptr<Backend> backend = CreateCpuBackend(UsableThreads());
  const std::unique_ptr<Stream> stream = backend->CreateStream("export");
  const std::unique_ptr<Engine> engine = Engine::Create(setup.specs, options, *backend, arena);
  TRANCHE_RETURN_IF_ERROR(LoadSavedWeights(model, setup, *engine, *backend, *stream));
  return ExportModel(fs, setup, *engine, *backend, *stream, directory);
}

}  // namespace tranche
