// What ends a collective that cannot end: a killed rank, a missing one, Abort. And what ranks leave
// behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "transport_ranks.h"
#include "zero/transport.h"

namespace tranche {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSmall = 8;
constexpr int64_t kLarge = int64_t{2} << 20;

// Every collective, by a number: all-gather and reduce-scatter of few and many bytes, barrier.
constexpr int kCollectives = 5;
absl::Status Collective(Transport& t, int which) {
  static std::vector<float> in(kLarge * t.size() / 4);
  static std::vector<float> out(kLarge * t.size() / 4);
  switch (which) {
    case 0:
      return t.AllGather(out.data(), in.data(), kSmall);
    case 1:
      return t.AllGather(out.data(), in.data(), kLarge);
    case 2:
      return t.ReduceScatter(out.data(), in.data(), DType::kFloat32, kSmall / 4, false);
    case 3:
      return t.ReduceScatter(out.data(), in.data(), DType::kFloat32, kLarge / 4, false);
    default:
      return t.Barrier();
  }
}

// Shared memory files of UCX that are there now and are not in `before`.
std::vector<std::string> UcxFiles(const std::vector<std::string>& before) {
  std::vector<std::string> files;
  const auto names = ListDir("/dev/shm");
  if (!names.ok()) return files;
  for (const std::string& name : *names) {
    const bool known = std::find(before.begin(), before.end(), name) != before.end();
    if (absl::StrContains(name, "ucx") && !known) files.push_back(name);
  }
  return files;
}

// Segments of System V memory made by one of these processes.
std::vector<std::string> SegmentsOf(const std::vector<pid_t>& processes) {
  std::vector<std::string> segments;
  std::ifstream file("/proc/sysvipc/shm");
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    const auto made_by = static_cast<pid_t>(std::stoll(words.at(4)));
    if (std::find(processes.begin(), processes.end(), made_by) != processes.end()) {
      segments.push_back(line);
    }
  }
  return segments;
}

TEST(TransportFailure, AKilledRankEndsTheWaitOfTheOthersByAbortAndLeavesNothingBehind) {
  for (int which = 0; which < kCollectives; ++which) {
    SCOPED_TRACE(which);
    const std::vector<std::string> files = UcxFiles({});
    std::vector<pid_t> processes;
    const std::vector<std::string> results = RunRanks(
        3,
        [&](const RankGroup& group) -> std::string {
          const auto transport = group.Connect({.timeout_seconds = 100});
          if (!transport->Barrier().ok()) return "no barrier";
          if (group.rank() == 1) raise(SIGKILL);
          std::thread control_plane([&] {
            group.AwaitMark("dead");
            transport->Abort(absl::UnavailableError("rank 1 was killed by signal 9"));
          });
          const absl::Status first = Collective(*transport, which);
          control_plane.join();
          if (transport->Barrier() != first) return "the next call has another outcome";
          return first.ToString();
        },
        [&](const RankGroup& group, const std::vector<pid_t>& ranks) {
          processes = ranks;
          siginfo_t info;
          waitid(P_PID, ranks[1], &info, WEXITED | WNOWAIT);
          group.Mark("dead");
        });
    EXPECT_EQ(results[1], "signal 9");
    for (const int rank : {0, 2}) {
      // Though a message may find the end of rank 1 before the control plane does.
      EXPECT_THAT(results[rank],
                  AllOf(HasSubstr("UNAVAILABLE"), HasSubstr(absl::StrCat("on rank ", rank, ": ")),
                        HasSubstr(which == 4  ? "barrier"
                                  : which < 2 ? "all_gather of "
                                              : "reduce_scatter of "),
                        HasSubstr(": rank 1 was killed by signal 9")));
    }
    EXPECT_THAT(SegmentsOf(processes), IsEmpty());
    // Those of other programs come and go.
    for (int i = 0; i < 2000 && !UcxFiles(files).empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_THAT(UcxFiles(files), IsEmpty());
  }
}

// A message of the dead rank is there when the other one comes to read it where it lay.
TEST(TransportFailure, ARankWhoseMessageOutlivesItTakesNobodyAlong) {
  for (const char* transports : {"shm,self", "tcp,self"}) {
    SCOPED_TRACE(transports);
    const std::vector<std::string> results = RunRanks(
        2,
        [&](const RankGroup& group) -> std::string {
          setenv("UCX_TLS", transports, 1);
          const auto transport = group.Connect({.timeout_seconds = 100});
          if (!Collective(*transport, 1).ok()) return "no first gather";
          if (group.rank() == 0) {
            group.Mark("sends");
            return Collective(*transport, 1).ToString();
          }
          group.AwaitMark("dead");
          std::thread control_plane([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            transport->Abort(absl::UnavailableError("rank 0 was killed by signal 9"));
          });
          const absl::Status outcome = Collective(*transport, 1);
          control_plane.join();
          return outcome.ToString();
        },
        [&](const RankGroup& group, const std::vector<pid_t>& ranks) {
          group.AwaitMark("sends");
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          kill(ranks[0], SIGKILL);
          siginfo_t info;
          waitid(P_PID, ranks[0], &info, WEXITED | WNOWAIT);
          group.Mark("dead");
        });
    EXPECT_EQ(results[0], "signal 9");
    // The control plane's reason, though the link has found a fault before.
    EXPECT_THAT(results[1], AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("all_gather of "),
                                  HasSubstr(" on rank 1: rank 0 was killed by signal 9")));
  }
}

