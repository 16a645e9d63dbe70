#include "trainer/stage_plan.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/units.h"
#include "launch/cores.h"
#include "zero/group_layout.h"
#include "zero/placement.h"

namespace tranche {
namespace {

constexpr CollectiveCost kAssumedLink = {30e-6, 1 / 1.25e9};
constexpr int64_t kSmallestBucket = int64_t{1} << 20;
constexpr MemoryKind kMemoryKinds[] = {MemoryKind::kWeights, MemoryKind::kGradients,
                                       MemoryKind::kOptimizer, MemoryKind::kActivations,
                                       MemoryKind::kWorkspace};
constexpr Collective kMoving[] = {Collective::kAllGather, Collective::kReduceScatter};

int64_t BytesOf(const StagePlan& plan, Collective kind) {
  return plan.rehearsal.comm.bytes[static_cast<size_t>(kind)];
}
int64_t CallsOf(const StagePlan& plan, Collective kind) {
  return plan.rehearsal.comm.calls[static_cast<size_t>(kind)];
}

int64_t LargestGroupBytes(const RunSetup& setup) {
  int64_t largest = 0;
  for (const GroupLayout& group : BuildLayout(setup.specs, setup.ranks).groups) {
    largest = std::max(largest, group.elements * SizeOf(DType::kFloat32));
  }
  return largest;
}

std::string FormatRate(double bytes) {
  return absl::StrCat(FormatBytes(static_cast<int64_t>(bytes)), "/s");
}

}  // namespace

absl::StatusOr<RankAssumptions> AssumeRanks(int ranks) {
  RankAssumptions assumptions;
  assumptions.rates.collectives.fill(kAssumedLink);
  if (ranks == 1) {
    assumptions.threads = UsableThreads();
    return assumptions;
  }
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<RankCores> cores,
                           DealCores(ranks, /*oversubscribe=*/true));
  assumptions.threads = cores[0].cores;
  assumptions.ranks_here = std::min(ranks, UsableThreads());
  return assumptions;
}

absl::Status SettleByPrediction(const RankAssumptions& assumptions, RunSetup* setup) {
  if (setup->ranks == 1) return absl::OkStatus();
  TRANCHE_RETURN_IF_ERROR(SettleResidency(assumptions.ranks_here, assumptions.threads, setup));
  if (setup->recipe.parallelism.bucket_size) return absl::OkStatus();
  const int64_t largest = LargestGroupBytes(*setup);
  double shortest = std::numeric_limits<double>::infinity();
  int64_t best = largest;
  for (int64_t bytes = kSmallestBucket;; bytes *= 4) {
    setup->engine.bucket_bytes = std::min(bytes, largest);
    TRANCHE_ASSIGN_OR_RETURN(
        const Rehearsal rehearsal,
        Rehearse(*setup, /*training=*/true, assumptions.threads, assumptions.rates));
    if (rehearsal.step_seconds < shortest) {
      shortest = rehearsal.step_seconds;
      best = setup->engine.bucket_bytes;
    }
    if (bytes >= largest) break;
  }
  setup->engine.bucket_bytes = best;
  return absl::OkStatus();
}

absl::StatusOr<StagePlan> PlanStage(const RunSetup& setup, const RankAssumptions& assumptions) {
  StagePlan plan;
  plan.stage = setup.engine.zero_stage;
  plan.bucket_bytes = std::min(setup.engine.bucket_bytes, LargestGroupBytes(setup));
  if (Placement::OfStage(plan.stage).weights_sharded && setup.ranks > 1) {
    plan.gathered_layers = std::min<int64_t>(setup.engine.layer_slots, setup.config.num_layers);
  }
  TRANCHE_ASSIGN_OR_RETURN(
      plan.rehearsal, Rehearse(setup, /*training=*/true, assumptions.threads, assumptions.rates));
  return plan;
}

absl::StatusOr<std::vector<StagePlan>> PlanStages(const RunSetup& setup,
                                                  const RankAssumptions& assumptions) {
  std::vector<StagePlan> stages;
  for (int stage = 0; stage < Placement::kStages; ++stage) {
    TRANCHE_ASSIGN_OR_RETURN(RunSetup variant, SetUpVariant(setup, setup.recipe.training));
    variant.engine.zero_stage = stage;
    TRANCHE_RETURN_IF_ERROR(SettleByPrediction(assumptions, &variant));
    TRANCHE_ASSIGN_OR_RETURN(stages.emplace_back(), PlanStage(variant, assumptions));
  }
  return stages;
}

