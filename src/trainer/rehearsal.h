// A run's memory and arithmetic, known before any of it exists: the real Session on the plan
// backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/batch.h"
#include "tensor/arena.h"
#include "tensor/plan_backend.h"
#include "trainer/run_setup.h"
#include "trainer/session.h"
#include "zero/comm.h"

namespace tranche {

// Threads that the CPU backend will use here.
int UsableThreads();

// 4.72e12 -> "4.72 TFLOP".
std::string FormatFlops(double flops);

struct Rehearsal {
  std::vector<Arena::Entry> entries;
  int64_t peak_bytes = 0;
  std::vector<int64_t> bytes_by_kind;  // indexed by MemoryKind; they add up to peak_bytes
  double micro_batch_flops = 0;        // of a full one, forward and backward, as it is run
  // With training, of one rank's step that is not the first. Of many micro-batches only the first
  // few are rehearsed: those that follow do what the one before them did.
  CommCounts comm;
  double step_seconds = 0;
};

// How fast the machine and its links are, for the seconds of a rehearsal.
struct MachineRates {
  PlanRates device;
  CollectiveCosts collectives = {};
};

// Of one of setup.ranks ranks, which all need the same. `training` false: what evaluation alone
// needs, on one rank.
absl::StatusOr<Rehearsal> Rehearse(const RunSetup& setup, bool training, int threads,
                                   const MachineRates& rates = {});

// Where weights are sharded and the recipe leaves it open: as many layers stay gathered as fit into
// half of what is free on this host for each of its ranks.
absl::Status SettleResidency(int ranks_here, int threads, RunSetup* setup);

// Counts the model's FLOPs in micro-batches as they come, by their real lengths: forward and
// backward without recompute, which is what utilisation is measured with.
class FlopCounter {
 public:
  static absl::StatusOr<std::unique_ptr<FlopCounter>> Create(const RunSetup& setup);
  ~FlopCounter();
  double Count(const MicroBatch& batch);

 private:
  explicit FlopCounter(std::unique_ptr<PlanBackend> backend);
  std::unique_ptr<PlanBackend> backend_;
  Arena arena_;
  std::unique_ptr<Session> session_;
};

}  // namespace tranche
