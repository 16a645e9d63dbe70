// Which rank this process is, as the environment says. Three forms, tried in this order; each must
// be whole, and nothing set means one rank alone:
//   TRANCHE_RANK, _WORLD_SIZE, _LOCAL_RANK, _LOCAL_WORLD_SIZE, _STORE, _JOB, _SECRET
//                                      set by `tranche launch`, which also serves the store
//   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT [, LOCAL_RANK, LOCAL_WORLD_SIZE]
//                                      set by other launchers, or by hand
//   SLURM_PROCID, SLURM_STEP_ID, …     set by srun
// In the last two forms rank 0 serves the store; TRANCHE_JOB and TRANCHE_SECRET may name the job
// and its secret, MASTER_ADDR and MASTER_PORT its place.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace tranche {

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = -1;        // within its host; -1 where the environment does not say
  int local_world_size = -1;  // ranks of its host; -1 where the environment does not say

  // Where the store is; unused where world_size is 1 and nobody launched it.
  std::string store_host;
  int store_port = 0;
  bool launcher_serves = false;  // else rank 0 serves
  std::string job;
  std::string secret;

  bool HasStore() const { return store_port != 0; }
};

// The value of a variable, or nullptr.
using Getenv = std::function<const char*(const char* name)>;

// InvalidArgument, naming the variables, where they are half there, contradict each other or hold
// no numbers.
absl::StatusOr<RankEnvironment> ReadRankEnvironment(const Getenv& get);
absl::StatusOr<RankEnvironment> ReadRankEnvironment();  // of this process

}  // namespace tranche