std::string PrintRanks(const StagePlan& plan, int ranks, const RankAssumptions& assumptions) {
  std::string text = absl::StrFormat(
      "ranks        %d, ZeRO stage %d, buckets of %s; %d on this host, %d %s each; what follows "
      "is of one rank\n",
      ranks, plan.stage, FormatBytes(plan.bucket_bytes), assumptions.ranks_here,
      assumptions.threads, assumptions.threads == 1 ? "thread" : "threads");
  if (plan.gathered_layers > 0) {
    absl::StrAppend(&text, "gathered     the weights of ", plan.gathered_layers,
                    " layers have a place\n");
  }
  std::vector<std::string> sent;
  for (const Collective kind : kMoving) {
    sent.push_back(absl::StrFormat("%s %s in %d calls", CollectiveName(kind),
                                   FormatBytes(BytesOf(plan, kind)), CallsOf(plan, kind)));
  }
  absl::StrAppend(&text, "sent         ", FormatBytes(plan.rehearsal.comm.total_bytes()),
                  " a step: ", absl::StrJoin(sent, ", "), "\n");
  const MachineRates& rates = assumptions.rates;
  const CollectiveCost& link = rates.collectives[static_cast<size_t>(Collective::kAllGather)];
  absl::StrAppendFormat(
      &text,
      "step         %s predicted, with %s/s in products and %s through memory (%s), a collective "
      "in %.3g us and at %s (%s)\n",
      FormatSeconds(plan.rehearsal.step_seconds), FormatFlops(rates.device.matmul_flops),
      FormatRate(rates.device.memory_bytes), assumptions.machine_source, 1e6 * link.alpha,
      FormatRate(1 / link.beta), assumptions.link_source);
  return text;
}

std::string PrintStages(const std::vector<StagePlan>& stages) {
  std::string text = "\nof one rank     ";
  for (const StagePlan& plan : stages)
    absl::StrAppendFormat(&text, "  %11s %d", "stage", plan.stage);
  absl::StrAppend(&text, "\n");
  const auto row = [&](absl::string_view name,
                       const std::function<std::string(const StagePlan&)>& cell) {
    absl::StrAppendFormat(&text, "  %-14s", name);
    for (const StagePlan& plan : stages) absl::StrAppendFormat(&text, "  %13s", cell(plan));
    absl::StrAppend(&text, "\n");
  };
  for (const MemoryKind kind : kMemoryKinds) {
    row(MemoryKindName(kind), [kind](const StagePlan& plan) {
      return FormatBytes(plan.rehearsal.bytes_by_kind[static_cast<size_t>(kind)]);
    });
  }
  row("together", [](const StagePlan& plan) { return FormatBytes(plan.rehearsal.peak_bytes); });
  row("in bytes", [](const StagePlan& plan) { return absl::StrCat(plan.rehearsal.peak_bytes); });
  for (const Collective kind : kMoving) {
    row(CollectiveName(kind),
        [kind](const StagePlan& plan) { return FormatBytes(BytesOf(plan, kind)); });
  }
  row("bucket", [](const StagePlan& plan) { return FormatBytes(plan.bucket_bytes); });
  row("gathered", [](const StagePlan& plan) {
    return plan.gathered_layers > 0 ? absl::StrCat(plan.gathered_layers, " layers") : "all";
  });
  row("step predicted",
      [](const StagePlan& plan) { return FormatSeconds(plan.rehearsal.step_seconds); });
  return text;
}

nlohmann::ordered_json StageJson(const StagePlan& plan) {
  nlohmann::ordered_json json = {{"zero_stage", plan.stage},
                                 {"bucket_bytes", plan.bucket_bytes},
                                 {"gathered_layers", plan.gathered_layers},
                                 {"memory_bytes", plan.rehearsal.peak_bytes}};
  for (const MemoryKind kind : kMemoryKinds) {
    json["memory_by_kind"][std::string(MemoryKindName(kind))] =
        plan.rehearsal.bytes_by_kind[static_cast<size_t>(kind)];
  }
  for (const Collective kind : kMoving) {
    json["sent"][std::string(CollectiveName(kind))] = {{"bytes", BytesOf(plan, kind)},
                                                       {"calls", CallsOf(plan, kind)}};
  }
  json["predicted_step_seconds"] = plan.rehearsal.step_seconds;
  return json;
}

nlohmann::ordered_json AssumptionsJson(const RankAssumptions& assumptions) {
  const MachineRates& rates = assumptions.rates;
  const CollectiveCost& link = rates.collectives[static_cast<size_t>(Collective::kAllGather)];
  return {{"ranks_here", assumptions.ranks_here},
          {"threads", assumptions.threads},
          {"machine", assumptions.machine_source},
          {"flops_per_second", rates.device.matmul_flops},
          {"memory_bytes_per_second", rates.device.memory_bytes},
          {"link", assumptions.link_source},
          {"collective_seconds", link.alpha},
          {"link_bytes_per_second", 1 / link.beta}};
}

}  // namespace tranche
