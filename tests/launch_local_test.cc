// Ranks as real processes: whatever ends one of them, by whatever signal and at whatever moment,
// the others learn its name and leave, the launcher says so and nothing stays behind.
#include <sys/mman.h>

#include "base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/socket.h"
#include "launch_processes.h"

namespace tranche {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The full counts are tests/soak/launch's.
int Rounds(int otherwise) {
  const char* given = std::getenv("TRANCHE_SOAK_ROUNDS");
  return given == nullptr ? otherwise : std::atoi(given);
}

uint64_t Seed() {
  const char* given = std::getenv("TRANCHE_SOAK_SEED");
  return given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
}

class LaunchOf : public ::testing::TestWithParam<int> {};

TEST_P(LaunchOf, RanksThatExchangeAndLeaveIsDone) {
  const int ranks = GetParam();
  Launched launched(ranks, "work", {"oversubscribe"});
  EXPECT_EQ(launched.Wait(), 0) << launched.Output();
  // Rank 0 alone is heard; every rank has its log.
  EXPECT_THAT(launched.Output(), HasSubstr("rank 0 is done\n"));
  EXPECT_THAT(launched.Output(), Not(HasSubstr("rank 1 is done")));
  for (int r = 0; r < ranks; ++r) {
    EXPECT_THAT(launched.Log(r), HasSubstr(absl::StrCat("rank ", r, " is done\n")));
  }
  EXPECT_THAT(launched.Output(), Not(HasSubstr("error")));
}
INSTANTIATE_TEST_SUITE_P(All, LaunchOf, ::testing::Values(1, 2, 3, 5, 8));

TEST(Launch, StreamsOfRankZeroGoToOursAndToItsLog) {
  Launched launched(3, "noise", {"oversubscribe"});
  EXPECT_EQ(launched.Wait(), 0);
  for (const std::string& text : {launched.Output(), launched.Log(0)}) {
    EXPECT_THAT(text, AllOf(HasSubstr("out of rank 0\n"), HasSubstr("err of rank 0\n"),
                            Not(HasSubstr("rank 1"))));
  }
  EXPECT_THAT(launched.Output(), HasSubstr("note: 3 ranks on this host, "));
  EXPECT_THAT(launched.Log(2), AllOf(HasSubstr("out of rank 2\n"), HasSubstr("err of rank 2\n")));
}

// SIGKILL of every rank, at a moment drawn at random: while it starts, loads, steps, saves.
TEST(Launch, KillingAnyRankAtAnyMomentEndsAllAndNamesIt) {
  constexpr int kRanks = 4;
  RandomSequence random(Seed());
  for (int round = 0; round < Rounds(5); ++round) {
    Launched launched(kRanks, "stubborn", {"oversubscribe"});
    const std::vector<pid_t> pids = launched.Ranks(kRanks);
    const auto victim = static_cast<int>(random.Below(kRanks));
    if (random.Below(4) != 0) launched.AwaitWork();
    std::this_thread::sleep_for(std::chrono::microseconds(random.Below(100'000)));
    ::kill(pids[static_cast<size_t>(victim)], SIGKILL);
    EXPECT_EQ(launched.Wait(), 128 + SIGKILL);
    ExpectNoneLives(pids);
    EXPECT_THAT(launched.Output(),
                HasSubstr(absl::StrCat("rank ", victim, " (pid ", pids[static_cast<size_t>(victim)],
                                       ") was killed by signal 9 (Killed)")));
    for (int r = 0; r < kRanks; ++r) {
      if (r == victim) continue;
      EXPECT_THAT(launched.Log(r), HasSubstr(absl::StrCat("rank ", victim, " failed")))
          << "round " << round << " rank " << r << "\n"
          << launched.Output();
    }
    const auto left = [&](const std::string& folder) {
      return std::distance(std::filesystem::directory_iterator(launched.File(folder)), {});
    };
    EXPECT_EQ(left(""), 2);  // output and logs
    EXPECT_EQ(left("logs"), kRanks);
  }
}

// Ranks that something else starts: rank 0 serves the store.
class Started {
 public:
  // A job on `port`; `variables` are set beside its place and numbers.
  Started(int ranks, int port, const std::string& mode,
          const std::vector<std::string>& variables = {}) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<std::string> all = {absl::StrCat("RANK=", rank),
                                      absl::StrCat("WORLD_SIZE=", ranks),
                                      absl::StrCat("MASTER_PORT=", port), "MASTER_ADDR=localhost"};
      all.insert(all.end(), variables.begin(), variables.end());
      ranks_.emplace_back(std::vector<std::string>{TestProgram(), mode}, File(rank), all);
    }
  }
  Process& rank(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  std::string Output(int rank) const { return ReadAll(File(rank)); }
  void AwaitWork() const {
    EXPECT_TRUE(Eventually([&] { return absl::StrContains(Output(0), "all ranks work"); }))
        << Output(0);
  }

 private:
  std::string File(int rank) const { return folder_.File(absl::StrCat("rank-", rank)); }
  TempFolder folder_;
  std::vector<Process> ranks_;
};

// One that was free a moment ago.
int FreePort() {
  const auto listener = ListenOn(0, /*loopback_only=*/false);
  return LocalPort(*listener);
}

TEST(StartedByOthers, RanksMeetAtRankZeroAndLeave) {
  Started job(3, FreePort(), "work");
  for (int r = 0; r < 3; ++r) EXPECT_EQ(job.rank(r).Wait(), 0) << job.Output(r);
}

TEST(StartedByOthers, TheDeathOfAnyRankIsToldToTheOthers) {
  for (const int victim : {0, 2}) {
    Started job(3, FreePort(), "forever");
    job.AwaitWork();
    job.rank(victim).Signal(SIGKILL);
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(job.rank(r).Wait(), r == victim ? 1000 + SIGKILL : 77);
      if (r == victim) continue;
      EXPECT_THAT(job.Output(r), HasSubstr(absl::StrCat("rank ", victim)));
    }
  }
}

// The second job is refused by name, the first goes on.
TEST(StartedByOthers, TwoJobsOnOnePortAreToldApart) {
  const int port = FreePort();
  Started first(2, port, "stop", {"TRANCHE_JOB=first"});
  first.AwaitWork();
  Started second(2, port, "work", {"TRANCHE_JOB=second"});
  EXPECT_EQ(second.rank(0).Wait(), 1);
  EXPECT_THAT(second.Output(0), AllOf(HasSubstr(absl::StrCat("port ", port)), HasSubstr("in use")));
  EXPECT_EQ(second.rank(1).Wait(), 1);
  EXPECT_THAT(second.Output(1), AllOf(HasSubstr(absl::StrCat("port ", port)),
                                      HasSubstr("belongs to another job (\"first\", not")));
  EXPECT_THAT(first.Output(0), HasSubstr("belongs to another job"));
  first.rank(1).Signal(SIGTERM);
  for (int r = 0; r < 2; ++r) EXPECT_EQ(first.rank(r).Wait(), 75) << first.Output(r);
}

TEST(Launch, AStoppedRankIsLostAndNamed) {
  constexpr int kRanks = 3;
  Launched launched(kRanks, "stubborn", {"oversubscribe", "quiet"});
  const std::vector<pid_t> pids = launched.Ranks(kRanks);
  launched.AwaitWork();
  ::kill(pids[1], SIGSTOP);
  EXPECT_EQ(launched.Wait(), 128 + SIGKILL);
  ExpectNoneLives(pids);
  EXPECT_THAT(launched.Output(),
              AllOf(HasSubstr(absl::StrCat("rank 1 (pid ", pids[1], ") failed in phase \"")),
                    HasSubstr("not been heard of for 2.0s")));
  for (const int r : {0, 2}) EXPECT_THAT(launched.Log(r), HasSubstr("rank 1 failed"));
}

struct Leaving {
  const char* name;
  std::string mode;
  int rank;
  int code;
  std::string says;
};

class LaunchLeft : public ::testing::TestWithParam<Leaving> {};

TEST_P(LaunchLeft, ByARankTooEarlyEndsWithItsCodeAndNamesIt) {
  const Leaving& leaving = GetParam();
  Launched launched(3, leaving.mode, {"oversubscribe"});
  EXPECT_EQ(launched.Wait(), leaving.code);
  EXPECT_THAT(launched.Output(), AllOf(HasSubstr(absl::StrCat("rank ", leaving.rank, " (pid ")),
                                       HasSubstr(leaving.says)));
  for (int r = 0; r < 3; ++r) {
    if (r != leaving.rank) {
      EXPECT_THAT(launched.Log(r), HasSubstr(absl::StrCat("rank ", leaving.rank, " failed")));
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    All, LaunchLeft,
    ::testing::Values(
        Leaving{"WithZero", "exit:1:0", 1, 1, "exited with code 0 in phase \"step 7\", before"},
        Leaving{"WithZeroFirst", "exit:0:0", 0, 1, "exited with code 0 in phase \"step 7\""},
        Leaving{"WithThree", "exit:2:3", 2, 3, "exited with code 3 in phase \"step 7\""},
        Leaving{"WithStopped", "exit:2:75", 2, 1, "exited with code 75 in phase \"step 7\""},
        Leaving{"WithAReport", "report:1", 1, 1, "in phase \"step 7\": the disk is full"}),
    [](const auto& info) { return info.param.name; });

// Before any rank has joined: a fault of the recipe, say.
TEST(Launch, AFaultAtTheStartIsShownWhoeverHasIt) {
  Launched launched(3, "early:1:2", {"oversubscribe"});
  EXPECT_EQ(launched.Wait(), 2);
  EXPECT_THAT(launched.Output(), AllOf(HasSubstr("rank 1 (pid "), HasSubstr("exited with code 2"),
                                       HasSubstr("rank 1: no such file")));
}

TEST(Launch, WhatAFailedRankHasStartedEndsToo) {
  Launched launched(2, "child:1");
  EXPECT_EQ(launched.Wait(), 3);
  pid_t child = 0;
  const std::string log = launched.Log(1);
  ASSERT_TRUE(absl::SimpleAtoi(log.substr(log.find("child ") + 6, log.find('\n')), &child)) << log;
  ExpectNoneLives({child});
}

TEST(Launch, KillingTheLauncherLeavesNoProcess) {
  for (const char* mode : {"stubborn", "forever"}) {
    Launched launched(4, mode, {"oversubscribe"});
    const std::vector<pid_t> pids = launched.Ranks(4);
    launched.AwaitWork();
    launched.Signal(SIGKILL);
    EXPECT_EQ(launched.Wait(), 1000 + SIGKILL);
    ExpectNoneLives(pids);
  }
}

TEST(Launch, ASignalIsPassedOnOnceAndStopsAll) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Launched launched(3, "stop", {"oversubscribe"});
    const std::vector<pid_t> pids = launched.Ranks(3);
    launched.AwaitWork();
    launched.Signal(signal);
    EXPECT_EQ(launched.Wait(), 75) << launched.Output();
    ExpectNoneLives(pids);
    for (int r = 0; r < 3; ++r) {
      EXPECT_THAT(launched.Log(r), HasSubstr(absl::StrCat("rank ", r, " is done")));
    }
  }
}

TEST(Launch, ASecondSignalKills) {
  Launched launched(3, "stubborn", {"oversubscribe"});
  const std::vector<pid_t> pids = launched.Ranks(3);
  launched.AwaitWork();
  launched.Signal(SIGINT);
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(launched.Log(2), "signal 02 ignored"); }));
  for (const pid_t pid : pids) EXPECT_TRUE(Lives(pid));
  launched.Signal(SIGINT);
  EXPECT_EQ(launched.Wait(), 128 + SIGINT);
  ExpectNoneLives(pids);
}

