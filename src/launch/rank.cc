#include "launch/rank.h"

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "base/status.h"
#include "launch/hostlist.h"

namespace tranche {
namespace {

// Slurm's jobs share no ports: theirs follow from the job's number, below the ports that kernels
// give to connections.
constexpr int kFirstSlurmPort = 20000, kSlurmPorts = 10000;

class Environment {
 public:
  explicit Environment(const Getenv& get) : get_(get) {}

  bool Has(const char* name) const { return !Text(name).empty(); }
  std::string Text(const char* name) const {
    const char* value = get_(name);
    return value == nullptr ? "" : value;
  }
  absl::StatusOr<int> Number(const char* name, int low, int high) const {
    int value = 0;
    if (absl::SimpleAtoi(Text(name), &value) && value >= low && value <= high) return value;
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=\"", Text(name), "\" is not a whole number from ", low, " to ", high));
  }
  // All of them must be there.
  absl::Status Need(const char* because, const std::vector<const char*>& names) const {
    std::vector<const char*> missing;
    for (const char* name : names) {
      if (!Has(name)) missing.push_back(name);
    }
    if (missing.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(because, " is set, but not ", absl::StrJoin(missing, ", "),
                     "; set all of them, or unset ", because, " to train on one rank"));
  }

 private:
  const Getenv& get_;
};

constexpr int kMaxRanks = 1 << 20;

// Reads rank, size and, where both are there, the rank within the host and its size.
absl::Status ReadNumbers(const Environment& environment, const char* rank, const char* size,
                         const char* local_rank, const char* local_size, RankEnvironment* out) {
  TRANCHE_ASSIGN_OR_RETURN(out->world_size, environment.Number(size, 1, kMaxRanks));
  TRANCHE_ASSIGN_OR_RETURN(out->rank, environment.Number(rank, 0, kMaxRanks));
  if (out->rank >= out->world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(rank, "=", out->rank, " is not below ", size, "=", out->world_size));
  }
  if (environment.Has(local_rank)) {
    TRANCHE_ASSIGN_OR_RETURN(out->local_rank, environment.Number(local_rank, 0, kMaxRanks));
    if (out->local_rank > out->rank) {
      return absl::InvalidArgumentError(
          absl::StrCat(local_rank, "=", out->local_rank, " is above ", rank, "=", out->rank));
    }
  }
  if (environment.Has(local_size)) {
    TRANCHE_ASSIGN_OR_RETURN(out->local_world_size, environment.Number(local_size, 1, kMaxRanks));
    if (out->local_world_size > out->world_size || out->local_rank >= out->local_world_size) {
      return absl::InvalidArgumentError(absl::StrCat(local_size, "=", out->local_world_size,
                                                     " contradicts ", size, "=", out->world_size,
                                                     " and ", local_rank, "=", out->local_rank));
    }
  }
  return absl::OkStatus();
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

