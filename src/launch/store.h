// The store: where ranks find each other before there is a transport, and where all learn at once
// that one of them is gone. One process serves it (the launcher, or rank 0), every rank is a
// member. Membership lasts from a member's hello until all have said goodbye; a rank whose
// connection ends earlier, that falls silent or that reports a failure is named to every other
// member, with the phase it was in. Only the first failure is told: the others follow from it.
//
// The secret keeps out jobs and programs that meet a port by mistake. It travels as it is: whoever
// reads the network can join.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launch/frame.h"
#include "launch/socket.h"

namespace tranche {

struct StoreServerOptions {
  int port = 0;                // 0: any free one
  bool loopback_only = false;  // only this host's processes may join
  std::string job;             // names the job; members of another are refused
  std::string secret;
  int world_size = 1;
  double heartbeat_seconds = kSilenceSeconds / 10;  // how often both sides say that they are there
  double silence_seconds = kSilenceSeconds;
};

// The first failure among the ranks.
struct RankFailure {
  int rank = 0;
  std::string phase;       // the last one it announced; empty before the first
  std::string reason;      // "its connection closed"
  bool own_words = false;  // the rank itself gave the reason

  std::string Message() const;  // "rank 2 failed in phase \"step 17\": its connection closed"
};

// Serves from a thread of its own. Thread-safe.
class StoreServer {
 public:
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(const StoreServerOptions& options);
  // Sends what members have not yet received, for at most two seconds.
  ~StoreServer();

  int port() const { return port_; }
  std::string phase(int rank) const;
  std::optional<RankFailure> failure() const;

  // Who started the ranks says that one's process has ended and how ("it exited with code 3"): a
  // failure unless all have said goodbye, also of a rank that never became a member.
  void RankEnded(int rank, absl::string_view how);

 private:
  struct Connection;
  struct Member;
  struct Contribution;
  using Gathering = std::vector<std::optional<Contribution>>;  // by rank

  StoreServer(const StoreServerOptions& options, FileDescriptor listener);
  void Serve();
  bool ServeOnce(int timeout_ms);
  void Accept();
  void Receive(Connection* connection);
  std::string HandleAll(Connection* connection);  // why the connection must end, or ""
  bool Handle(Connection* connection, const Frame& frame);
  void Hello(Connection* connection, FrameReader body);
  bool Contribute(Connection* connection, FrameKind kind, FrameReader body);
  void Refuse(Connection* connection, absl::string_view why);
  void Send(Connection* connection, const std::string& frame);
  void Flush(Connection* connection);
  void Fail(int rank, absl::string_view reason, bool own_words = false);
  void Tell(Connection* connection);
  void CheckTimes();
  // Where the first waiting rank's time is over, or who is missing has left: tells all that wait.
  bool GiveUpOn(const std::string& name, const Gathering& gathering, SteadyClock::time_point now);
  std::string DescribeMissing(const std::string& name, const Gathering& gathering,
                              absl::string_view within) const;
  bool Connected(int rank) const;

  const StoreServerOptions options_;
  const FileDescriptor listener_;
  const int port_;
  Waker waker_;
  mutable std::mutex mutex_;      // guards all below
  std::condition_variable left_;  // a member's connection has ended
  bool stop_ = false;
  bool all_left_ = false;  // every member has said goodbye
  int refusals_logged_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Member> members_;
  std::map<std::string, Gathering> gatherings_;
  std::optional<RankFailure> failure_;
  SteadyClock::time_point last_heartbeat_, last_check_;
  std::thread thread_;
};

struct StoreClientOptions {
  std::string host;
  int port = 0;
  std::string served_by;  // for messages: "rank 0", "the launcher"
  std::string job;
  std::string secret;
  int rank = 0;
  int world_size = 1;
  double timeout_seconds = 60;  // of connecting, and of each exchange
  // Called once, from the client's own thread, when another rank has failed or the store is gone.
  // The status is Aborted and names the rank. It must not call this client.
  std::function<void(const absl::Status&)> on_failure;
};

// One rank's membership. Thread-safe; every wait ends by its deadline, or at once when a rank
// fails, with the same status as on_failure gets.
class StoreClient {
 public:
  // Joins. FailedPrecondition where the store refuses (another job, another world size, a rank that
  // is there already), Unavailable where nobody answers in time.
  static absl::StatusOr<std::unique_ptr<StoreClient>> Connect(const StoreClientOptions& options);
  // Without a Goodbye that returned OK the others are told that this rank is gone.
  ~StoreClient();

  // Every rank gives a blob (at most kMaxBlobBytes) under the same name and receives all of them in
  // rank order. A name may be used again. When the first rank's time is over, all that wait get
  // DeadlineExceeded, which names each rank that has not come and what it does instead.
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view name, absl::string_view mine);
  absl::Status Barrier(absl::string_view name) { return Exchange(name, "").status(); }

  // What this rank does from now on ("step 17"), for the message should it fail. One system call,
  // no wait.
  void SetPhase(absl::string_view phase);
  // Tells all others that this rank fails. Waits until it is sent, at most a second.
  void ReportFailure(absl::string_view message);
  // Ends the membership: waits until every rank has said goodbye, at most `timeout_seconds`.
  absl::Status Goodbye(double timeout_seconds);

 private:
  using Result = absl::StatusOr<std::vector<std::string>>;

  StoreClient(const StoreClientOptions& options, FileDescriptor socket);
  absl::Status Join(SteadyClock::time_point deadline);
  Result Gather(FrameKind kind, absl::string_view name, absl::string_view mine,
                double timeout_seconds);
  void Run();
  absl::Status Receive();
  absl::Status Handle(const Frame& frame);
  void Send(absl::string_view frame);  // mutex_ is held
  std::string Place() const;           // "the store of rank 0 at node0:29500"

  const StoreClientOptions options_;
  const FileDescriptor socket_;
  SteadyClock::duration heartbeat_{}, silence_{};
  Waker waker_;
  FrameBuffer in_;            // the thread's alone after Join
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::string out_;  // what the socket did not take
  std::map<std::string, std::optional<Result>> waiting_;
  absl::Status failure_;
  bool stop_ = false;
  bool left_ = false;  // all have said goodbye
  std::thread thread_;
};

}  // namespace tranche