// Ctrl-Z and fg: nobody takes the pause for a death.
TEST(Launch, AStoppedLauncherStopsItsRanksAndGoesOnWithThem) {
  Launched launched(2, "stop", {"quiet"});
  const std::vector<pid_t> pids = launched.Ranks(2);
  launched.AwaitWork();
  launched.Signal(SIGTSTP);
  const auto stopped = [](pid_t pid) {
    return absl::StrContains(ReadAll(absl::StrCat("/proc/", pid, "/status")), "State:\tT");
  };
  EXPECT_TRUE(Eventually([&] { return stopped(pids[0]) && stopped(pids[1]); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(3000));  // longer than a silence
  launched.Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return !stopped(pids[0]) && !stopped(pids[1]); }));
  launched.Signal(SIGTERM);
  EXPECT_EQ(launched.Wait(), 75) << launched.Output();
}

// What a rank leaves that is killed while UCX makes its shared memory, and what must stay.
TEST(Launch, SharedMemoryThatNobodyHasOpenIsRemovedAndOtherFilesStay) {
  const auto path = [](const std::string& name) {
    return absl::StrCat("/dev/shm/", name, ::getpid());
  };
  const std::string orphan = path("ucx_shm_posix_a"), open = path("ucx_shm_posix_b"),
                    mapped = path("ucx_shm_posix_c"), other = path("other_");
  const auto make = [](const std::string& name) {
    FileDescriptor file(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    EXPECT_EQ(::ftruncate(file.get(), 4096), 0);
    return file;
  };
  make(orphan);
  make(other);
  const FileDescriptor user = make(open);
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, make(mapped).get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  Launched launched(2, "work", {"oversubscribe"});
  EXPECT_EQ(launched.Wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(orphan));
  for (const std::string& name : {open, mapped, other}) {
    EXPECT_TRUE(std::filesystem::remove(name)) << name;
  }
  ::munmap(memory, 4096);
}

std::vector<std::string> CoresOf(const Launched& launched, int ranks) {
  std::vector<std::string> cores;
  for (int r = 0; r < ranks; ++r) {
    const std::string log = launched.Log(r);
    cores.push_back(log.substr(0, log.find('\n')));
  }
  return cores;
}

TEST(Launch, RanksGetCoresOfTheirOwnAndAsManyThreads) {
  const long count = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (count < 2) GTEST_SKIP() << "needs two cores";
  Launched launched(2, "cores");
  ASSERT_EQ(launched.Wait(), 0) << launched.Output();
  std::vector<int> owners(static_cast<size_t>(CPU_SETSIZE), 0);
  for (const std::string& line : CoresOf(launched, 2)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const auto threads = std::find(words.begin(), words.end(), "threads");
    ASSERT_NE(threads, words.end()) << line;
    int cores = 0;
    ASSERT_TRUE(absl::SimpleAtoi(threads[1], &cores));
    EXPECT_GE(threads - words.begin() - 1, cores);  // a core has one hardware thread or more
    for (auto word = words.begin() + 1; word != threads; ++word) {
      EXPECT_EQ(owners[static_cast<size_t>(std::atoi(word->c_str()))]++, 0) << *word;
    }
  }
}

TEST(Launch, ThreadsThatTheUserSetStayAndBindingCanBeLeftOut) {
  ::setenv("OMP_NUM_THREADS", "7", 1);
  Launched launched(2, "cores", {"nobind", "oversubscribe"});
  ::unsetenv("OMP_NUM_THREADS");
  ASSERT_EQ(launched.Wait(), 0);
  const std::vector<std::string> cores = CoresOf(launched, 2);
  EXPECT_EQ(cores[0], cores[1]);
  EXPECT_THAT(cores[0], HasSubstr("threads 7"));
}

TEST(Launch, MoreRanksThanCoresAreRefusedBeforeAnythingIsWritten) {
  const long count = ::sysconf(_SC_NPROCESSORS_ONLN);
  Launched launched(static_cast<int>(count) + 1, "work");
  EXPECT_EQ(launched.Wait(), 2);
  EXPECT_THAT(launched.Output(), AllOf(HasSubstr(absl::StrCat(count + 1, " ranks, but only")),
                                       HasSubstr("--oversubscribe")));
  EXPECT_FALSE(std::filesystem::exists(launched.File("logs")));
}

}  // namespace
}  // namespace tranche