absl::Status CheckStoreHost(const RankEnvironment& rank, const char* variable) {
  if (IsLoopback(rank.store_host) && rank.local_world_size > 0 &&
      rank.local_world_size < rank.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(variable, "=", rank.store_host, ", but only ", rank.local_world_size, " of ",
                     rank.world_size,
                     " ranks are on this host: ranks elsewhere would look for rank 0 on their own "
                     "host; give the name of rank 0's host"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RankEnvironment> FromLauncher(const Environment& environment) {
  RankEnvironment rank;
  TRANCHE_RETURN_IF_ERROR(environment.Need(
      "TRANCHE_RANK", {"TRANCHE_WORLD_SIZE", "TRANCHE_LOCAL_RANK", "TRANCHE_LOCAL_WORLD_SIZE",
                       "TRANCHE_STORE", "TRANCHE_JOB", "TRANCHE_SECRET"}));
  TRANCHE_RETURN_IF_ERROR(ReadNumbers(environment, "TRANCHE_RANK", "TRANCHE_WORLD_SIZE",
                                      "TRANCHE_LOCAL_RANK", "TRANCHE_LOCAL_WORLD_SIZE", &rank));
  const std::string store = environment.Text("TRANCHE_STORE");
  const size_t colon = store.rfind(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(store.substr(colon + 1), &rank.store_port) ||
      rank.store_port < 1 || rank.store_port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("TRANCHE_STORE=\"", store, "\" is not HOST:PORT"));
  }
  rank.store_host = store.substr(0, colon);
  rank.launcher_serves = true;
  rank.job = environment.Text("TRANCHE_JOB");
  rank.secret = environment.Text("TRANCHE_SECRET");
  return rank;
}

// RANK and its companions, without the place of the store.
absl::StatusOr<RankEnvironment> FromVariables(const Environment& environment) {
  RankEnvironment rank;
  if (!environment.Has("RANK") || !environment.Has("WORLD_SIZE")) {
    return absl::InvalidArgumentError(absl::StrCat(environment.Has("RANK")
                                                       ? "RANK is set, but not WORLD_SIZE"
                                                       : "WORLD_SIZE is set, but not RANK",
                                                   "; set both, or unset it to train on one rank"));
  }
  TRANCHE_RETURN_IF_ERROR(
      ReadNumbers(environment, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", &rank));
  return rank;
}

// A task of srun, without the place of the store. The step's values come before the job's: a step
// may have fewer tasks and hosts.
absl::StatusOr<RankEnvironment> FromSlurm(const Environment& environment) {
  RankEnvironment rank;
  const char* size =
      environment.Has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  TRANCHE_RETURN_IF_ERROR(environment.Need("SLURM_PROCID", {size, "SLURM_JOB_ID"}));
  TRANCHE_RETURN_IF_ERROR(
      ReadNumbers(environment, "SLURM_PROCID", size, "SLURM_LOCALID", "", &rank));
  const std::string tasks = environment.Text("SLURM_STEP_TASKS_PER_NODE");
  if (!tasks.empty() && environment.Has("SLURM_NODEID")) {
    TRANCHE_ASSIGN_OR_RETURN(const int node, environment.Number("SLURM_NODEID", 0, kMaxRanks));
    rank.local_world_size = NthCount(tasks, node).value_or(-1);
  }
  return rank;
}

absl::Status PlaceOfSlurm(const Environment& environment, RankEnvironment* rank) {
  const char* name =
      environment.Has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  const std::optional<std::string> first = FirstHost(environment.Text(name));
  if (!first.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, "=\"", environment.Text(name), "\" names no host; set MASTER_ADDR and MASTER_PORT"));
  }
  rank->store_host = *first;
  const std::string digits = Hash128(rank->job).substr(0, 8);
  rank->store_port =
      kFirstSlurmPort + static_cast<int>(std::strtoul(digits.c_str(), nullptr, 16) % kSlurmPorts);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankEnvironment> ReadRankEnvironment(const Getenv& get) {
  const Environment environment(get);
  if (environment.Has("TRANCHE_RANK")) return FromLauncher(environment);

  const bool by_variables = environment.Has("RANK") || environment.Has("WORLD_SIZE");
  // A batch script has SLURM_PROCID=0 too, but is no task of a step.
  const bool in_slurm = environment.Has("SLURM_PROCID");
  const bool by_slurm = in_slurm && environment.Has("SLURM_STEP_ID");
  if (in_slurm && !by_slurm && !by_variables && environment.Has("SLURM_NTASKS") &&
      environment.Text("SLURM_NTASKS") != "1") {
    return absl::InvalidArgumentError(absl::StrCat(
        "this is the batch script of a Slurm job of ", environment.Text("SLURM_NTASKS"),
        " tasks, not one of them: start the program with srun, or with `tranche launch`"));
  }
  RankEnvironment rank, slurm;
  if (by_slurm) {
    TRANCHE_ASSIGN_OR_RETURN(slurm, FromSlurm(environment));
    rank = slurm;
  }
  if (by_variables) {
    TRANCHE_ASSIGN_OR_RETURN(rank, FromVariables(environment));
    if (by_slurm && (rank.rank != slurm.rank || rank.world_size != slurm.world_size)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "RANK=", rank.rank, " of WORLD_SIZE=", rank.world_size, ", but Slurm says task ",
          slurm.rank, " of ", slurm.world_size, "; unset RANK and WORLD_SIZE, or SLURM_PROCID"));
    }
  }
  if (rank.world_size == 1) return rank;

  rank.job = environment.Text("TRANCHE_JOB");
  if (rank.job.empty() && by_slurm) {
    rank.job = absl::StrCat(
        "slurm ", environment.Text("SLURM_JOB_ID"), ".", environment.Text("SLURM_STEP_ID"),
        " start ",
        environment.Has("SLURM_RESTART_COUNT") ? environment.Text("SLURM_RESTART_COUNT") : "0");
  }
  if (environment.Has("MASTER_ADDR") || environment.Has("MASTER_PORT") || !by_slurm) {
    TRANCHE_RETURN_IF_ERROR(environment.Need(by_variables ? "WORLD_SIZE" : "SLURM_PROCID",
                                             {"MASTER_ADDR", "MASTER_PORT"}));
    rank.store_host = environment.Text("MASTER_ADDR");
    TRANCHE_ASSIGN_OR_RETURN(rank.store_port, environment.Number("MASTER_PORT", 1, 65535));
    TRANCHE_RETURN_IF_ERROR(CheckStoreHost(rank, "MASTER_ADDR"));
  } else {
    TRANCHE_RETURN_IF_ERROR(PlaceOfSlurm(environment, &rank));
  }
  if (rank.job.empty()) rank.job = absl::StrCat(rank.store_host, ":", rank.store_port);
  rank.secret =
      environment.Has("TRANCHE_SECRET") ? environment.Text("TRANCHE_SECRET") : Hash128(rank.job);
  return rank;
}

absl::StatusOr<RankEnvironment> ReadRankEnvironment() {
  return ReadRankEnvironment([](const char* name) { return std::getenv(name); });
}

}  // namespace tranche
