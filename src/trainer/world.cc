#include "trainer/world.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status.h"
#include "launch/join.h"
#include "launch/orphans.h"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"

namespace tranche {
namespace {

constexpr double kJoinSeconds = 120;   // for the ranks of a job to start, and of an exchange
constexpr double kLeaveSeconds = 600;  // for rank 0 to export
constexpr double kCollectiveSeconds = 300;
constexpr int kAbandonSeconds = 2;  // after another rank's failure, to come to a wait and leave

// A status as a text: its code, a space, its message.
std::string Encode(const absl::Status& status) {
  return absl::StrCat(static_cast<int>(status.code()), " ", status.message());
}

absl::Status Decode(absl::string_view text, int rank) {
  const size_t space = text.find(' ');
  int code = static_cast<int>(absl::StatusCode::kInternal);
  if (space == absl::string_view::npos || !absl::SimpleAtoi(text.substr(0, space), &code)) {
    return absl::InternalError(absl::StrCat("rank ", rank, " sent no status"));
  }
  if (code == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code),
                      absl::StrCat("rank ", rank, ": ", text.substr(space + 1)));
}

}  // namespace

World::World(RankEnvironment environment) : environment_(std::move(environment)) {}

absl::StatusOr<std::unique_ptr<World>> World::Join() {
  TRANCHE_ASSIGN_OR_RETURN(RankEnvironment environment, ReadRankEnvironment());
  std::unique_ptr<World> world(new World(std::move(environment)));
  if (!world->environment_.HasStore()) return world;
  JoinOptions options;
  options.timeout_seconds = kJoinSeconds;
  options.on_failure = [raw = world.get()](const absl::Status& why) { raw->Fail(why); };
  TRANCHE_ASSIGN_OR_RETURN(Membership membership, JoinRanks(world->environment_, options));
  world->membership_ = std::make_unique<Membership>(std::move(membership));
  return world;
}

std::unique_ptr<World> World::Alone() { return std::unique_ptr<World>(new World({})); }

World::~World() { StartToLeave(); }

void World::StartToLeave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  leaving_ = true;
  left_.notify_all();
}

void World::Fail(const absl::Status& why) {
  std::unique_lock<std::mutex> lock(mutex_);
  failure_.Update(why);
  for (const auto& transport : transports_) transport->Abort(why);
  if (left_.wait_for(lock, std::chrono::seconds(kAbandonSeconds), [&] { return leaving_; })) return;
  ReportError(why);
  std::_Exit(kExitPeerFailed);
}

absl::Status World::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

absl::StatusOr<std::vector<std::string>> World::Exchange(absl::string_view name,
                                                         absl::string_view mine) {
  if (membership_ == nullptr) return std::vector<std::string>{std::string(mine)};
  return membership_->client->Exchange(name, mine);
}

absl::Status World::Agree(absl::string_view name, const absl::Status& mine) {
  if (size() == 1) return mine;
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> all, Exchange(name, Encode(mine)));
  for (int r = 0; r < size(); ++r) {
    const absl::Status status = Decode(all[static_cast<size_t>(r)], r);
    if (!status.ok()) return r == rank() ? mine : status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> World::FromFirst(
    absl::string_view name, const std::function<absl::StatusOr<std::string>()>& get) {
  if (size() == 1) return get();
  absl::StatusOr<std::string> mine = std::string();
  if (first()) mine = get();
  const std::string text = mine.ok() ? absl::StrCat("0 ", *mine) : Encode(mine.status());
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           Exchange(name, first() ? text : "0 "));
  if (first()) return mine;
  TRANCHE_RETURN_IF_ERROR(Decode(all[0], 0));
  return all[0].substr(2);
}

