// The real program: the ways a run leaves before its end, and what it shows on a terminal.
#include <gmock/gmock.h>
#include <pty.h>

#include <regex>

#include "train_test_run.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TrainLeave, ASecondSigintLeavesAtOnceAndCheckpointsStayWhole) {
  const SmallRun run;
  // A step long enough that the second signal comes before the first has its effect.
  const std::vector<std::string> sets = {"training.global_batch_size=2048", "training.max_steps=99",
                                         "checkpoint.interval=0",
                                         "checkpoint.save_first_step=true"};
  int code = 75;
  for (int attempt = 0; attempt < 5 && code == 75; ++attempt) {
    Program program = run.Start("run", sets);
    while (program.Running() && !run.HasCheckpoint("run", 1)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    program.Signal(SIGINT);
    AwaitTaken(program);
    program.Signal(SIGINT);
    code = program.Wait();
    EXPECT_TRUE(code == 130 || code == 75) << program.Output();
  }
  EXPECT_EQ(code, 130) << "128 + SIGINT, as docs/exit_codes.md says";
  const Result inspect = run.Call({"inspect", run.File("run/checkpoints/step-1")});
  EXPECT_EQ(inspect.code, 0) << inspect.output;
  std::vector<std::string> last = sets;
  last[1] = "training.max_steps=2";
  last.push_back("lr_scheduler.warmup_steps=0");
  const Result rest = run.Train("run", last);
  EXPECT_EQ(rest.code, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr("resumed"));
}

TEST(TrainLeave, TheRecipesSignalsSaveAndOthersEndTheRun) {
  const SmallRun run(/*steps=*/100000);
  const std::vector<std::string> sets = {"fault_tolerance.preempt_signals=[\"SIGUSR2\"]"};
  Program program = run.Start("run", sets);
  run.AwaitStep(program, "run", 2);
  program.Signal(SIGUSR2);
  EXPECT_EQ(program.Wait(), 75) << program.Output();
  EXPECT_THAT(program.Output(), HasSubstr("SIGUSR2 came: stopping after step"));
  Program other = run.Start("run", sets);
  run.AwaitStep(other, "run", run.Steps("run").rbegin()->first + 1);
  other.Signal(SIGUSR1);
  EXPECT_EQ(other.Wait(), 1000 + SIGUSR1);
}

TEST(TrainLeave, AtTheEndOfItsTimeARunSavesAndGoesOnFromThereTheNextTime) {
  const SmallRun run(/*steps=*/1000000);
  int64_t last = 0;
  for (const std::string attempt : {"first", "second"}) {
    // On a busy machine a short time is over before the first step.
    for (const int seconds : {2, 8, 32, 128}) {
      const Result result = run.Train(
          "run", {absl::StrCat("training.max_time=", seconds, "s"), "checkpoint.interval=0"});
      ASSERT_EQ(result.code, 75) << result.output;
      EXPECT_THAT(result.output,
                  HasSubstr("training.max_time is nearly over: stopping after step"));
      const auto steps = run.Steps("run");
      if (!steps.empty() && steps.rbegin()->first > last) break;
    }
    const int64_t step = run.Steps("run").rbegin()->first;
    EXPECT_GT(step, last) << attempt;
    EXPECT_TRUE(run.HasCheckpoint("run", step));
    last = step;
  }
}

// What the program writes to a terminal that is all three of its streams.
std::string OnTerminal(const std::vector<std::string>& words, const char* no_color) {
  int master = -1;
  const pid_t pid = ::forkpty(&master, nullptr, nullptr, nullptr);
  if (pid == 0) {
    ::setenv("TERM", "xterm", 1);
    if (no_color != nullptr) {
      ::setenv("NO_COLOR", no_color, 1);
    } else {
      ::unsetenv("NO_COLOR");
    }
    std::vector<std::string> storage = words;
    storage.insert(storage.begin(), TRANCHE_BINARY);
    std::vector<char*> argv;
    for (std::string& word : storage) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::string output;
  char buffer[4096];
  for (ssize_t n; (n = ::read(master, buffer, sizeof(buffer))) > 0;) {
    output.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::close(master);
  EXPECT_EQ(WEXITSTATUS(status), 0) << output;
  return output;
}

TEST(TrainLeave, OnATerminalABarIsDrawnAndErasedBeforeEveryLine) {
  const SmallRun run;
  const std::string output = OnTerminal(run.Words("run"), nullptr);
  EXPECT_THAT(output, HasSubstr("\r\x1b[Ktraining ["));
  EXPECT_THAT(output, HasSubstr("\x1b[36mnote: \x1b[0mcheckpoint "));
  int step_lines = 0;
  for (const absl::string_view line : absl::StrSplit(output, "\r\n")) {
    const size_t erased = line.rfind("\x1b[K");
    const std::string shown(erased == absl::string_view::npos ? line : line.substr(erased + 3));
    EXPECT_THAT(shown, Not(HasSubstr("training ["))) << "a bar is left on a line";
    step_lines += shown.rfind("step ", 0) == 0 ? 1 : 0;
  }
  EXPECT_EQ(step_lines, 12);
}

TEST(TrainLeave, NoColorTakesTheColoursAndNothingElse) {
  const SmallRun run;
  const std::string coloured = "\x1b[36m";
  EXPECT_THAT(OnTerminal(run.Words("empty"), ""), HasSubstr(coloured)) << "empty is not set";
  const std::string plain = OnTerminal(run.Words("set"), "1");
  EXPECT_FALSE(std::regex_search(plain, std::regex("\x1b\\[[0-9;]*m")));
  EXPECT_THAT(plain, HasSubstr("note: checkpoint "));
  EXPECT_THAT(plain, HasSubstr("step 12/12"));
}

}  // namespace
}  // namespace tranche
