// The ranks that train together, as their hosts see them: who this process is, agreement between
// the hosts, and the way to a Comm. A run of one process is a world of one rank, in which every
// call returns at once.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launch/rank.h"
#include "zero/comm.h"
#include "zero/transport.h"

namespace tranche {

struct Membership;  // launch/join.h

class World {
 public:
  // What the environment says (launch/rank.h). Waits for the other ranks. When one of them fails,
  // every wait of this rank, in a collective too, ends at once with the reason; a rank that does
  // not leave then, because it computes or reads a file, is ended with kExitPeerFailed.
  static absl::StatusOr<std::unique_ptr<World>> Join();
  static std::unique_ptr<World> Alone();  // whatever the environment says
  ~World();  // without Leave, the others are told that this rank is gone

  int rank() const { return environment_.rank; }
  int size() const { return environment_.world_size; }
  bool first() const { return rank() == 0; }
  // Ranks on this host, where the environment says; else all.
  int local_size() const {
    return environment_.local_world_size > 0 ? environment_.local_world_size : size();
  }
  bool launched() const { return environment_.launcher_serves; }

  // Every rank gives a text under the same name and gets all of them, in rank order.
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view name, absl::string_view mine);
  // OK where every rank brings OK; else the error of the first that does not, which is then named
  // unless it is this one. So all ranks go the same way.
  absl::Status Agree(absl::string_view name, const absl::Status& mine);
  // What rank 0 computes, on every rank.
  absl::StatusOr<std::string> FromFirst(absl::string_view name,
                                        const std::function<absl::StatusOr<std::string>()>& get);
  // FailedPrecondition, with the first line that differs, where a rank brings another text than
  // rank 0.
  absl::Status SameOnAll(absl::string_view name, absl::string_view text);
  // What this rank does now, for the others' messages should it fail.
  void SetPhase(absl::string_view phase);

  // The collectives of all ranks, and of this one's groups where ranks shard in `replicas` groups
  // of the same size, two at least. Empty in a world of one. Once; the backend must outlive them.
  absl::StatusOr<CommGroups> Connect(Backend& backend, int replicas = 1);
  // The transport below them of all ranks, two at least, for measuring it. Instead of Connect.
  absl::StatusOr<Transport*> ConnectTransport();

  // Why another rank failed, or OK.
  absl::Status failure() const;
  // Says goodbye and waits until every rank has. With an error, tells the others why this one
  // leaves and does not wait.
  absl::Status Leave(const absl::Status& outcome);

 private:
  explicit World(RankEnvironment environment);
  // Ends every wait; then the process, where it does something else and does not leave.
  void Fail(const absl::Status& why);
  void StartToLeave();  // from now on this rank leaves by itself
  // Of `size` ranks: first, first + stride, first + 2·stride, …, of which this is one.
  absl::StatusOr<Transport*> ConnectGroup(const std::string& name, int first, int stride, int size);

  const RankEnvironment environment_;
  mutable std::mutex mutex_;  // guards failure_ and leaving_, and transports_ against Fail
  absl::Status failure_;
  bool leaving_ = false;
  std::condition_variable left_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<Comm>> comms_;
  std::unique_ptr<Membership> membership_;  // null: alone. Last: its thread calls Fail
};

// Joins, works, leaves. The exit code of `work`, or of the error it ends with, which is reported;
// kExitPeerFailed where another rank failed first.
int RunInWorld(const std::function<absl::StatusOr<int>(World&)>& work);

}  // namespace tranche
