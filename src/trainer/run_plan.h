// The plan of a run, for people and machines: memory by kind and by name, arithmetic, length,
// checkpoints, what dominates and what would make it smaller. Allocates nothing and opens no data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/rehearsal.h"
#include "trainer/run_setup.h"
#include "trainer/stage_plan.h"

namespace tranche {

struct RunPlan {
  struct Change {
    std::string what;  // "training.micro_batch_size = 4"
    int64_t peak_bytes = 0;
    double step_flops = 0;
    std::string cost;  // in words
  };

  // The parameters that one table of optimizer.param_groups matches.
  struct Group {
    std::string match;
    std::string how;  // "lr x 0.5, weight decay 0.01"
    int64_t parameters = 0, tensors = 0;
  };

  std::string architecture;
  std::string precision, recompute;
  int64_t parameters = 0, decayed_parameters = 0, tensors = 0, undecayed_tensors = 0;
  int64_t global_batch_size = 0, micro_batch_size = 0, sequence_length = 0;
  std::vector<Group> groups;
  std::optional<int64_t> total_steps;  // absent where only the data can tell
  int ranks = 1;
  RankAssumptions assumptions;
  StagePlan stage;                // the run's own; its rehearsal is that of the run
  std::vector<StagePlan> stages;  // all, where they are asked for
  double step_flops = 0;          // as run
  double model_step_flops = 0;    // without recompute
  int64_t checkpoint_bytes = 0;
  int64_t kept_checkpoints = 0;
  std::vector<Change> changes;  // that make it smaller, the cheapest first

  int64_t step_tokens() const { return global_batch_size * sequence_length; }
};

// `total_steps`: where it is known already; else taken from the recipe where that suffices. Settles
// by prediction what the recipe leaves open. `all_stages`: with several ranks, compare them.
absl::StatusOr<RunPlan> MakePlan(RunSetup setup, std::optional<int64_t> total_steps,
                                 const RankAssumptions& assumptions, bool all_stages = false);

std::string PrintPlan(const RunPlan& plan);
std::string PlanJson(const RunPlan& plan);

}  // namespace tranche
