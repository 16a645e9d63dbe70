// The part of a plan that many ranks add: what one of them holds, sends and takes a step at each
// ZeRO stage, on machines and links that nobody has measured yet.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "trainer/rehearsal.h"
#include "trainer/run_setup.h"

namespace tranche {

// What such a plan takes for granted.
struct RankAssumptions {
  int ranks_here = 1;  // that share this host's cores and memory
  int threads = 1;     // of each
  MachineRates rates;
  // Who says so.
  std::string machine_source = "assumed", link_source = "assumed";
};

// As `tranche launch` would start them here, over 10 Gbit/s Ethernet.
absl::StatusOr<RankAssumptions> AssumeRanks(int ranks);

// What the recipe leaves open and a run would settle by measuring: layers that stay gathered, and
// the bucket, here the one with the shortest predicted step of a few sizes.
absl::Status SettleByPrediction(const RankAssumptions& assumptions, RunSetup* setup);

struct StagePlan {
  int stage = 0;
  int64_t bucket_bytes = 0;
  int64_t gathered_layers = 0;  // that have a place at once; 0: weights are whole anyway
  Rehearsal rehearsal;
};

// Of the setup as it is settled.
absl::StatusOr<StagePlan> PlanStage(const RunSetup& setup, const RankAssumptions& assumptions);
// Of every stage, each settled by prediction.
absl::StatusOr<std::vector<StagePlan>> PlanStages(const RunSetup& setup,
                                                  const RankAssumptions& assumptions);

// "step 1.2s predicted, with …": the lines under a plan's batch.
std::string PrintRanks(const StagePlan& plan, int ranks, const RankAssumptions& assumptions);
std::string PrintStages(const std::vector<StagePlan>& stages);  // side by side
nlohmann::ordered_json StageJson(const StagePlan& plan);
nlohmann::ordered_json AssumptionsJson(const RankAssumptions& assumptions);

}  // namespace tranche
