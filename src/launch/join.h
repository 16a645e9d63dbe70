// Joining the other ranks: rank 0 serves the store where no launcher does, and every rank becomes a
// member.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launch/rank.h"
#include "launch/store.h"

namespace tranche {

struct JoinOptions {
  double timeout_seconds = 60;                          // of joining, and of each exchange
  std::function<void(const absl::Status&)> on_failure;  // see StoreClientOptions
};

// Destroyed in the reverse order, so that a server outlives its own rank's membership.
struct Membership {
  std::unique_ptr<StoreServer> server;  // of rank 0, where no launcher serves
  std::unique_ptr<StoreClient> client;
};

// `rank.HasStore()` must hold. Errors are those of StoreServer::Start and StoreClient::Connect.
absl::StatusOr<Membership> JoinRanks(const RankEnvironment& rank, const JoinOptions& options);

}  // namespace tranche
