// A model on disk that a verb is pointed at: a checkpoint, the directory of a run (its newest whole
// checkpoint), or a Hugging Face folder.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "trainer/recipe.h"
#include "trainer/run_setup.h"

namespace tranche {

struct SavedModel {
  std::string checkpoint;  // empty: a Hugging Face folder
  Recipe recipe;           // of the checkpoint, or one made for the folder
};

// `sets` apply over the recipe. The recipe made for a folder has the folder's whole length, at most
// 2048, as sequence_length, one sequence a batch, and no data. NotFound where `path` is none of the
// three.
absl::StatusOr<SavedModel> OpenSavedModel(const std::string& path,
                                          absl::Span<const std::string> sets);

// The recipe of OpenSavedModel for a folder, also without its weights (for plans).
absl::StatusOr<Recipe> RecipeForFolder(const std::string& path, absl::Span<const std::string> sets);

// Into an engine made for `setup` of that recipe.
absl::Status LoadSavedWeights(const SavedModel& model, const RunSetup& setup, Engine& engine,
                              Backend& backend, Stream& stream);

// The checkpoint as a Hugging Face folder (see ExportModel), from its fp32 master weights.
absl::Status ExportCheckpoint(FileSystem& fs, const SavedModel& model,
                              const std::string& directory);

}  // namespace tranche
