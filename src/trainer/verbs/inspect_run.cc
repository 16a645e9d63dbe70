#include "trainer/verbs/inspect_run.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/units.h"
#include "model/param_spec.h"
#include "nlohmann/json.hpp"
#include "trainer/checkpoint.h"
#include "trainer/recipe.h"
#include "trainer/run_directory.h"
#include "trainer/verbs/inspect_model.h"

namespace tranche {
namespace {

struct Saved {
  int64_t step = 0;
  absl::StatusOr<CheckpointManifest> manifest;
};

struct Report {
  Recipe recipe;
  std::string recipe_text;
  std::vector<Saved> checkpoints;      // newest first
  std::optional<int64_t> logged_step;  // the last of metrics.jsonl
  ModelConfig config;

  const CheckpointManifest* newest() const {
    for (const Saved& saved : checkpoints) {
      if (saved.manifest.ok()) return &*saved.manifest;
    }
    return nullptr;
  }
};

std::optional<int64_t> LastLoggedStep(const std::string& path) {
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return std::nullopt;
  absl::string_view text = file->data();
  while (!text.empty()) {
    text = text.substr(0, text.find_last_not_of('\n') + 1);
    const size_t newline = text.rfind('\n');
    const absl::string_view line =
        text.substr(newline == absl::string_view::npos ? 0 : newline + 1);
    const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    if (json.is_object() && json.contains("event") && json["event"] == "step" &&
        json.contains("step") && json["step"].is_number_integer()) {
      return json["step"].get<int64_t>();
    }
    text.remove_suffix(line.size());
  }
  return std::nullopt;
}

absl::StatusOr<Report> MakeReport(const RunDirectory& directory) {
  Report report;
  TRANCHE_ASSIGN_OR_RETURN(report.recipe_text, ReadFile(directory.resolved));
  TRANCHE_ASSIGN_OR_RETURN(
      report.recipe, ParseRecipe(report.recipe_text, directory.resolved, {}, RecipeFiles::kNone));
  for (const int64_t step : ListCheckpoints(directory.checkpoints)) {
    report.checkpoints.push_back(
        {step, VerifyCheckpoint(CheckpointPath(directory.checkpoints, step), Verification::kSize)});
  }
  report.logged_step = LastLoggedStep(directory.metrics);
  // A checkpoint knows its model even where the folder that it came from is gone.
  nlohmann::ordered_json config;
  if (const CheckpointManifest* newest = report.newest()) {
    const std::string path =
        JoinPath(CheckpointPath(directory.checkpoints, newest->step), "config.json");
    TRANCHE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    TRANCHE_ASSIGN_OR_RETURN(config, ParseOrderedJson(text, path));
  } else {
    TRANCHE_ASSIGN_OR_RETURN(config, RecipeModelConfig(report.recipe));
  }
  TRANCHE_ASSIGN_OR_RETURN(report.config, ParseModelConfig(config, directory.path));
  return report;
}

std::string ReportJson(const Report& report, const RunDirectory& directory) {
  nlohmann::ordered_json out = {{"name", report.recipe.run.name}, {"recipe", directory.resolved}};
  const CheckpointManifest* newest = report.newest();
  using Json = nlohmann::ordered_json;
  out["saved_step"] = newest != nullptr ? Json(newest->step) : Json();
  out["total_steps"] = newest != nullptr ? Json(newest->schedule.total_steps) : Json();
  out["logged_step"] = report.logged_step ? Json(*report.logged_step) : Json();
  out["checkpoints"] = Json::array();
  for (const Saved& saved : report.checkpoints) {
    Json row = {{"step", saved.step}, {"path", CheckpointPath(directory.checkpoints, saved.step)}};
    if (saved.manifest.ok()) {
      row["bytes"] = saved.manifest->bytes();
    } else {
      row["damage"] = std::string(saved.manifest.status().message());
    }
    out["checkpoints"].push_back(std::move(row));
  }
  out["architecture"] = report.config.architecture;
  out["parameters"] = TotalElements(BuildParamSpecs(report.config));
  out["export"] = FileExists(directory.exported) ? Json(directory.exported) : Json();
  return out.dump(2) + "\n";
}

}  // namespace

bool IsRunDirectory(const std::string& path) {
  return FileExists(RunDirectory(path).resolved) || IsDirectory(RunDirectory(path).checkpoints);
}

absl::StatusOr<std::string> InspectRun(const std::string& path, bool json) {
  const RunDirectory directory(path);
  TRANCHE_ASSIGN_OR_RETURN(const Report report, MakeReport(directory));
  if (json) return ReportJson(report, directory);
  std::string text = absl::StrCat("run           ", report.recipe.run.name);
  if (const CheckpointManifest* newest = report.newest()) {
    absl::StrAppend(&text, ": saved at step ", newest->step, " of ", newest->schedule.total_steps,
                    newest->finished() ? ", complete" : "");
  } else {
    absl::StrAppend(&text, ": no checkpoint to go on from");
  }
  if (report.logged_step) absl::StrAppend(&text, "; last step in the log: ", *report.logged_step);
  absl::StrAppend(&text, "\n");
  for (const Saved& saved : report.checkpoints) {
    absl::StrAppendFormat(
        &text, "checkpoint    %s  %s\n", CheckpointPath(directory.checkpoints, saved.step),
        saved.manifest.ok() ? FormatBytes(saved.manifest->bytes())
                            : absl::StrCat("DAMAGED: ", saved.manifest.status().message()));
  }
  if (FileExists(directory.exported))
    absl::StrAppend(&text, "export        ", directory.exported, "\n");
  absl::StrAppend(&text, ConfigurationText(report.config), "parameters    ",
                  FormatInteger(TotalElements(BuildParamSpecs(report.config))), "\nrecipe        ",
                  directory.resolved, "\n\n", report.recipe_text);
  return text;
}

}  // namespace tranche
