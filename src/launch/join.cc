#include "launch/join.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "launch/orphans.h"

namespace tranche {

absl::StatusOr<Membership> JoinRanks(const RankEnvironment& rank, const JoinOptions& options) {
  TRANCHE_CHECK(rank.HasStore());
  RemoveOrphanedSharedMemory();  // of a job whose launcher was killed too
  Membership membership;
  const bool serves = rank.rank == 0 && !rank.launcher_serves;
  if (serves) {
    auto server = StoreServer::Start({.port = rank.store_port,
                                      .job = rank.job,
                                      .secret = rank.secret,
                                      .world_size = rank.world_size});
    if (!server.ok()) {
      return absl::Status(server.status().code(),
                          absl::StrCat("rank 0 cannot serve the store of job \"", rank.job,
                                       "\": ", server.status().message()));
    }
    membership.server = *std::move(server);
  }
  TRANCHE_ASSIGN_OR_RETURN(
      membership.client,
      StoreClient::Connect({.host = serves ? "127.0.0.1" : rank.store_host,
                            .port = rank.store_port,
                            .served_by = rank.launcher_serves ? "the launcher" : "rank 0",
                            .job = rank.job,
                            .secret = rank.secret,
                            .rank = rank.rank,
                            .world_size = rank.world_size,
                            .timeout_seconds = options.timeout_seconds,
                            .on_failure = options.on_failure}));
  return membership;
}

}  // namespace tranche
