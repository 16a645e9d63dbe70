// The real program: several runs that want one directory.
#include <gmock/gmock.h>

#include <filesystem>

#include "absl/strings/strip.h"
#include "train_test_run.h"

namespace tranche {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(TrainDirectory, TheSecondRunInADirectoryIsRefusedByNameOfTheOwner) {
  const SmallRun run(/*steps=*/100000);
  Program owner = run.Start("run", {"checkpoint.interval=10"});
  run.AwaitStep(owner, "run", 12);
  const Result second = run.Train("run");
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.output, HasSubstr(absl::StrCat("pid ", owner.pid())));
  EXPECT_THAT(second.output, HasSubstr("host "));
  const pid_t dead = owner.pid();
  owner.Signal(SIGKILL);
  owner.Wait();
  Program heir = run.Start("run", {"checkpoint.interval=10"});
  run.AwaitStep(heir, "run", run.Steps("run").rbegin()->first + 1);
  heir.Signal(SIGTERM);
  EXPECT_EQ(heir.Wait(), 75);
  EXPECT_THAT(heir.Output(), HasSubstr(absl::StrCat("pid ", dead, ") did not end by itself")));
}

TEST(TrainDirectory, OfTwoStartsAtOneInstantOneIsRefusedAndTheOtherLosesNothing) {
  for (const int ranks : {1, 2}) {
    for (const bool overwrite : {false, true}) {
      const SmallRun run(/*steps=*/2000);
      std::vector<std::string> sets;
      if (ranks > 1) {
        sets = {absl::StrCat("launch.ranks=", ranks), "launch.oversubscribe=true",
                "launch.bind=none"};
      }
      if (overwrite) sets.push_back("--overwrite");
      Program one(run.Words("run", sets), run.File("one.log"));
      Program other(run.Words("run", sets), run.File("other.log"));
      while (one.Running() && other.Running()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      Program& owner = one.Running() ? one : other;
      Program& refused = one.Running() ? other : one;
      EXPECT_EQ(refused.Wait(), 2) << refused.Output();
      const std::string name = Slurp(run.File("run/run.lock"));
      EXPECT_THAT(refused.Output(),
                  AnyOf(HasSubstr(absl::StrCat("(", absl::StripSuffix(name, "\n"), ")")),
                        HasSubstr("its owner starts just now")));
      run.AwaitStep(owner, "run", 5);
      const int64_t last = StopAndSave(run, owner, "run");
      EXPECT_EQ(run.Steps("run").size(), static_cast<size_t>(last));
    }
  }
}

bool IsSaving(const SmallRun& run) {
  std::error_code absent;
  for (const auto& entry :
       std::filesystem::directory_iterator(run.File("run/checkpoints"), absent)) {
    if (entry.path().extension() == ".tmp") return true;
  }
  return false;
}

// Waits for the run to write a checkpoint, and holds it in the middle of that.
void HoldWhileSaving(const SmallRun& run, const Program& program) {
  while (program.Running()) {
    if (!IsSaving(run)) continue;
    program.Signal(SIGSTOP);
    const std::string status = absl::StrCat("/proc/", program.pid(), "/status");
    while (!absl::StrContains(Slurp(status), "State:\tT")) std::this_thread::yield();
    if (IsSaving(run)) return;
    program.Signal(SIGCONT);
  }
}

TEST(TrainDirectory, ARestartWhileTheOldRunSavesIsRefusedAndLaterLosesNothingSaved) {
  for (const int end : {SIGTERM, SIGKILL}) {
    const SmallRun run(/*steps=*/2000);
    const std::vector<std::string> sets = {"checkpoint.interval=3"};
    Program old = run.Start("run", sets);
    while (old.Running() && !run.HasCheckpoint("run", 3)) std::this_thread::yield();
    HoldWhileSaving(run, old);
    const auto held = run.Files("run");
    const Result early = run.Train("run", sets);
    EXPECT_EQ(early.code, 2) << early.output;
    EXPECT_THAT(early.output, HasSubstr(absl::StrCat("pid ", old.pid(), ")")));
    EXPECT_EQ(run.Files("run"), held);
    old.Signal(end);
    old.Signal(SIGCONT);
    EXPECT_EQ(old.Wait(), end == SIGTERM ? 75 : 1000 + SIGKILL);
    const int64_t trained = run.Steps("run").rbegin()->first;
    // What the old run was saving is whole where it could end, and else nothing of it is left.
    const int64_t saved = end == SIGTERM ? trained : trained - 3;
    Program heir(run.Words("run", sets), run.File("heir.log"));
    run.AwaitStep(heir, "run", trained + 1);
    heir.Signal(SIGTERM);
    EXPECT_EQ(heir.Wait(), 75) << heir.Output();
    EXPECT_FALSE(IsSaving(run));
    EXPECT_THAT(heir.Output(), HasSubstr(absl::StrCat("step-", saved, ", after step ", saved)));
  }
}

TEST(TrainDirectory, ALockOfAnotherHostHoldsAndIsTakenOverByItsNameOnceItIsFree) {
  const SmallRun run;
  run.dir().Write("run/run.lock", "host elsewhere, pid 7\n");
  const int fd = ::open(run.File("run/run.lock").c_str(), O_RDWR | O_CLOEXEC);
  struct flock whole_file = {};
  whole_file.l_type = F_WRLCK;
  whole_file.l_whence = SEEK_SET;
  ASSERT_EQ(::fcntl(fd, F_OFD_SETLK, &whole_file), 0);
  const Result refused = run.Train("run");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, HasSubstr("another run writes here (host elsewhere, pid 7)"));
  EXPECT_TRUE(run.Steps("run").empty());
  ::close(fd);
  const Result heir = run.Train("run");
  EXPECT_EQ(heir.code, 0);
  EXPECT_THAT(heir.output, HasSubstr("host elsewhere, pid 7) did not end by itself; taking over"));
}

}  // namespace
}  // namespace tranche
