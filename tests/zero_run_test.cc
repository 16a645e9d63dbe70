// The real program on real ranks: processes, UCX, the store. What another number of ranks changes,
// and what happens when one stops, dies or differs. (What must change nothing: zero_matrix_test.)
#include <gmock/gmock.h>

#include <filesystem>

#include "zero_run.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;

TEST(ZeroRun, AnyNumberOfRanksSeesTheSameSamplesAndLosses) {
  SmallRun run(/*steps=*/5);
  const Outcome one = MustTrain(run, "one", {1, {"training.micro_batch_size=1"}});
  for (const int ranks : {2, 3, 5}) {
    const std::string output = absl::StrCat("ranks", ranks);
    const Outcome many = MustTrain(run, output, {ranks, {"training.micro_batch_size=1"}});
    ASSERT_EQ(many.steps.size(), one.steps.size());
    for (const auto& [step, line] : one.steps) {
      EXPECT_NEAR(LossOf(many.steps.at(step)), LossOf(line), 1e-5 * LossOf(line)) << ranks;
    }
  }
}

TEST(ZeroRun, ACheckpointOfFourRanksAtStage3GoesOnAnywhere) {
  SmallRun run(/*steps=*/8);
  const std::vector<std::string> common = {"training.micro_batch_size=2", "checkpoint.interval=4",
                                           "checkpoint.keep_latest_k=9"};
  const auto with = [&](std::vector<std::string> sets) {
    sets.insert(sets.end(), common.begin(), common.end());
    return sets;
  };
  const Outcome whole = MustTrain(run, "whole", {4, with({"parallelism.zero_stage=3"})});
  const auto resume = [&](int ranks, int stage) {
    const std::string output = absl::StrCat("resumed-", ranks, "-", stage);
    return MustTrain(
        run, output,
        {ranks, with({absl::StrCat("parallelism.zero_stage=", stage),
                      absl::StrCat("checkpoint.resume=", run.File("whole/checkpoints/step-4"))})});
  };
  for (const int stage : {0, 1, 2, 3}) {
    const Outcome resumed = resume(4, stage);
    EXPECT_EQ(resumed.weights, whole.weights) << stage;
    for (int64_t step = 5; step <= 8; ++step) {
      EXPECT_EQ(resumed.steps.at(step), whole.steps.at(step)) << "stage " << stage;
    }
  }
  for (const auto& [ranks, stage] : std::vector<std::pair<int, int>>{{1, 0}, {2, 2}, {5, 1}}) {
    const Outcome resumed = resume(ranks, stage);
    for (int64_t step = 5; step <= 8; ++step) {
      EXPECT_NEAR(LossOf(resumed.steps.at(step)), LossOf(whole.steps.at(step)),
                  1e-5 * LossOf(whole.steps.at(step)))
          << ranks << " ranks, stage " << stage;
    }
  }
}

TEST(ZeroRun, AStopThatComesToOneRankIsOneForAllAndLosesNothing) {
  SmallRun run(/*steps=*/400);
  const std::vector<std::string> sets = {"parallelism.zero_stage=2", "checkpoint.interval=0"};
  Program program(Words(run, "stopped", {3, sets}), run.File("stopped.log"));
  run.AwaitStep(program, "stopped", 3);
  program.Signal(SIGTERM);
  EXPECT_EQ(program.Wait(), 75) << program.Output();
  const auto steps = run.Steps("stopped");
  ASSERT_FALSE(steps.empty());
  const int64_t last = steps.rbegin()->first;
  EXPECT_LT(last, 400);
  EXPECT_TRUE(run.HasCheckpoint("stopped", last)) << program.Output();
}

