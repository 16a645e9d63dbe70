// What is wrong between keys that are each valid: contradictions, keys without effect, missing
// files.
#include <cmath>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "trainer/recipe.h"
#include "trainer/recipe_fields.h"
#include "trainer/run_directory.h"

namespace tranche {
namespace {

class Checker {
 public:
  Checker(const Recipe& recipe, const std::vector<std::string>& faulty,
          std::vector<RecipeFault>* faults)
      : recipe_(recipe), faulty_(faulty), faults_(faults) {}

  void CheckModel();
  void CheckLength();
  void CheckBatch();
  void CheckOptimizer();
  void CheckWarmup();
  void CheckData();
  void CheckValidation();
  void CheckCheckpoint();
  void CheckProfiler();
  void CheckEffects();
  void CheckModelFiles();
  void CheckDataFiles();

 private:
  bool Given(const std::string& key) const { return recipe_.origins.count(key) > 0; }
  // No fault so far in the key or inside it.
  bool Sound(const std::string& key) const {
    return absl::c_none_of(faulty_, [&](const std::string& bad) {
      return bad == key || absl::StartsWith(bad, key + "[") || absl::StartsWith(bad, key + ".");
    });
  }
  void Fault(const std::string& key, absl::string_view what) {
    faults_->push_back({0, recipe_.Origin(key), key, std::string(what)});
  }
  // Optimizer steps where the recipe alone says them.
  std::optional<int64_t> Steps() const;
  void CheckDataset(const std::string& key, const std::string& path);

