// `tranche export`.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "trainer/checkpoint.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/saved_model.h"
#include "trainer/weights.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

absl::Status Export(const Arguments& arguments) {
  const std::string& from = arguments.positionals()[0];
  const std::string to(absl::StripSuffix(arguments.positionals()[1], "/"));
  if (FileExists(to) && !arguments.Has("overwrite")) {
    return absl::AlreadyExistsError(
        absl::StrCat(to, ": exists; name a folder that does not, or replace it with --overwrite"));
  }
  if (FileExists(to) && (IsCheckpoint(to) || !FileExists(JoinPath(to, "config.json")))) {
    return absl::AlreadyExistsError(
        absl::StrCat(to, ": is no model folder; --overwrite replaces nothing else"));
  }
  std::vector<std::string> sets;
  if (arguments.Has("max-shard-size")) {
    sets.push_back(absl::StrCat("checkpoint.max_shard_size=", arguments.Get("max-shard-size")));
  }
  TRANCHE_ASSIGN_OR_RETURN(const SavedModel model, OpenSavedModel(from, sets));
  FileSystem& fs = FileSystem::Real();
  TRANCHE_RETURN_IF_ERROR(ReplaceFolder(
      fs, to, [&](const std::string& folder) { return ExportCheckpoint(fs, model, folder); }));
  std::printf("%s: written from %s\n", to.c_str(),
              model.checkpoint.empty() ? from.c_str() : model.checkpoint.c_str());
  return absl::OkStatus();
}

int Run(const Arguments& arguments) {
  const absl::Status status = Export(arguments);
  return status.ok() ? kExitDone : ReportError(status);
}

}  // namespace

Verb ExportVerb() {
  return {.name = "export",
          .summary = "Writes a checkpoint as a Hugging Face folder: config, weights, tokenizer.",
          .usage = "CHECKPOINT|RUN_DIRECTORY FOLDER [flags]",
          .example = "tranche export runs/quickstart/checkpoints/step-1400 my-model",
          .flags = {{"max-shard-size", "SIZE",
                     "Splits the weights into files of at most this size: \"5 GB\"."},
                    {"overwrite", "", "Replaces a model folder of that name."}},
          .min_positionals = 2,
          .max_positionals = 2,
          .run = Run};
}

}  // namespace tranche