absl::Status World::SameOnAll(absl::string_view name, absl::string_view text) {
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> all, Exchange(name, text));
  const std::vector<std::string> first = absl::StrSplit(all[0], '\n');
  for (int r = 1; r < size(); ++r) {
    const std::vector<std::string> other = absl::StrSplit(all[static_cast<size_t>(r)], '\n');
    for (size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string a = i < first.size() ? first[i] : "nothing";
      const std::string b = i < other.size() ? other[i] : "nothing";
      if (a == b) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("ranks 0 and ", r, " were started differently (", name, "): rank 0 has \"",
                       a, "\", rank ", r, " has \"", b, "\""));
    }
  }
  return absl::OkStatus();
}

void World::SetPhase(absl::string_view phase) {
  if (membership_ != nullptr) membership_->client->SetPhase(phase);
}

absl::StatusOr<CommGroups> World::Connect(Backend& backend, int replicas) {
  TRANCHE_CHECK(comms_.empty()) << "connected twice";
  CommGroups groups;
  if (size() == 1) return groups;
  const auto connect = [&](const std::string& name, int first, int stride,
                           int size) -> absl::StatusOr<Comm*> {
    TRANCHE_ASSIGN_OR_RETURN(Transport * transport, ConnectGroup(name, first, stride, size));
    return comms_.emplace_back(std::make_unique<Comm>(backend, *transport)).get();
  };
  TRANCHE_ASSIGN_OR_RETURN(groups.world, connect("world", 0, 1, size()));
  groups.shards = groups.world;
  if (replicas == 1) return groups;
  const int shards = size() / replicas;
  TRANCHE_CHECK(shards * replicas == size() && shards > 1) << size() << " / " << replicas;
  TRANCHE_ASSIGN_OR_RETURN(groups.shards,
                           connect("shards", rank() / shards * shards, /*stride=*/1, shards));
  TRANCHE_ASSIGN_OR_RETURN(groups.replicas,
                           connect("replicas", rank() % shards, /*stride=*/shards, replicas));
  return groups;
}

absl::StatusOr<Transport*> World::ConnectTransport() { return ConnectGroup("world", 0, 1, size()); }

absl::StatusOr<Transport*> World::ConnectGroup(const std::string& name, int first, int stride,
                                               int size) {
  // All ranks exchange at once; each takes what its group gave.
  const BlobExchange exchange =
      [&](absl::string_view what,
          absl::string_view mine) -> absl::StatusOr<std::vector<std::string>> {
    TRANCHE_ASSIGN_OR_RETURN(std::vector<std::string> all,
                             Exchange(absl::StrCat(name, ".", what), mine));
    std::vector<std::string> group;
    for (int i = 0; i < size; ++i) {
      const int from = first + i * stride;
      group.push_back(std::move(all[static_cast<size_t>(from)]));
    }
    return group;
  };
  TRANCHE_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                           CreateUcxTransport((rank() - first) / stride, size, exchange,
                                              {.timeout_seconds = kCollectiveSeconds}));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  return transports_.emplace_back(std::move(transport)).get();
}

absl::Status World::Leave(const absl::Status& outcome) {
  StartToLeave();
  if (membership_ == nullptr) return outcome;
  if (outcome.ok()) return membership_->client->Goodbye(kLeaveSeconds);
  // Who leaves because of another adds nothing to its reason.
  if (failure().ok()) membership_->client->ReportFailure(outcome.message());
  return outcome;
}

int RunInWorld(const std::function<absl::StatusOr<int>(World&)>& work) {
  const absl::StatusOr<std::unique_ptr<World>> world = World::Join();
  if (!world.ok()) return ReportError(world.status());
  absl::StatusOr<int> code = work(**world);
  const absl::Status left = (*world)->Leave(code.status());
  if (code.ok() && !left.ok()) code = left;
  // Where no launcher does it after the last rank.
  if (!(*world)->failure().ok()) RemoveOrphanedSharedMemory();
  if (code.ok()) return *code;
  const int own = ReportError(code.status());
  return (*world)->failure().ok() ? own : kExitPeerFailed;
}

}  // namespace tranche
