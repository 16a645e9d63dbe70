#include "trainer/start.h"

#include <map>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/recipe_toml.h"

namespace tranche {
namespace {

constexpr char kSetAside[] = ".set-aside";

absl::StatusOr<StartPoint> StartFrom(const std::string& path, Verification how) {
  StartPoint start;
  start.checkpoint = path;
  TRANCHE_ASSIGN_OR_RETURN(start.manifest, VerifyCheckpoint(path, how));
  return start;
}

absl::StatusOr<StartPoint> NewestWhole(const std::string& directory, Verification how) {
  const std::vector<int64_t> steps = ListCheckpoints(directory);
  for (const int64_t step : steps) {
    absl::StatusOr<StartPoint> start = StartFrom(CheckpointPath(directory, step), how);
    if (start.ok()) return start;
    LogWarning(absl::StrCat("damaged checkpoint passed over: ", start.status().message()));
  }
  if (steps.empty()) return StartPoint{};
  return absl::FailedPreconditionError(
      absl::StrCat(directory, ": none of its ", steps.size(),
                   " checkpoints is whole; remove them, or start anew with --overwrite"));
}

// Keys that say nothing about the model's arithmetic.
bool IsIncidental(const std::string& key) {
  static const auto* keys = new std::set<std::string>{
      "torch_dtype", "dtype", "transformers_version", "_name_or_path", "use_cache"};
  return keys->count(key) > 0;
}

std::vector<std::string> ConfigDifferences(const nlohmann::json& saved, const nlohmann::json& now) {
  std::vector<std::string> differences;
  std::set<std::string> keys;
  for (const auto* config : {&saved, &now}) {
    for (const auto& [key, value] : config->items()) keys.insert(key);
  }
  for (const std::string& key : keys) {
    const nlohmann::json a = saved.value(key, nlohmann::json());
    const nlohmann::json b = now.value(key, nlohmann::json());
    if (a != b && !IsIncidental(key)) {
      differences.push_back(absl::StrCat(key, " was ", a.dump(), ", is ", b.dump()));
    }
  }
  return differences;
}

void Flatten(const TomlValue& value, const std::string& prefix,
             std::map<std::string, std::string>* out) {
  if (value.kind == TomlValue::Kind::kTable) {
    for (const auto& [key, entry] : value.entries) {
      Flatten(entry, prefix.empty() ? key : absl::StrCat(prefix, ".", key), out);
    }
    return;
  }
  const absl::StatusOr<nlohmann::ordered_json> json = TomlToJson(value);
  (*out)[prefix] = json.ok() ? json->dump() : TomlShort(value);
}

absl::StatusOr<std::map<std::string, std::string>> FlatRecipe(absl::string_view text,
                                                              const std::string& source) {
  TRANCHE_ASSIGN_OR_RETURN(const TomlValue root, ParseToml(text, source));
  std::map<std::string, std::string> flat;
  Flatten(root, "", &flat);
  return flat;
}

// Keys that say where and how, not what.
bool IsOperational(const std::string& key) {
  return absl::StartsWith(key, "checkpoint.") || absl::StartsWith(key, "metrics.") ||
         absl::StartsWith(key, "run.name") || absl::StartsWith(key, "run.output_dir");
}

absl::Status AnnounceChanges(const StartPoint& start, const RunSetup& setup,
                             const Schedule& schedule) {
  const std::string path = JoinPath(start.checkpoint, "recipe.toml");
  TRANCHE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  TRANCHE_ASSIGN_OR_RETURN(const auto saved, FlatRecipe(text, path));
  TRANCHE_ASSIGN_OR_RETURN(const auto now, FlatRecipe(PrintRecipe(setup.recipe), "recipe"));
  std::set<std::string> keys;
  for (const auto* recipe : {&saved, &now}) {
    for (const auto& [key, value] : *recipe) keys.insert(key);
  }
  const auto value_of = [](const std::map<std::string, std::string>& recipe,
                           const std::string& key) {
    const auto found = recipe.find(key);
    return found == recipe.end() ? std::string("not set") : found->second;
  };
  for (const std::string& key : keys) {
    const std::string before = value_of(saved, key), after = value_of(now, key);
    if (before == after || IsOperational(key)) continue;
    LogNote(absl::StrCat("changed since the checkpoint: ", key, " was ", before, ", is ", after));
  }
  const int64_t next = start.manifest.step + 1;
  if (next > schedule.total_steps) return absl::OkStatus();
  const double before =
      start.manifest.schedule.At(std::min(next, start.manifest.schedule.total_steps));
  const double after = schedule.At(next);
  if (before != after) {
    LogNote(absl::StrFormat(
        "the learning rate of step %d would have been %.6g, now it is %.6g (length %d, was %d)",
        next, before, after, schedule.total_steps, start.manifest.schedule.total_steps));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StartPoint> FindStart(const std::string& resume, const std::string& directory,
                                     Verification how) {
  if (resume == "auto") return NewestWhole(directory, how);
  if (resume == "never") {
    const std::vector<int64_t> steps = ListCheckpoints(directory);
    if (steps.empty()) return StartPoint{};
    return absl::FailedPreconditionError(absl::StrCat(
        directory, ": holds a checkpoint of step ", steps.front(),
        " and checkpoint.resume is \"never\"; take another run.output_dir, resume, or start anew "
        "with --overwrite"));
  }
  // The recipe makes paths absolute, words among them.
  absl::string_view word = resume;
  const size_t slash = word.rfind('/');
  if (slash != absl::string_view::npos) word.remove_prefix(slash + 1);
  int64_t step = 0;
  const bool by_number = absl::ConsumePrefix(&word, "step:") && absl::SimpleAtoi(word, &step);
  const std::string path = by_number ? CheckpointPath(directory, step) : resume;
  if (!IsDirectory(path)) {
    return absl::NotFoundError(absl::StrCat("checkpoint.resume: ", path, " is not there"));
  }
  absl::StatusOr<StartPoint> start = StartFrom(path, how);
  if (start.ok()) return start;
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint.resume: ", start.status().message()));
}

absl::Status CheckSameRun(const StartPoint& start, const RunSetup& setup,
                          const std::string& data_fingerprint, const Schedule& schedule) {
  const CheckpointManifest& saved = start.manifest;
  const auto refuse = [&](absl::string_view what) {
    return absl::FailedPreconditionError(
        absl::StrCat(start.checkpoint, ": ", what,
                     "; take another run.output_dir, or start anew with --overwrite"));
  };
  const std::string config_path = JoinPath(start.checkpoint, "config.json");
  TRANCHE_ASSIGN_OR_RETURN(const nlohmann::json config, ReadJsonFile(config_path));
  const std::vector<std::string> differences =
      ConfigDifferences(config, nlohmann::json::parse(setup.config_json.dump()));
  if (!differences.empty()) {
    return refuse(absl::StrCat("is of another model: ", absl::StrJoin(differences, "; ")));
  }
  const TrainingRecipe& training = setup.recipe.training;
  if (saved.global_batch_size != training.global_batch_size) {
    return refuse(
        absl::StrCat("was trained with training.global_batch_size = ", saved.global_batch_size,
                     ", the recipe says ", training.global_batch_size,
                     ", and its step no longer says which samples were seen"));
  }
  if (saved.sequence_length != setup.recipe.data.sequence_length) {
    return refuse(absl::StrCat("was trained with data.sequence_length = ", saved.sequence_length,
                               ", the recipe says ", setup.recipe.data.sequence_length));
  }
  if (saved.data_fingerprint != data_fingerprint) {
    return refuse(
        "was trained on other data, or on the same data in another order ([data], run.seed)");
  }
  return AnnounceChanges(start, setup, schedule);
}

absl::Status SetAsideNewer(FileSystem& fs, const std::string& directory, const StartPoint& start) {
  for (const int64_t step : ListCheckpoints(directory)) {
    if (step <= start.manifest.step) break;
    const std::string path = CheckpointPath(directory, step);
    TRANCHE_RETURN_IF_ERROR(fs.RemoveAll(path + kSetAside));
    TRANCHE_RETURN_IF_ERROR(fs.Rename(path, path + kSetAside));
    LogNote(absl::StrCat(path, ": set aside as ", path, kSetAside));
  }
  return absl::OkStatus();
}

}  // namespace tranche
