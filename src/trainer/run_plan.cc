#include "trainer/run_plan.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/units.h"
#include "nlohmann/json.hpp"
#include "optim/update_rule.h"
#include "trainer/checkpoint.h"
#include "trainer/param_updates.h"

namespace tranche {
namespace {

constexpr std::array<MemoryKind, 5> kKinds = {MemoryKind::kWeights, MemoryKind::kGradients,
                                              MemoryKind::kOptimizer, MemoryKind::kActivations,
                                              MemoryKind::kWorkspace};

// Buffers of the same name but for its numbers, added up: "layers.*.weights".
struct NamedBytes {
  std::string name;
  MemoryKind kind;
  int64_t bytes = 0, count = 0;
};

std::string Pattern(const std::string& name) {
  std::string pattern;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit = absl::ascii_isdigit(static_cast<unsigned char>(name[i]));
    const bool starts = digit && (i == 0 || name[i - 1] == '.');
    if (!starts) {
      pattern += name[i];
      continue;
    }
    pattern += '*';
    while (i + 1 < name.size() && absl::ascii_isdigit(static_cast<unsigned char>(name[i + 1]))) ++i;
  }
  return pattern;
}

std::vector<NamedBytes> ByName(const std::vector<Arena::Entry>& entries) {
  std::vector<NamedBytes> sums;
  for (const Arena::Entry& entry : entries) {
    const std::string name = Pattern(entry.name);
    auto found = std::find_if(sums.begin(), sums.end(), [&](const NamedBytes& sum) {
      return sum.name == name && sum.kind == entry.kind;
    });
    if (found == sums.end()) found = sums.insert(sums.end(), {name, entry.kind});
    found->bytes += entry.bytes;
    ++found->count;
  }
  std::stable_sort(sums.begin(), sums.end(),
                   [](const NamedBytes& a, const NamedBytes& b) { return a.bytes > b.bytes; });
  return sums;
}

int64_t LargestProperDivisor(int64_t of, int64_t below) {
  for (int64_t divisor = below - 1; divisor > 0; --divisor) {
    if (of % divisor == 0) return divisor;
  }
  return 0;
}

// The nearest step down in each direction: smaller micro-batch, more recompute, fewer bits.
std::vector<TrainingRecipe> SmallerVariants(const TrainingRecipe& training) {
  std::vector<TrainingRecipe> variants;
  const int64_t micro = LargestProperDivisor(training.global_batch_size, training.micro_batch_size);
  if (micro > 0) {
    variants.push_back(training);
    variants.back().micro_batch_size = micro;
  }
  for (const char* level : {"selective", "full"}) {
    if (training.activation_checkpointing == "full" || training.activation_checkpointing == level) {
      continue;
    }
    variants.push_back(training);
    variants.back().activation_checkpointing = level;
  }
  if (training.precision == "fp32") {
    variants.push_back(training);
    variants.back().precision = "bf16";
  }
  return variants;
}

std::string Describe(const TrainingRecipe& from, const TrainingRecipe& to) {
  if (from.micro_batch_size != to.micro_batch_size) {
    return absl::StrCat("training.micro_batch_size = ", to.micro_batch_size);
  }
  if (from.precision != to.precision) {
    return absl::StrCat("training.precision = \"", to.precision, "\"");
  }
  return absl::StrCat("training.activation_checkpointing = \"", to.activation_checkpointing, "\"");
}

absl::Status AddChanges(const RunSetup& setup, int threads, RunPlan* plan) {
  const TrainingRecipe& training = setup.recipe.training;
  for (const TrainingRecipe& smaller : SmallerVariants(training)) {
    TRANCHE_ASSIGN_OR_RETURN(const RunSetup variant, SetUpVariant(setup, smaller));
    TRANCHE_ASSIGN_OR_RETURN(const Rehearsal rehearsal, Rehearse(variant, true, threads));
    // What saves less than one part in 200 is no help.
    if (rehearsal.peak_bytes > plan->stage.rehearsal.peak_bytes / 200 * 199) continue;
    RunPlan::Change change;
    change.what = Describe(training, smaller);
    change.peak_bytes = rehearsal.peak_bytes;
    change.step_flops = rehearsal.micro_batch_flops * static_cast<double>(variant.micro_batches());
    const double more = change.step_flops / plan->step_flops - 1;
    change.cost =
        smaller.precision != training.precision
            ? "other numbers: weights and activations are rounded to bf16"
        : smaller.micro_batch_size != training.micro_batch_size
            ? "the same arithmetic in smaller matrix products"
            : absl::StrFormat("%.0f%% more arithmetic, the same numbers to the bit", 100 * more);
    plan->changes.push_back(std::move(change));
  }
  // Cheapest: the least arithmetic for the bytes it saves; what saves next to nothing comes last.
  const auto rank = [&](const RunPlan::Change& change) {
    const double saved = 1 - static_cast<double>(change.peak_bytes) /
                                 static_cast<double>(plan->stage.rehearsal.peak_bytes);
    const double more = std::max(0.0, change.step_flops / plan->step_flops - 1);
    return std::make_pair(saved < 0.03, (more + 0.01) / std::max(saved, 1e-9));
  };
  std::stable_sort(plan->changes.begin(), plan->changes.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return absl::OkStatus();
}

void AddGroups(const RunSetup& setup, RunPlan* plan) {
  for (const ParamGroup& group : setup.recipe.optimizer.param_groups) {
    std::vector<std::string> how;
    if (group.lr_scale) how.push_back(absl::StrFormat("lr x %g", *group.lr_scale));
    if (group.weight_decay) how.push_back(absl::StrFormat("weight decay %g", *group.weight_decay));
    plan->groups.push_back({group.match, absl::StrJoin(how, ", ")});
    for (const ParamSpec& spec : setup.specs) {
      if (!MatchesParam(group.match, spec.name)) continue;
      plan->groups.back().parameters += spec.elements();
      ++plan->groups.back().tensors;
    }
  }
}

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

absl::StatusOr<RunPlan> MakePlan(RunSetup setup, std::optional<int64_t> total_steps,
                                 const RankAssumptions& assumptions, bool all_stages) {
  TRANCHE_RETURN_IF_ERROR(SettleByPrediction(assumptions, &setup));
  const TrainingRecipe& training = setup.recipe.training;
  RunPlan plan;
  plan.architecture = setup.config.architecture;
  plan.precision = training.precision;
  plan.recompute = training.activation_checkpointing;
  for (const ParamSpec& spec : setup.specs) {
    plan.parameters += spec.elements();
    if (spec.decay) {
      plan.decayed_parameters += spec.elements();
    } else {
      ++plan.undecayed_tensors;
    }
  }
  plan.tensors = static_cast<int64_t>(setup.specs.size());
  AddGroups(setup, &plan);
  plan.global_batch_size = training.global_batch_size;
  plan.micro_batch_size = training.micro_batch_size;
  plan.sequence_length = setup.recipe.data.sequence_length;
  plan.total_steps = total_steps;
  if (!plan.total_steps) {
    const absl::StatusOr<int64_t> steps = TotalSteps(setup.recipe, 0);
    if (steps.ok()) plan.total_steps = *steps;
  }
  plan.ranks = setup.ranks;
  plan.assumptions = assumptions;
  TRANCHE_ASSIGN_OR_RETURN(plan.stage, PlanStage(setup, assumptions));
  if (all_stages) {
    TRANCHE_ASSIGN_OR_RETURN(plan.stages, PlanStages(setup, assumptions));
  }
  const auto micro_batches = static_cast<double>(setup.micro_batches());
  plan.step_flops = plan.stage.rehearsal.micro_batch_flops * micro_batches;
  TRANCHE_ASSIGN_OR_RETURN(const auto counter, FlopCounter::Create(setup));
  plan.model_step_flops = counter->Count(TypicalBatch(setup)) * micro_batches;
  CheckpointContents texts;
  texts.recipe = PrintRecipe(setup.recipe);
  texts.config = ConfigText(setup.config_json);
  plan.checkpoint_bytes = CheckpointBytes(setup.specs, *CreateAdamW(setup.engine.update), texts);
  plan.kept_checkpoints = setup.recipe.checkpoint.keep_latest_k;
  TRANCHE_RETURN_IF_ERROR(AddChanges(setup, assumptions.threads, &plan));
  return plan;
}

std::string PrintPlan(const RunPlan& plan) {
  const Rehearsal& memory = plan.stage.rehearsal;
  std::string text;
  absl::StrAppend(&text, "model        ", plan.architecture, ", ", FormatInteger(plan.parameters),
                  " parameters in ", plan.tensors, " arrays\n");
  absl::StrAppend(&text, "decay        ", FormatInteger(plan.decayed_parameters), " in ",
                  plan.tensors - plan.undecayed_tensors, " arrays; none for ",
                  FormatInteger(plan.parameters - plan.decayed_parameters), " in ",
                  plan.undecayed_tensors, "\n");
  for (const RunPlan::Group& group : plan.groups) {
    absl::StrAppend(&text, "group        ", group.match, ": ", FormatInteger(group.parameters),
                    " in ", group.tensors, " arrays, ", group.how, "\n");
  }
  absl::StrAppend(&text, "batch        ", plan.global_batch_size, " sequences x ",
                  plan.sequence_length, " = ", FormatInteger(plan.step_tokens()),
                  " tokens a step, in ", plan.global_batch_size / plan.micro_batch_size,
                  " micro-batches of ", plan.micro_batch_size, "\n");
  if (plan.total_steps) {
    absl::StrAppend(&text, "length       ", FormatInteger(*plan.total_steps), " steps, ",
                    FormatInteger(*plan.total_steps * plan.step_tokens()), " tokens\n");
  } else {
    absl::StrAppend(&text, "length       in epochs: known when the data is there\n");
  }
  absl::StrAppend(&text, "arithmetic   ",
                  FormatFlops(plan.model_step_flops / static_cast<double>(plan.step_tokens())),
                  " a token, ", FormatFlops(plan.model_step_flops), " a step");
  if (plan.step_flops > plan.model_step_flops) {
    absl::StrAppendFormat(&text, "; recompute (%s) adds %.0f%%", plan.recompute,
                          100 * (plan.step_flops / plan.model_step_flops - 1));
  }
  absl::StrAppend(&text, "\n");
  if (plan.ranks > 1) {
    absl::StrAppend(&text, PrintRanks(plan.stage, plan.ranks, plan.assumptions));
  }
  absl::StrAppend(&text, "checkpoint   ", FormatBytes(plan.checkpoint_bytes), ", ",
                  plan.kept_checkpoints,
                  " kept: ", FormatBytes(plan.kept_checkpoints * plan.checkpoint_bytes), "\n\n");

  absl::StrAppendFormat(&text, "memory (%s, recompute %s)\n", plan.precision, plan.recompute);
  size_t largest = 0;
  for (size_t i = 0; i < kKinds.size(); ++i) {
    const int64_t bytes = memory.bytes_by_kind[i];
    if (bytes > memory.bytes_by_kind[largest]) largest = i;
    absl::StrAppendFormat(&text, "  %-12s %12s  %5.1f%%\n", MemoryKindName(kKinds[i]),
                          FormatBytes(bytes), Share(bytes, memory.peak_bytes));
  }
  absl::StrAppendFormat(&text, "  %-12s %12s  = %s bytes\n\n", "together",
                        FormatBytes(memory.peak_bytes), FormatInteger(memory.peak_bytes));

  absl::StrAppend(&text, "by name (buffers of different phases may share bytes)\n");
  for (const NamedBytes& entry : ByName(memory.entries)) {
    absl::StrAppendFormat(&text, "  %12s  %-12s %s%s\n", FormatBytes(entry.bytes),
                          MemoryKindName(entry.kind), entry.name,
                          entry.count > 1 ? absl::StrCat(" (", entry.count, ")") : "");
  }
  absl::StrAppendFormat(&text, "\nlargest      %s: %.0f%% of the memory\n",
                        MemoryKindName(kKinds[largest]),
                        Share(memory.bytes_by_kind[largest], memory.peak_bytes));
  if (plan.changes.empty()) {
    absl::StrAppend(&text, "smaller      no setting makes this run smaller\n");
  }
  for (size_t i = 0; i < plan.changes.size(); ++i) {
    const RunPlan::Change& change = plan.changes[i];
    absl::StrAppendFormat(&text, "%-12s %s: %s, -%.0f%% (%s)\n", i == 0 ? "smaller" : "  or",
                          change.what, FormatBytes(change.peak_bytes),
                          100 - Share(change.peak_bytes, memory.peak_bytes), change.cost);
  }
  if (!plan.stages.empty()) absl::StrAppend(&text, PrintStages(plan.stages));
  return text;
}

std::string PlanJson(const RunPlan& plan) {
  using Json = nlohmann::ordered_json;
  Json json = {{"architecture", plan.architecture},
               {"parameters", plan.parameters},
               {"decayed_parameters", plan.decayed_parameters},
               {"param_groups", Json::array()},
               {"precision", plan.precision},
               {"activation_checkpointing", plan.recompute},
               {"step_tokens", plan.step_tokens()}};
  for (const RunPlan::Group& group : plan.groups) {
    json["param_groups"].push_back({{"match", group.match},
                                    {"how", group.how},
                                    {"parameters", group.parameters},
                                    {"arrays", group.tensors}});
  }
  json["total_steps"] = plan.total_steps ? Json(*plan.total_steps) : Json();
  json["flops_per_token"] = plan.model_step_flops / static_cast<double>(plan.step_tokens());
  json["flops_per_step"] = plan.model_step_flops;
  json["flops_per_step_with_recompute"] = plan.step_flops;
  json["checkpoint_bytes"] = plan.checkpoint_bytes;
  json["memory_bytes"] = plan.stage.rehearsal.peak_bytes;
  for (size_t i = 0; i < kKinds.size(); ++i) {
    json["memory_by_kind"][std::string(MemoryKindName(kKinds[i]))] =
        plan.stage.rehearsal.bytes_by_kind[i];
  }
  json["memory_by_name"] = Json::array();
  for (const NamedBytes& entry : ByName(plan.stage.rehearsal.entries)) {
    json["memory_by_name"].push_back({{"name", entry.name},
                                      {"kind", std::string(MemoryKindName(entry.kind))},
                                      {"bytes", entry.bytes},
                                      {"buffers", entry.count}});
  }
  json["smaller"] = Json::array();
  for (const RunPlan::Change& change : plan.changes) {
    json["smaller"].push_back({{"set", change.what},
                               {"memory_bytes", change.peak_bytes},
                               {"flops_per_step", change.step_flops}});
  }
  if (plan.ranks > 1) {
    json["ranks"] = plan.ranks;
    json["assumptions"] = AssumptionsJson(plan.assumptions);
    json["rank"] = StageJson(plan.stage);
  }
  for (const StagePlan& stage : plan.stages) json["stages"].push_back(StageJson(stage));
  return json.dump(2) + "\n";
}

}  // namespace tranche