TEST(ZeroRun, AFileAsksAllRanksForACheckpoint) {
  SmallRun run(/*steps=*/4000);
  Program program(Words(run, "asked", {2, {"checkpoint.interval=0"}}), run.File("asked.log"));
  run.AwaitStep(program, "asked", 2);
  std::ofstream(run.File("asked/checkpoint_now")) << "";
  const auto saved = [&] {
    return std::filesystem::exists(run.File("asked/checkpoints")) &&
           !std::filesystem::is_empty(run.File("asked/checkpoints")) &&
           !std::filesystem::exists(run.File("asked/checkpoint_now"));
  };
  while (program.Running() && !saved()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(saved()) << program.Output();
  program.Signal(SIGTERM);
  EXPECT_EQ(program.Wait(), 75) << program.Output();
}

std::vector<pid_t> RanksOf(pid_t launcher) {
  std::vector<pid_t> ranks;
  const std::string children =
      Slurp(absl::StrCat("/proc/", launcher, "/task/", launcher, "/children"));
  for (const auto word : absl::StrSplit(children, ' ', absl::SkipEmpty())) {
    ranks.push_back(std::stoi(std::string(word)));
  }
  return ranks;
}

bool Alive(pid_t pid) {
  const std::string status = Slurp(absl::StrCat("/proc/", pid, "/status"));
  return !status.empty() && status.find("State:\tZ") == std::string::npos;
}

std::vector<std::string> SharedMemory() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Seeded moments from the first instant to the middle of the run; tests/soak asks for more of them.
TEST(ZeroRun, ARankThatIsKilledAtAnyMomentIsNamedAndEverybodyLeaves) {
  const char* const asked = std::getenv("TRANCHE_SOAK");
  const int kills = asked != nullptr ? std::atoi(asked) : 5;
  uint32_t state = 11;
  for (int i = 0; i < kills; ++i) {
    SmallRun run(/*steps=*/100000);
    const std::string output = absl::StrCat("killed", i);
    const std::vector<std::string> sets = {absl::StrCat("parallelism.zero_stage=", i % 4),
                                           "checkpoint.interval=3"};
    Program program(Words(run, output, {3, sets}), run.File(output + ".log"));
    state = state * 1664525u + 1013904223u;
    std::this_thread::sleep_for(std::chrono::milliseconds(50 + (state >> 8) % 1500));
    std::vector<pid_t> ranks = RanksOf(program.pid());
    while (ranks.size() < 3 && program.Running()) ranks = RanksOf(program.pid());
    ASSERT_EQ(ranks.size(), 3u) << program.Output();
    const size_t victim = (state >> 20) % 3;
    ::kill(ranks[victim], SIGKILL);
    EXPECT_EQ(program.Wait(), 128 + SIGKILL) << program.Output();
    EXPECT_THAT(program.Output(), HasSubstr(absl::StrCat("rank ", victim)));
    EXPECT_THAT(program.Output(), HasSubstr("signal 9"));
    for (const pid_t pid : ranks) EXPECT_FALSE(Alive(pid)) << "rank of pid " << pid;
    // Whatever was saved before is whole, and nothing half-written stays once a run goes on.
    const Result again = Train(run, output, {1, {"--dry-run"}});
    EXPECT_EQ(again.code, 0) << again.output;
  }
}

TEST(ZeroRun, NothingStaysInSharedMemoryAfterAKill) {
  const std::vector<std::string> before = SharedMemory();
  {
    SmallRun run(/*steps=*/100000);
    Program program(Words(run, "killed", {2, {}}), run.File("killed.log"));
    run.AwaitStep(program, "killed", 3);
    const std::vector<pid_t> ranks = RanksOf(program.pid());
    ASSERT_EQ(ranks.size(), 2u);
    ::kill(ranks[1], SIGKILL);
    program.Wait();
  }
  EXPECT_EQ(SharedMemory(), before);
}

// Ranks that others start, by hand.
TEST(ZeroRun, RanksWithOtherRecipesAreRefusedWithTheFirstDifference) {
  SmallRun run(/*steps=*/3);
  const auto start = [&](int rank, const std::string& lr) {
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(20000 + ::getpid() % 20000).c_str(), 1);
    return std::make_unique<Program>(run.Words("differ", {"optimizer.lr=" + lr}),
                                     run.File(absl::StrCat("differ", rank, ".log")));
  };
  const auto zero = start(0, "3e-3"), one = start(1, "4e-3");
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  EXPECT_NE(zero->Wait(), 0);
  EXPECT_NE(one->Wait(), 0);
  EXPECT_THAT(zero->Output(), HasSubstr("started differently"));
  EXPECT_THAT(zero->Output(), HasSubstr("lr = 0.003"));
  EXPECT_THAT(zero->Output(), HasSubstr("lr = 0.004"));
}

}  // namespace
}  // namespace tranche
