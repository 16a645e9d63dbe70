// The real program on real ranks of which one goes away, or all are sent away: whatever a rank does
// and however it ends, it is named with what it did, all others leave, nothing stays, and the
// same command goes on.
#include <gmock/gmock.h>
#include <sys/inotify.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_join.h"
#include "launch/socket.h"
#include "ranked_run.h"

namespace tranche {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 3;

// Files of UCX in /dev/shm.
std::vector<std::string> SharedMemory() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (absl::StrContains(name, "ucx")) names.push_back(name);
  }
  return names;
}

// Those of other programs come and go.
void ExpectNoMoreSharedMemoryThan(const std::vector<std::string>& before) {
  std::vector<std::string> more;
  EXPECT_TRUE(Eventually([&] {
    more = SharedMemory();
    for (const std::string& name : before)
      more.erase(std::remove(more.begin(), more.end(), name), more.end());
    return more.empty();
  })) << absl::StrJoin(more, " ");
}

bool Stopped(pid_t pid) {
  return absl::StrContains(Slurp(absl::StrCat("/proc/", pid, "/status")), "State:\tT");
}

enum class Phase { kLoad, kStep, kEvaluation, kSave };
enum class End { kKilled, kStopped, kLeft };

struct Fault {
  std::string name;
  Phase phase;
  End end;
  int victim;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

std::vector<Fault> AllFaults() {
  std::vector<Fault> faults;
  for (const auto& [phase, in] : std::map<Phase, std::string>{{Phase::kLoad, "Load"},
                                                              {Phase::kStep, "Step"},
                                                              {Phase::kEvaluation, "Evaluation"},
                                                              {Phase::kSave, "Save"}}) {
    for (const auto& [end, how] : std::map<End, std::string>{
             {End::kKilled, "Killed"}, {End::kStopped, "Stopped"}, {End::kLeft, "Left"}}) {
      faults.push_back({how + "In" + in, phase, end, static_cast<int>(faults.size()) % kRanks});
    }
  }
  return faults;
}

class ARank : public ::testing::TestWithParam<Fault> {
 protected:
  // Nothing but what the phase needs; each of them is long enough to be met.
  std::vector<std::string> Sets() const {
    std::vector<std::string> sets = {"parallelism.zero_stage=2"};
    sets.push_back(absl::StrCat("checkpoint.interval=", GetParam().phase == Phase::kSave ? 1 : 0));
    if (GetParam().phase == Phase::kEvaluation) {
      WriteCorpus(run_.dir(), "held", Documents(100'000, std::vector<int32_t>(30, 7)));
      sets.push_back("validation.interval=1");
      sets.push_back(
          absl::StrCat("validation.sets=[{name=\"long\",path=\"", run_.File("held"), "\"}]"));
    }
    return sets;
  }
  // Returns with the victim stopped in the phase.
  void AwaitPhase(const Program& program, pid_t victim) const {
    const auto stop = [&] {
      ::kill(victim, SIGSTOP);
      return Eventually([&] { return Stopped(victim); });
    };
    switch (GetParam().phase) {
      case Phase::kLoad:
        EXPECT_TRUE(Eventually([&] { return FileExists(run_.File("run/run.lock")); }));
        EXPECT_TRUE(stop());
        return;
      case Phase::kStep:
        run_.AwaitStep(program, "run", 3);
        EXPECT_TRUE(stop());
        return;
      case Phase::kEvaluation:
        run_.AwaitStep(program, "run", 1);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_TRUE(stop());
        return;
      case Phase::kSave:
        // A rank whose file is there is in the phase, and stays in it while the folder has its
        // first name.
        EXPECT_TRUE(Eventually([&] {
          for (;;) {
            const std::string folder = FolderBeingWritten();
            if (folder.empty()) return false;
            EXPECT_TRUE(stop());
            if (std::filesystem::exists(folder)) return true;
            ::kill(victim, SIGCONT);
          }
        }));
    }
  }
  int64_t LastStep() const {
    const auto steps = run_.Steps("run");
    return steps.empty() ? 0 : steps.rbegin()->first;
  }
  // In which the victim writes.
  std::string FolderBeingWritten() const {
    std::error_code gone;
    for (const auto& entry :
         std::filesystem::directory_iterator(run_.File("run/checkpoints"), gone)) {
      if (entry.path().extension() != ".tmp") continue;
      const std::string file = absl::StrCat("master-", GetParam().victim, ".safetensors");
      for (const auto& written : std::filesystem::directory_iterator(entry.path(), gone)) {
        if (absl::StrContains(written.path().string(), file)) return entry.path();
      }
    }
    return "";
  }

  SmallRun run_{/*steps=*/100'000, /*hidden=*/GetParam().phase == Phase::kSave ? 512 : 32};
};

TEST_P(ARank, IsNamedWithItsPhaseAllLeaveAndNothingStays) {
  const auto& [name, phase, end, victim] = GetParam();
  const std::vector<std::string> before = SharedMemory();
  ::setenv("LD_PRELOAD", TRANCHE_EXIT_WHEN_ASKED, 1);
  Program program(WordsOnRanks(run_, "run", kRanks, Sets()), run_.File("run.log"));
  ::unsetenv("LD_PRELOAD");
  const std::vector<pid_t> pids = RanksOf(program, kRanks);
  ASSERT_EQ(pids.size(), kRanks) << program.Output();
  const pid_t pid = pids[static_cast<size_t>(victim)];
  AwaitPhase(program, pid);
  if (end == End::kKilled) ::kill(pid, SIGKILL);
  if (end == End::kLeft) {
    ::kill(pid, SIGUSR2);
    ::kill(pid, SIGCONT);
  }
  EXPECT_EQ(program.Wait(), end == End::kLeft ? 1 : 128 + SIGKILL) << program.Output();
  ExpectNoneLives(pids);

  const std::string in =
      absl::StrCat(" in phase \"", phase == Phase::kLoad         ? "load\""
                                   : phase == Phase::kStep       ? "step "
                                   : phase == Phase::kEvaluation ? "evaluation\""
                                                                 : "checkpoint of step ");
  EXPECT_THAT(program.Output(),
              AllOf(HasSubstr(absl::StrCat("rank ", victim, " (pid ", pid, ") ",
                                           end == End::kKilled ? "was killed by signal 9 (Killed)"
                                           : end == End::kStopped ? "failed"
                                                                  : "exited with code 0",
                                           in)),
                    HasSubstr(end == End::kStopped ? "it has not been heard of for 5.0s"
                              : end == End::kLeft  ? "before the work of all was done"
                                                   : "")));
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    EXPECT_THAT(LogOfRank(run_, "run", rank),
                AllOf(HasSubstr(absl::StrCat("rank ", victim, " failed", in)),
                      Not(HasSubstr("UCX  WARN"))));
  }
  EXPECT_THAT(program.Output(), Not(HasSubstr("UCX  WARN")));
  ExpectNoMoreSharedMemoryThan(before);

  // Whatever was half-written goes, and the run goes on from the newest checkpoint.
  int64_t newest = 0;
  for (int64_t step = 1; step <= LastStep(); ++step) {
    if (run_.HasCheckpoint("run", step)) newest = step;
  }
  const Result again = run_.Train("run", {absl::StrCat("training.max_steps=", newest + 4)});
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(absl::StrContains(again.output, "resumed"), newest > 0) << again.output;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run_.File("run"))) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr(".tmp")));
  }
}
INSTANTIATE_TEST_SUITE_P(Each, ARank, ::testing::ValuesIn(AllFaults()),
                         [](const auto& info) { return info.param.name; });

