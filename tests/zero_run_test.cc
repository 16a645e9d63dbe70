// The real program on real ranks: processes, UCX, the store. What another number of ranks changes,
// and what happens when one stops, dies or differs. (What must change nothing: zero_matrix_test.)
#include <gmock/gmock.h>

#include <filesystem>

#include "zero_run.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;

// Of runs that add up gradients in another order.
void ExpectSameSamplesAndLosses(const Outcome& a, const Outcome& b, double tolerance) {
  ASSERT_FALSE(a.steps.empty());
  for (const auto& [step, line] : a.steps) {
    ASSERT_EQ(b.steps.count(step), 1u);
    const std::string& other = b.steps.at(step);
    EXPECT_EQ(TokensOf(other), TokensOf(line)) << step;
    EXPECT_NEAR(LossOf(other), LossOf(line), tolerance * LossOf(line)) << step;
  }
}

TEST(ZeroRun, AnyNumberOfRanksSeesTheSameSamplesAndLosses) {
  SmallRun run(/*steps=*/20);
  const std::vector<std::string> sets = {"training.micro_batch_size=1"};
  const Outcome one = MustTrain(run, "one", {1, sets});
  ASSERT_EQ(one.steps.size(), 20u);
  for (const int ranks : {2, 3, 4, 5, 7, 8}) {
    SCOPED_TRACE(ranks);
    std::vector<std::string> sharded = sets;
    sharded.push_back(absl::StrCat("parallelism.zero_stage=", ranks % 4));
    ExpectSameSamplesAndLosses(MustTrain(run, absl::StrCat("ranks", ranks), {ranks, sharded}), one,
                               1e-5);
  }
}

TEST(ZeroRun, SevenSequencesOnThreeRanksTrainAndEvaluateAsOnOne) {
  SmallRun run(/*steps=*/5);
  Documents seven;
  for (int i = 0; i < 7; ++i) seven.emplace_back(8 + 3 * i, 11 * i + 1);
  WriteCorpus(run.dir(), "seven", seven);
  const std::string path = absl::StrCat("path=\"", run.File("seven"), "\"");
  const auto evaluations = [&](const std::string& output) {
    std::vector<double> losses;
    const std::string text = Slurp(run.File(output + "/metrics.jsonl"));
    for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const auto json = nlohmann::json::parse(line.begin(), line.end());
      if (json["event"] == "evaluation") losses.push_back(json["loss"]);
    }
    return losses;
  };
  for (const int micro : {1, 7}) {
    const std::vector<std::string> sets = {
        absl::StrCat("data.sources=[{", path, "}]"),
        absl::StrCat("validation.sets=[{name=\"same\",", path, "}]"), "validation.interval=2",
        "training.global_batch_size=7", absl::StrCat("training.micro_batch_size=", micro)};
    const std::string alone = absl::StrCat("alone", micro);
    const Outcome one = MustTrain(run, alone, {1, sets});
    for (const int stage : {0, 3}) {
      std::vector<std::string> staged = sets;
      staged.push_back(absl::StrCat("parallelism.zero_stage=", stage));
      const std::string output = absl::StrCat("three", micro, "-", stage);
      const Outcome three = MustTrain(run, output, {3, staged});
      ASSERT_EQ(three.steps.size(), one.steps.size());
      for (const auto& [step, line] : one.steps) {
        EXPECT_NEAR(LossOf(three.steps.at(step)), LossOf(line), 1e-5 * LossOf(line)) << output;
      }
      const std::vector<double> a = evaluations(alone), b = evaluations(output);
      ASSERT_EQ(a.size(), 3u);
      ASSERT_EQ(b.size(), a.size());
      for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], a[i], 1e-5 * a[i]) << output;
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