TEST(TransportFailure, AMissingRankIsNamedWhenTheDeadlinePasses) {
  for (int which = 0; which < kCollectives; ++which) {
    SCOPED_TRACE(which);
    const std::vector<std::string> results = RunRanks(3, [&](const RankGroup& group) {
      const auto transport = group.Connect({.timeout_seconds = group.rank() == 2 ? 60 : 0.3});
      std::string outcome = "away";
      if (group.rank() != 2) {
        outcome = Collective(*transport, which).ToString();
        group.Mark(absl::StrCat("done.", group.rank()));
      }
      // Its end is not what the others hear of.
      group.AwaitMark("done.0");
      group.AwaitMark("done.1");
      return outcome;
    });
    for (const int rank : {0, 1}) {
      EXPECT_THAT(results[rank], AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                                       HasSubstr("still waiting for rank 2 to send")));
    }
  }
}

TEST(TransportFailure, AFailedCollectiveDoesNotTouchMemoryAnyMore) {
  for (const int64_t bytes : {kSmall, kLarge}) {
    const std::vector<std::string> results =
        RunRanks(2, [&](const RankGroup& group) -> std::string {
          const auto transport = group.Connect({.timeout_seconds = 0.3});
          std::vector<char> out(2 * bytes, 'a');
          if (group.rank() == 1) group.AwaitMark("failed");
          const absl::Status status =
              transport->AllGather(out.data(), out.data() + group.rank() * bytes, bytes);
          if (group.rank() == 1) {
            group.Mark("sent");
            return "";
          }
          if (!absl::IsDeadlineExceeded(status)) return status.ToString();
          std::fill(out.begin(), out.end(), 'b');
          group.Mark("failed");
          group.AwaitMark("sent");
          if (transport->Barrier() != status) return "works again";
          return std::count(out.begin(), out.end(), 'b') == 2 * bytes ? "" : "written to";
        });
    EXPECT_THAT(results, Each(""));
  }
}

TEST(TransportFailure, RanksInDifferentCollectivesSayThatTheyAre) {
  const std::vector<std::string> results = RunRanks(2, [&](const RankGroup& group) {
    const auto transport = group.Connect({.timeout_seconds = 1});
    std::vector<char> out(200);
    return transport
        ->AllGather(out.data(), out.data() + 100 * group.rank(), group.rank() == 0 ? 16 : 8)
        .ToString();
  });
  EXPECT_THAT(results[0], HasSubstr("rank 1 sent 8 bytes where 16 were expected"));
}

TEST(TransportFailure, ARankThatSleepsLeavesItsCoreToOthers) {
  constexpr auto kWait = std::chrono::milliseconds(500);
  const std::vector<std::string> results = RunRanks(2, [&](const RankGroup& group) {
    const auto transport = group.Connect({.timeout_seconds = 60});
    (void)transport->Barrier();
    if (group.rank() == 1) std::this_thread::sleep_for(kWait);
    rusage before;
    getrusage(RUSAGE_SELF, &before);
    const absl::Status status = transport->Barrier();
    rusage after;
    getrusage(RUSAGE_SELF, &after);
    const auto microseconds = [](const rusage& use) {
      return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000 + use.ru_utime.tv_usec +
             use.ru_stime.tv_usec;
    };
    if (!status.ok()) return status.ToString();
    const int64_t used = microseconds(after) - microseconds(before);
    return used < 100000 ? std::string() : absl::StrCat(used, " us of CPU time");
  });
  EXPECT_THAT(results, Each(""));
}

TEST(TransportFailure, ThreadsEndByAbortAndDeadlineToo) {
  const auto transports = CreateLocalTransports(3, {.timeout_seconds = 0.2});
  std::vector<absl::Status> outcomes(3);
  std::thread first([&] { outcomes[0] = transports[0]->Barrier(); });
  std::thread second([&] { outcomes[1] = transports[1]->Barrier(); });
  transports[1]->Abort(absl::UnavailableError("rank 2 is gone"));
  first.join();
  second.join();
  EXPECT_THAT(outcomes[0].ToString(), AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                                            HasSubstr("barrier on rank 0"), HasSubstr("2")));
  EXPECT_THAT(outcomes[1].ToString(), AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("rank 2 is gone")));
  EXPECT_EQ(transports[1]->Barrier(), outcomes[1]);
}

TEST(TransportFailure, UcxLeavesTheProgramsSignalsAlone) {
  for (const int signal : {SIGHUP, SIGILL}) {
    struct sigaction action;
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
    EXPECT_TRUE(action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) << signal;
  }
}

}  // namespace
}  // namespace tranche