// Seeded moments from the first instant to the middle of the run; tests/soak asks for more of them.
TEST(ZeroFailure, ARankThatIsKilledAtAnyMomentIsNamedAndEverybodyLeaves) {
  const char* const asked = std::getenv("TRANCHE_SOAK");
  const int kills = asked != nullptr ? std::atoi(asked) : 5;
  const std::vector<std::string> before = SharedMemory();
  uint32_t state = 11;
  for (int i = 0; i < kills; ++i) {
    SmallRun run(/*steps=*/100'000);
    Program program(
        WordsOnRanks(run, "run", kRanks,
                     {absl::StrCat("parallelism.zero_stage=", i % 4), "checkpoint.interval=3"}),
        run.File("run.log"));
    state = state * 1664525u + 1013904223u;
    std::this_thread::sleep_for(std::chrono::milliseconds(50 + (state >> 8) % 1500));
    const std::vector<pid_t> ranks = RanksOf(program, kRanks);
    ASSERT_EQ(ranks.size(), kRanks) << program.Output();
    const size_t victim = (state >> 20) % kRanks;
    ::kill(ranks[victim], SIGKILL);
    EXPECT_EQ(program.Wait(), 128 + SIGKILL) << program.Output();
    EXPECT_THAT(program.Output(),
                AllOf(HasSubstr(absl::StrCat("rank ", victim)), HasSubstr("signal 9")));
    ExpectNoneLives(ranks);
    const Result again = run.Train("run", {"training.max_steps=1000", "--dry-run"});
    EXPECT_EQ(again.code, 0) << again.output;
  }
  ExpectNoMoreSharedMemoryThan(before);
}

// UCX makes a file, fills it and removes its name. The ranks are killed as soon as there is one,
// with the launcher stopped, so that what they leave is seen before it is removed.
TEST(ZeroFailure, RanksKilledWhileTheirSharedMemoryIsMadeLeaveNone) {
  const std::vector<std::string> before = SharedMemory();
  bool left = false;
  for (int attempt = 0; attempt < 100 && !left; ++attempt) {
    SmallRun run(/*steps=*/100'000);
    const FileDescriptor watch(::inotify_init1(IN_CLOEXEC));
    ::inotify_add_watch(watch.get(), "/dev/shm", IN_CREATE);
    Program program(WordsOnRanks(run, "run", 2, {}), run.File("run.log"));
    const std::vector<pid_t> ranks = RanksOf(program, 2);
    ASSERT_EQ(ranks.size(), 2u) << program.Output();
    char event[4096];
    ASSERT_GT(::read(watch.get(), event, sizeof(event)), 0);
    program.Signal(SIGSTOP);
    for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
    ExpectNoneLives(ranks);
    left = SharedMemory().size() > before.size();
    program.Signal(SIGCONT);
    EXPECT_EQ(program.Wait(), 128 + SIGKILL) << program.Output();
    ExpectNoMoreSharedMemoryThan(before);
  }
  EXPECT_TRUE(left) << "no kill came in time";
}

TEST(ZeroFailure, ALauncherThatIsKilledTakesItsRanksAlongAndTheRunGoesOn) {
  const std::vector<std::string> before = SharedMemory();
  SmallRun run(/*steps=*/100'000);
  Program program(WordsOnRanks(run, "run", kRanks, {}), run.File("run.log"));
  const std::vector<pid_t> ranks = RanksOf(program, kRanks);
  run.AwaitStep(program, "run", 5);
  program.Signal(SIGKILL);
  program.Wait();
  ExpectNoneLives(ranks);
  ExpectNoMoreSharedMemoryThan(before);
  const int64_t next = run.Steps("run").rbegin()->first + 2;
  Program again(WordsOnRanks(run, "run", 2, {absl::StrCat("training.max_steps=", next)}),
                run.File("again.log"));
  EXPECT_EQ(again.Wait(), 0) << again.Output();
  EXPECT_THAT(again.Output(), HasSubstr("resumed"));
}

TEST(ZeroFailure, CtrlCTwiceEndsAllRanksAtOnceAndCheckpointsStayWhole) {
  const SmallRun run;
  // A step long enough that the second signal comes before the first has its effect.
  Program program(WordsOnRanks(run, "run", kRanks,
                               {"training.global_batch_size=8192", "training.max_steps=99",
                                "checkpoint.interval=0", "checkpoint.save_first_step=true"}),
                  run.File("run.log"));
  const std::vector<pid_t> ranks = RanksOf(program, kRanks);
  EXPECT_TRUE(Eventually([&] { return run.HasCheckpoint("run", 1); })) << program.Output();
  program.Signal(SIGINT);
  AwaitTaken(program);
  program.Signal(SIGINT);
  EXPECT_EQ(program.Wait(), 128 + SIGINT) << program.Output();
  EXPECT_THAT(program.Output(), HasSubstr("a second SIGINT: the ranks are killed"));
  ExpectNoneLives(ranks);
  const Result inspect = run.Call({"inspect", run.File("run/checkpoints/step-1")});
  EXPECT_EQ(inspect.code, 0) << inspect.output;
}

}  // namespace
}  // namespace tranche