TEST(ZeroRun, AResumeWithOtherMicroBatchesRanksStageAndRecomputeGoesOnWithTheSameSamples) {
  for (const char* precision : {"fp32", "bf16"}) {
    SmallRun run(/*steps=*/10);
    const auto train = [&](const std::string& output, int ranks, std::vector<std::string> sets) {
      sets.insert(sets.end(), {absl::StrCat("training.precision=", precision),
                               "checkpoint.interval=1", "checkpoint.keep_latest_k=10"});
      return MustTrain(run, output, {ranks, sets});
    };
    const auto resume = [&](const std::string& checkpoint) {
      return absl::StrCat("checkpoint.resume=", run.File(checkpoint));
    };
    const Outcome whole =
        train("whole", 1, {"training.micro_batch_size=1", "parallelism.zero_stage=0"});
    const Outcome second =
        train("second", 3,
              {"training.micro_batch_size=2", "parallelism.zero_stage=3",
               "training.activation_checkpointing=full", resume("whole/checkpoints/step-5")});
    const Outcome third =
        train("third", 1,
              {"training.micro_batch_size=8", "parallelism.zero_stage=1",
               "training.activation_checkpointing=selective", resume("second/checkpoints/step-7")});
    EXPECT_EQ(second.steps.begin()->first, 6);
    EXPECT_EQ(third.steps.begin()->first, 8);
    const double tolerance = precision == std::string("fp32") ? 1e-5 : 1e-3;
    ExpectSameSamplesAndLosses(second, whole, tolerance);
    ExpectSameSamplesAndLosses(third, whole, tolerance);
  }
}

TEST(ZeroRun, AtStage0TooMomentsAndStepAreSavedAndRestored) {
  for (const char* precision : {"fp32", "bf16"}) {
    SmallRun run(/*steps=*/6);
    const std::vector<std::string> sets = {absl::StrCat("training.precision=", precision),
                                           "parallelism.zero_stage=0", "checkpoint.interval=3",
                                           "checkpoint.keep_latest_k=2"};
    const Outcome whole = MustTrain(run, "whole", {2, sets});
    for (const std::string output : {"resumed", "again"}) {
      std::vector<std::string> more = sets;
      more.push_back("checkpoint.resume=" + run.File("whole/checkpoints/step-3"));
      const Outcome resumed = MustTrain(run, output, {2, more});
      ASSERT_EQ(resumed.steps.size(), 3u);
      for (const auto& [step, line] : resumed.steps) EXPECT_EQ(line, whole.steps.at(step));
      ASSERT_FALSE(run.State("whole", 6).empty());
      EXPECT_EQ(run.State(output, 6), run.State("whole", 6)) << output << ", " << precision;
    }
  }
}

// A run measures the machine between taking its directory and its first step; should that be over
// before the signal comes, another attempt is made. Several ranks agree to stop in a step.
TEST(ZeroRun, AResumeThatIsStoppedBeforeItsFirstStepLosesNothing) {
  for (const int ranks : {1, 3}) {
    SmallRun run(/*steps=*/12);
    const Variant variant = {ranks, {"parallelism.zero_stage=2"}};
    const Outcome unbroken = MustTrain(run, "unbroken", variant);
    std::string output;
    for (int attempt = 0; attempt < 5; ++attempt) {
      output = absl::StrCat("stopped", attempt);
      std::filesystem::create_directories(run.File(output + "/checkpoints"));
      std::filesystem::copy(run.File("unbroken/checkpoints/step-4"),
                            run.File(output + "/checkpoints/step-4"));
      Program program(WordsOnRanks(run, output, variant.ranks, variant.sets),
                      run.File(output + ".log"));
      while (program.Running() && Slurp(run.File(output + "/run.lock")).empty()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      program.Signal(SIGTERM);
      EXPECT_EQ(program.Wait(), 75) << program.Output();
      EXPECT_EQ(run.State(output, 4), run.State("unbroken", 4));
      if (ranks > 1 || run.Steps(output).empty()) break;
    }
    EXPECT_TRUE(ranks > 1 || run.Steps(output).empty());
    const Outcome rest = MustTrain(run, output, variant);
    EXPECT_EQ(rest.weights, unbroken.weights);
    EXPECT_EQ(rest.steps.rbegin()->first, 12);
    for (const auto& [step, line] : rest.steps) EXPECT_EQ(line, unbroken.steps.at(step));
  }
}

TEST(ZeroRun, AStopThatComesToOneRankIsOneForAllAndLosesNothing) {
  SmallRun run(/*steps=*/400);
  const std::vector<std::string> sets = {"parallelism.zero_stage=2", "checkpoint.interval=0"};
  Program program(WordsOnRanks(run, "stopped", 3, sets), run.File("stopped.log"));
  run.AwaitStep(program, "stopped", 3);
  EXPECT_LT(StopAndSave(run, program, "stopped"), 400);
}

TEST(ZeroRun, AFileAsksAllRanksForACheckpoint) {
  SmallRun run(/*steps=*/4000);
  Program program(WordsOnRanks(run, "asked", 2, {"checkpoint.interval=0"}), run.File("asked.log"));
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