  const Recipe& recipe_;
  const std::vector<std::string>& faulty_;
  std::vector<RecipeFault>* faults_;
};

std::optional<int64_t> Checker::Steps() const {
  const TrainingRecipe& training = recipe_.training;
  if (training.max_steps) return training.max_steps;
  const double per_step = static_cast<double>(training.global_batch_size) *
                          static_cast<double>(recipe_.data.sequence_length);
  if (!training.max_tokens || per_step < 1) return std::nullopt;
  return static_cast<int64_t>(std::ceil(static_cast<double>(*training.max_tokens) / per_step));
}

void Checker::CheckModel() {
  const ModelRecipe& model = recipe_.model;
  if (!Sound("model.init") || !Sound("model.path")) return;
  const std::string first_key =
      model.config.empty() ? "" : absl::StrCat("model.", model.config.begin().key());
  if (model.path.empty()) {
    if (model.init == "pretrained") {
      Fault("model.path",
            "is missing: init = \"pretrained\" starts from a model folder; or write init = "
            "\"random\"");
    } else if (!model.config.contains("model_type") && Sound("model.model_type")) {
      Fault("model.model_type",
            "is missing: without path, [model] describes the architecture with the keys of "
            "config.json (model_type, "
            "hidden_size, num_hidden_layers, ...)");
    }
  } else if (!model.config.empty()) {
    for (const auto& [name, value] : model.config.items()) {
      Fault(absl::StrCat("model.", name),
            "unknown key beside path, whose config.json decides; to replace a key of it, write it "
            "in [model.overrides]");
    }
  }
}

void Checker::CheckLength() {
  static const std::vector<std::string> kKeys = {"training.max_steps", "training.max_tokens",
                                                 "training.max_epochs", "training.duration"};
  std::vector<std::string> given;
  for (const std::string& key : kKeys) {
    if (!Sound(key)) return;
    if (Given(key)) given.push_back(absl::StrCat(key, " (", recipe_.Origin(key), ")"));
  }
  if (given.empty()) {
    Fault("training.max_steps",
          "the run has no length; write exactly one of max_steps, max_tokens, max_epochs or "
          "duration");
  } else if (given.size() > 1) {
    const std::string second = given[1].substr(0, given[1].find(' '));
    Fault(second, absl::StrCat("contradiction: the run has ", given.size(), " lengths, ",
                               absl::StrJoin(given, ", "), "; keep exactly one"));
  }
}

void Checker::CheckBatch() {
  if (!Sound("training.global_batch_size") || !Sound("training.micro_batch_size")) return;
  const int64_t global = recipe_.training.global_batch_size,
                micro = recipe_.training.micro_batch_size;
  if (global < 1 || micro < 1 || global % micro == 0) return;
  int64_t nearest = std::min(global, micro);
  while (global % nearest != 0) --nearest;
  Fault("training.micro_batch_size",
        absl::StrCat("contradiction: ", micro, " does not divide training.global_batch_size = ",
                     global, " (", recipe_.Origin("training.global_batch_size"),
                     "); the next smaller that does is ", nearest));
}

void Checker::CheckOptimizer() {
  const OptimizerRecipe& optimizer = recipe_.optimizer;
  if (Sound("optimizer.betas") && optimizer.betas.size() != 2) {
    Fault("optimizer.betas",
          absl::StrCat("holds ", optimizer.betas.size(), " numbers; write two: [0.9, 0.95]"));
  }
  for (size_t i = 0; i < optimizer.param_groups.size(); ++i) {
    const ParamGroup& group = optimizer.param_groups[i];
    const std::string key = absl::StrCat("optimizer.param_groups[", i, "]");
    if (!group.lr_scale && !group.weight_decay && Sound(key))
      Fault(key, "has no effect: it gives neither lr_scale nor weight_decay");
  }
}

void Checker::CheckWarmup() {
  const LrSchedulerRecipe& schedule = recipe_.lr_scheduler;
  if (schedule.warmup_steps && schedule.warmup_ratio) {
    Fault("lr_scheduler.warmup_ratio",
          absl::StrCat("contradiction: warmup_steps is given as well (",
                       recipe_.Origin("lr_scheduler.warmup_steps"), "); keep one"));
    return;
  }
  const std::optional<int64_t> steps = Steps();
  if (!schedule.warmup_steps || !steps) return;
  if (*schedule.warmup_steps > *steps) {
    Fault("lr_scheduler.warmup_steps",
          absl::StrCat("contradiction: ", *schedule.warmup_steps,
                       " steps of warm-up exceed the run's ", *steps, " steps"));
  }
}

void Checker::CheckData() {
  const DataRecipe& data = recipe_.data;
  if (Sound("data.sources") && Given("data.sources") && data.sources.empty()) {
    Fault("data.sources", "is empty; write at least one {path = \"...\"}");
  }
  if (data.format == "tokens") {
    if (data.packing != "concat") {
      Fault("data.packing", absl::StrCat("contradiction: ", TomlString(data.packing),
                                         " needs documents, and format = \"tokens\" has one "
                                         "stream; use format = \"megatron\""));
    }
    if (data.document_mask) {
      Fault("data.document_mask",
            "contradiction: format = \"tokens\" does not know where documents end; use format = "
            "\"megatron\"");
    }
  }
  if (!data.eod_loss && recipe_.tokenizer.path.empty() && Sound("tokenizer.path")) {
    Fault("tokenizer.path", "is missing: eod_loss = false needs to know the end-of-document token");
  }
  if (data.next_sentence && (data.packing != "none" || !data.shuffle)) {
    Fault("data.next_sentence", "contradiction: it needs packing = \"none\" and shuffle = true");
  }
  const auto weighted = [](const DataSource& source) { return source.weight.has_value(); };
  if (absl::c_any_of(data.sources, weighted) && !absl::c_all_of(data.sources, weighted) &&
      Sound("data.sources")) {
    Fault(
        "data.sources",
        "contradiction: some sources have a weight and some have none; give it to all or to none");
  }
  if (data.objective == "mlm" && recipe_.tokenizer.path.empty() && Sound("tokenizer.path")) {
    Fault("tokenizer.path",
          "is missing: objective = \"mlm\" takes the [MASK] token and the special ids from it");
  }
}

void Checker::CheckValidation() {
  const ValidationRecipe& validation = recipe_.validation;
  const bool any = !validation.sets.empty() || recipe_.data.validation_fraction > 0;
  if (any && !validation.interval && Sound("validation.interval")) {
    const std::string key =
        validation.sets.empty() ? "data.validation_fraction" : "validation.sets";
    Fault("validation.interval",
          absl::StrCat("is missing: ", key, " (", recipe_.Origin(key),
                       ") asks for evaluation; write the steps between evaluations"));
  }
  std::set<std::string> names;
  if (recipe_.data.validation_fraction > 0) names.insert("held_out");
  for (size_t i = 0; i < validation.sets.size(); ++i) {
    const std::string& name = validation.sets[i].name;
    if (name.empty() || names.insert(name).second) continue;
    Fault(absl::StrCat("validation.sets[", i, "].name"),
          absl::StrCat(TomlString(name), " names two validation sets; give each its own name"));
  }
}

void Checker::CheckCheckpoint() {
  const CheckpointRecipe& checkpoint = recipe_.checkpoint;
  if (checkpoint.keep_every && checkpoint.interval > 0 &&
      *checkpoint.keep_every % checkpoint.interval != 0) {
    Fault("checkpoint.keep_every",
          absl::StrCat("contradiction: ", *checkpoint.keep_every,
                       " is no multiple of checkpoint.interval = ", checkpoint.interval,
                       ", so no checkpoint would ever be kept by it"));
  }
  const std::string& trigger = checkpoint.trigger_file;
  if (trigger == "." || trigger == ".." || absl::StrContains(trigger, "/")) {
    Fault("checkpoint.trigger_file",
          absl::StrCat(TomlString(trigger), " is no file name; it stands in run.output_dir"));
  } else if (absl::c_linear_search(kRunFiles, trigger)) {
    Fault("checkpoint.trigger_file",
          absl::StrCat(TomlString(trigger), " is a name that the run itself writes; take another"));
  }
  for (const char* key : {"run.output_dir", "checkpoint.resume"}) {
    const std::string& value =
        key == std::string("run.output_dir") ? recipe_.run.output_dir : checkpoint.resume;
    if (Sound(key) && value.empty()) Fault(key, "is empty");
  }
}

void Checker::CheckProfiler() {
  const ProfilerRecipe& profiler = recipe_.profiler;
  if (!profiler.enable || !Sound("profiler.steps")) return;
  const std::vector<int64_t>& steps = profiler.steps;
  const std::optional<int64_t> length = Steps();
  if (steps.size() != 2) {
    Fault("profiler.steps", absl::StrCat("holds ", steps.size(),
                                         " numbers; write the first and the last step: [50, 53]"));
  } else if (steps[0] > steps[1]) {
    Fault("profiler.steps", absl::StrCat("contradiction: the first step, ", steps[0],
                                         ", comes after the last, ", steps[1]));
  } else if (length && steps[0] > *length) {
    Fault("profiler.steps",
          absl::StrCat("contradiction: the run ends with step ", *length, ", before ", steps[0]));
  }
}

void Checker::CheckEffects() {
  for (const auto& [key, reason] : IneffectiveKeys(recipe_)) {
    if (Given(key) && Sound(key))
      Fault(key, absl::StrCat("has no effect: ", reason, "; remove it"));
  }
}

void Checker::CheckModelFiles() {
  const ModelRecipe& model = recipe_.model;
  if (model.path.empty() || !Sound("model.path")) return;
  if (!IsDirectory(model.path)) {
    Fault("model.path", absl::StrCat("no such folder: ", model.path));
  } else if (!FileExists(JoinPath(model.path, "config.json"))) {
    Fault("model.path", absl::StrCat("no config.json in ", model.path));
  }
}

void Checker::CheckDataset(const std::string& key, const std::string& path) {
  if (path.empty() || !Sound(key)) return;
  const bool is_token_file =
      recipe_.data.format == "tokens" ||
      (recipe_.data.format == "auto" && FileExists(path) && !absl::EndsWith(path, ".idx") &&
       !FileExists(absl::StrCat(absl::StripSuffix(path, ".bin"), ".idx")));
  if (is_token_file) {
    if (!FileExists(path)) Fault(key, absl::StrCat("no such file: ", path));
    return;
  }
  for (const char* end : {".bin", ".idx"}) {
    if (!FileExists(absl::StrCat(path, end))) {
      Fault(key,
            absl::StrCat("no such file: ", path, end, "; `tranche tokenize` makes it from text"));
    }
  }
}

void Checker::CheckDataFiles() {
  for (size_t i = 0; i < recipe_.data.sources.size(); ++i) {
    CheckDataset(absl::StrCat("data.sources[", i, "].path"), recipe_.data.sources[i].path);
  }
  for (size_t i = 0; i < recipe_.validation.sets.size(); ++i) {
    CheckDataset(absl::StrCat("validation.sets[", i, "].path"), recipe_.validation.sets[i].path);
  }
  if (Given("tokenizer.path") && !recipe_.tokenizer.path.empty() &&
      !FileExists(recipe_.tokenizer.path) && !IsDirectory(recipe_.tokenizer.path)) {
    Fault("tokenizer.path", absl::StrCat("no such file or folder: ", recipe_.tokenizer.path));
  }
  const std::string& resume = recipe_.checkpoint.resume;
  const bool by_step = absl::StartsWith(BaseName(resume), "step:");
  if (resume != "auto" && resume != "never" && !resume.empty() && !by_step &&
      !IsDirectory(resume)) {
    Fault("checkpoint.resume", absl::StrCat("no such checkpoint folder: ", resume));
  }
}

}  // namespace

std::map<std::string, std::string> IneffectiveKeys(const Recipe& recipe) {
  std::map<std::string, std::string> keys;
  const auto add = [&](bool ineffective, std::initializer_list<const char*> names,
                       const std::string& reason) {
    if (!ineffective) return;
    for (const char* name : names) keys.emplace(name, reason);
  };
  const DataRecipe& data = recipe.data;
  add(recipe.model.path.empty(), {"model.overrides"},
      "there is no model.path; the keys stand in [model] itself");
  add(recipe.model.init == "random", {"model.fresh_head"},
      "init = \"random\" initialises every tensor");
  add(data.format == "megatron", {"data.token_dtype"},
      "a megatron dataset stores the type in its .idx");
  add(data.objective == "clm",
      {"data.mlm_probability", "data.whole_word_mask", "data.next_sentence",
       "validation.mlm_probability"},
      "objective = \"clm\" masks no tokens");
  add(data.objective == "mlm", {"data.eod_loss"},
      "objective = \"mlm\" does not predict the next token");
  add(data.packing == "none", {"data.document_mask"},
      "packing = \"none\" puts one document in a sample");
  add(!data.shuffle && data.objective == "clm", {"data.shuffle_seed"}, "shuffle = false");
  add(recipe.validation.sets.empty() && data.validation_fraction == 0,
      {"validation.interval", "validation.steps", "validation.mlm_probability"},
      "there is no validation set");
  const std::string& schedule = recipe.lr_scheduler.name;
  add(schedule != "wsd", {"lr_scheduler.decay_ratio"},
      absl::StrCat("name = \"", schedule, "\" has no decay phase; \"wsd\" has"));
  add(schedule == "constant", {"lr_scheduler.min_lr_ratio"},
      "name = \"constant\" never lowers the rate");
  add(recipe.checkpoint.interval == 0, {"checkpoint.keep_every"},
      "interval = 0 saves at no particular steps");
  add(recipe.checkpoint.export_hf == "never", {"checkpoint.max_shard_size"},
      "export_hf = \"never\"");
  add(!recipe.launch.ranks, {"launch.oversubscribe", "launch.bind"},
      "`tranche train` starts no ranks without launch.ranks");
  add(!recipe.profiler.enable, {"profiler.steps"}, "enable = false");
  return keys;
}

void CheckRecipe(const Recipe& recipe, RecipeFiles files, const std::vector<std::string>& faulty,
                 std::vector<RecipeFault>* faults) {
  Checker checker(recipe, faulty, faults);
  checker.CheckModel();
  checker.CheckLength();
  checker.CheckBatch();
  checker.CheckOptimizer();
  checker.CheckWarmup();
  checker.CheckData();
  checker.CheckValidation();
  checker.CheckCheckpoint();
  checker.CheckProfiler();
  checker.CheckEffects();
  if (files != RecipeFiles::kNone) checker.CheckModelFiles();
  if (files != RecipeFiles::kNone || recipe.model.path.empty())
    CheckModelConfig(recipe, faulty, faults);
  if (files == RecipeFiles::kAll) checker.CheckDataFiles();
}

}  // namespace tranche
