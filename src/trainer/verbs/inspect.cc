// `tranche inspect` and `tranche inspect data`: what a folder, file or step holds. The work is done
// beside each kind's own code; here is only the choice.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"
#include "data/tokenizer.h"
#include "trainer/checkpoint.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/recipe.h"
#include "trainer/run_setup.h"
#include "trainer/verbs/inspect_checkpoint.h"
#include "trainer/verbs/inspect_data.h"
#include "trainer/verbs/inspect_model.h"
#include "trainer/verbs/inspect_run.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

enum class Kind { kRun, kCheckpoint, kModel, kRecipe, kDataset };

absl::StatusOr<Kind> KindOf(const std::string& path) {
  if (IsDirectory(path)) {
    if (FileExists(JoinPath(path, kManifestName))) return Kind::kCheckpoint;
    if (FileExists(JoinPath(path, "config.json"))) return Kind::kModel;
    if (IsRunDirectory(path)) return Kind::kRun;
    return absl::NotFoundError(
        absl::StrCat(path, ": this folder is no model (config.json), no checkpoint (",
                     kManifestName, ") and no run (resolved.toml); name one inside it"));
  }
  if (absl::EndsWith(path, ".toml")) return Kind::kRecipe;
  if (absl::EndsWith(path, ".json")) return Kind::kModel;
  if (FileExists(path) || FileExists(absl::StrCat(path, ".idx")) ||
      FileExists(absl::StrCat(path, ".bin"))) {
    return Kind::kDataset;
  }
  return absl::NotFoundError(
      absl::StrCat(path, ": no such file, folder or dataset (", path, ".idx)"));
}

// A flag that would change nothing is refused, like a key of a recipe without effect.
absl::Status CheckFlags(const Arguments& arguments, Kind kind) {
  const auto only = [&](const char* flag, bool allowed, const char* where) {
    return !arguments.Has(flag) || allowed
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrCat("--", flag, " has an effect for ", where, " only"));
  };
  TRANCHE_RETURN_IF_ERROR(only("json", kind != Kind::kRecipe && kind != Kind::kDataset,
                               "models, checkpoints and runs"));
  TRANCHE_RETURN_IF_ERROR(only("tokenizer", kind == Kind::kDataset, "datasets"));
  TRANCHE_RETURN_IF_ERROR(only("token-dtype", kind == Kind::kDataset, "datasets"));
  return only("set", kind == Kind::kRecipe, "recipes");
}

absl::StatusOr<std::string> Inspect(const Arguments& arguments) {
  const std::string& path = arguments.positionals()[0];
  TRANCHE_ASSIGN_OR_RETURN(const Kind kind, KindOf(path));
  TRANCHE_RETURN_IF_ERROR(CheckFlags(arguments, kind));
  switch (kind) {
    case Kind::kRun:
      return InspectRun(path, arguments.Has("json"));
    case Kind::kCheckpoint:
      return InspectCheckpoint(path, arguments.Has("json"));
    case Kind::kModel:
      return InspectModel(path, arguments.Has("json"));
    case Kind::kRecipe: {
      TRANCHE_ASSIGN_OR_RETURN(const Recipe recipe,
                               LoadRecipe(path, arguments.GetAll("set"), RecipeFiles::kNone));
      return PrintRecipe(recipe);
    }
    case Kind::kDataset:
      break;
  }
  std::unique_ptr<Tokenizer> tokenizer;
  if (arguments.Has("tokenizer")) {
    TRANCHE_ASSIGN_OR_RETURN(tokenizer, Tokenizer::Load(arguments.Get("tokenizer")));
  }
  return InspectDataset(path, arguments.Get("token-dtype", "auto"), tokenizer.get());
}

absl::StatusOr<LoaderOptions> LoaderOf(const RunSetup& setup, const std::string& set) {
  if (set.empty()) return setup.train;
  std::vector<std::string> names;
  for (const NamedLoader& loader : setup.validation) {
    if (loader.name == set) return loader.options;
    names.push_back(loader.name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--validation: the recipe has no validation set \"", set, "\"", DidYouMean(set, names),
      names.empty() ? "" : absl::StrCat("; it has: ", absl::StrJoin(names, ", "))));
}

absl::StatusOr<std::string> InspectRecipeData(const Arguments& arguments) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  TRANCHE_ASSIGN_OR_RETURN(const int64_t step, arguments.GetInt("step", 1, 1, kAny));
  TRANCHE_ASSIGN_OR_RETURN(
      const Recipe recipe,
      LoadRecipe(arguments.positionals()[0], arguments.GetAll("set"), RecipeFiles::kAll));
  TRANCHE_ASSIGN_OR_RETURN(const RunSetup setup, SetUpRun(recipe, /*with_tokenizer=*/true));
  TRANCHE_ASSIGN_OR_RETURN(const LoaderOptions options,
                           LoaderOf(setup, arguments.Get("validation")));
  TRANCHE_ASSIGN_OR_RETURN(const std::string text,
                           InspectStep(options, step - 1, arguments.Has("rows")));
  // The loader counts steps from 0, people and the log from 1.
  return absl::StrCat("step ", step, absl::StripPrefix(text, absl::StrCat("step ", step - 1)));
}

int Print(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return ReportError(text.status());
  absl::PrintF("%s%s", *text, absl::EndsWith(*text, "\n") ? "" : "\n");
  return kExitDone;
}

}  // namespace

Verb InspectVerb() {
  return {
      .name = "inspect",
      .summary =
          "Shows what a run, model folder, checkpoint, dataset or recipe holds, after checking it.",
      .usage = "PATH [flags]",
      .example = "tranche inspect runs/quickstart",
      .flags = {{"json", "", "Prints JSON (runs, models and checkpoints)."},
                {"tokenizer", "PATH", "Shows a dataset's first document as text."},
                {"token-dtype", "TYPE",
                 "Type of a bare token file's ids: uint16, uint32 or int32."},
                SetFlag()},
      .min_positionals = 1,
      .max_positionals = 1,
      .run = [](const Arguments& arguments) { return Print(Inspect(arguments)); }};
}

Verb InspectDataVerb() {
  return {.name = "inspect data",
          .summary =
              "Shows the samples of one training step, decoded, with labels, masks and document "
              "borders.",
          .usage = "RECIPE --step N [flags]",
          .example = "tranche inspect data recipes/quickstart.toml --step 1200",
          .flags = {{"step", "N", "The step, as the log counts them, from 1 (default)."},
                    {"rows", "", "One line a token: position, id, piece, label."},
                    {"validation", "NAME", "Of a validation set instead of the training data."},
                    SetFlag()},
          .min_positionals = 1,
          .max_positionals = 1,
          .run = [](const Arguments& arguments) { return Print(InspectRecipeData(arguments)); }};
}

}  // namespace tranche
