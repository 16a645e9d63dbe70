// The real program, run, stopped, killed, damaged and run again: always the same numbers to the
// bit.
#include <gmock/gmock.h>

#include "train_test_run.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;

TEST(TrainResume, TheSameRecipeTwiceGivesTheSameBits) {
  const SmallRun run;
  ASSERT_EQ(run.Train("a").code, 0) << Slurp(run.File("a.log"));
  ASSERT_EQ(run.Train("b").code, 0);
  EXPECT_EQ(run.Steps("a").size(), 12u);
  EXPECT_EQ(run.Steps("a"), run.Steps("b"));
  ASSERT_FALSE(run.State("a", 12).empty());
  EXPECT_EQ(run.State("a", 12), run.State("b", 12));
}

TEST(TrainResume, EveryRecomputeLevelGivesTheSameBits) {
  const SmallRun run;
  ASSERT_EQ(run.Train("none").code, 0);
  for (const std::string level : {"selective", "full"}) {
    for (const std::string precision : {"fp32", "bf16"}) {
      const std::string output = level + precision, plain = "none" + precision;
      const std::string set = "training.precision=" + precision;
      ASSERT_EQ(run.Train(plain, {set, "--overwrite"}).code, 0);
      ASSERT_EQ(run.Train(output, {set, "training.activation_checkpointing=" + level}).code, 0);
      EXPECT_EQ(run.Steps(plain), run.Steps(output)) << output;
      EXPECT_EQ(run.State(plain, 12), run.State(output, 12)) << output;
    }
  }
}

TEST(TrainResume, StoppedAndKilledRunsEndAsTheUnbrokenOne) {
  const SmallRun run(/*steps=*/120);
  ASSERT_EQ(run.Train("unbroken", {"checkpoint.interval=0"}).code, 0);
  const std::vector<std::pair<int64_t, int>> ends = {
      {7, SIGTERM}, {21, SIGKILL}, {38, SIGUSR1}, {59, SIGINT}, {83, SIGKILL}};
  for (const auto& [step, signal] : ends) {
    Program program = run.Start("broken", {"checkpoint.interval=5"});
    run.AwaitStep(program, "broken", step);
    program.Signal(signal);
    const int code = program.Wait();
    if (signal == SIGKILL) {
      EXPECT_EQ(code, 1000 + SIGKILL);
    } else {
      EXPECT_EQ(code, 75) << program.Output();
      EXPECT_THAT(program.Output(), HasSubstr("stopping after step"));
    }
  }
  const Result last = run.Train("broken", {"checkpoint.interval=5"});
  ASSERT_EQ(last.code, 0) << last.output;
  EXPECT_THAT(last.output, HasSubstr("resumed"));
  EXPECT_EQ(run.Steps("broken"), run.Steps("unbroken"));
  EXPECT_EQ(run.State("broken", 120), run.State("unbroken", 120));
}

TEST(TrainResume, AnotherMicroBatchOrRecomputeLevelGoesOnWithTheSameSamples) {
  const SmallRun run;
  ASSERT_EQ(run.Train("whole").code, 0);
  // The schedule must be the same one, so the first part is stopped by a checkpoint, not by length.
  ASSERT_EQ(run.Train("parts").code, 0);
  for (const int step : {8, 12}) {
    std::filesystem::remove_all(run.File(absl::StrCat("parts/checkpoints/step-", step)));
  }
  const Result rest =
      run.Train("parts", {"training.micro_batch_size=8", "training.activation_checkpointing=full"});
  ASSERT_EQ(rest.code, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr("training.micro_batch_size was 2, is 8"));
  const auto whole = run.Steps("whole"), parts = run.Steps("parts");
  for (int64_t step = 5; step <= 12; ++step) {
    const double a = std::stod(whole.at(step)), b = std::stod(parts.at(step));
    EXPECT_NEAR(a, b, 1e-5 * a) << step;
  }
}

TEST(TrainResume, OneByEightAndEightByOneAgreeToRounding) {
  const SmallRun run;
  ASSERT_EQ(run.Train("eight", {"training.micro_batch_size=1", "training.max_steps=4"}).code, 0);
  ASSERT_EQ(run.Train("one", {"training.micro_batch_size=8", "training.max_steps=4"}).code, 0);
  const auto eight = run.Steps("eight"), one = run.Steps("one");
  for (int64_t step = 1; step <= 4; ++step) {
    const double a = std::stod(eight.at(step)), b = std::stod(one.at(step));
    EXPECT_NEAR(a, b, 1e-6 * a) << step;
  }
}

TEST(TrainResume, ADamagedCheckpointIsNamedAndTheOneBeforeIsTaken) {
  const SmallRun run;
  ASSERT_EQ(run.Train("good").code, 0);
  const std::vector<std::pair<std::string, std::string>> damages = {
      {"flip", "m.safetensors"}, {"cut", "v.safetensors"},    {"remove", "master.safetensors"},
      {"flip", "manifest.toml"}, {"cut", "manifest.toml"},    {"flip", "recipe.toml"},
      {"flip", "config.json"},   {"remove", "manifest.toml"},
  };
  for (const auto& [how, name] : damages) {
    std::filesystem::remove_all(run.File("bad"));
    std::filesystem::copy(run.File("good"), run.File("bad"),
                          std::filesystem::copy_options::recursive);
    const std::string victim = run.File("bad/checkpoints/step-12/" + name);
    if (how == "flip") FlipByte(victim);
    if (how == "cut") std::filesystem::resize_file(victim, std::filesystem::file_size(victim) / 2);
    if (how == "remove") std::filesystem::remove(victim);
    const Result result = run.Train("bad");
    ASSERT_EQ(result.code, 0) << how << ' ' << name << '\n' << result.output;
    EXPECT_THAT(result.output, HasSubstr("damaged checkpoint passed over: " + victim));
    EXPECT_THAT(result.output, HasSubstr("step-8, after step 8"));
    EXPECT_EQ(run.State("bad", 12), run.State("good", 12)) << how << ' ' << name;
  }
  // Where none is whole the run does not silently begin anew.
  for (const int step : {4, 8, 12}) {
    FlipByte(run.File(absl::StrCat("bad/checkpoints/step-", step, "/m.safetensors")));
  }
  const Result none = run.Train("bad");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.output, HasSubstr("none of its 3 checkpoints is whole"));
}

TEST(TrainResume, VerifyDecidesWhichDamageIsSeenBeforeResuming) {
  const SmallRun run;
  ASSERT_EQ(run.Train("run").code, 0);
  const std::string victim = run.File("run/checkpoints/step-12/recipe.toml");
  FlipByte(victim);
  const auto resume = [&](const std::string& verify) {
    const Result result =
        run.Train("run", {"checkpoint.verify=" + verify, "checkpoint.resume=step:12"});
    return std::make_pair(result.code, result.output);
  };
  EXPECT_EQ(resume("checksum").first, 2);
  EXPECT_THAT(resume("checksum").second, HasSubstr("its checksum is not the manifest's"));
  EXPECT_THAT(resume("size").second, ::testing::Not(HasSubstr("checksum is not")));
  std::filesystem::resize_file(victim, std::filesystem::file_size(victim) / 2);
  EXPECT_EQ(resume("size").first, 2);
  EXPECT_THAT(resume("size").second, HasSubstr("the manifest says"));
  EXPECT_THAT(resume("none").second, ::testing::Not(HasSubstr("the manifest says")));
}

TEST(TrainResume, AFinishedRunSaysSoAndChangesNothing) {
  const SmallRun run;
  ASSERT_EQ(run.Train("run").code, 0);
  const std::string before = run.State("run", 12), metrics = Slurp(run.File("run/metrics.jsonl"));
  for (const std::string steps : {"12", "5"}) {
    const Result again = run.Train("run", {"training.max_steps=" + steps});
    EXPECT_EQ(again.code, 0) << again.output;
    EXPECT_THAT(again.output, HasSubstr("already complete"));
  }
  EXPECT_EQ(run.State("run", 12), before);
  EXPECT_EQ(Slurp(run.File("run/metrics.jsonl")), metrics);
}

TEST(TrainResume, ALongerRunIsAnnouncedWithBothRatesAtTheSeam) {
  const SmallRun run;
  ASSERT_EQ(run.Train("run").code, 0);
  const Result longer = run.Train("run", {"training.max_steps=20"});
  ASSERT_EQ(longer.code, 0) << longer.output;
  EXPECT_THAT(longer.output, HasSubstr("the learning rate of step 13 would have been 0.0003, now"));
  EXPECT_EQ(run.Steps("run").size(), 20u);
}

TEST(TrainResume, AnotherModelBatchOrDataIsRefusedAndNothingChanges) {
  const SmallRun run;
  ASSERT_EQ(run.Train("run", {"training.max_steps=8"}).code, 0);
  const auto before = run.Files("run");
  const std::map<std::string, std::string> changes = {
      {"model.intermediate_size=96", "intermediate_size was 64, is 96"},
      {"training.global_batch_size=16", "global_batch_size = 8, the recipe says 16"},
      {"data.sequence_length=16", "sequence_length = 32, the recipe says 16"},
      {"data.shuffle_seed=5", "other data"},
  };
  for (const auto& [change, message] : changes) {
    const Result result = run.Train("run", {change});
    EXPECT_EQ(result.code, 2) << change << '\n' << result.output;
    EXPECT_THAT(result.output, HasSubstr(message));
    EXPECT_EQ(run.Files("run"), before);
  }
  const Result never = run.Train("run", {"checkpoint.resume=never"});
  EXPECT_EQ(never.code, 2);
  EXPECT_THAT(never.output, HasSubstr("holds a checkpoint of step 8"));
  EXPECT_EQ(run.Files("run"), before);
  const Result anew = run.Train("run", {"model.intermediate_size=96", "--overwrite"});
  EXPECT_EQ(anew.code, 0) << anew.output;
  EXPECT_EQ(run.Steps("run").size(), 12u);
}

TEST(TrainResume, AnEarlierCheckpointByPathOrNumberSetsLaterOnesAside) {
  const SmallRun run;
  ASSERT_EQ(run.Train("run").code, 0);
  const std::string end = run.State("run", 12);
  for (const std::string& from : {run.File("run/checkpoints/step-4"), std::string("step:4")}) {
    const Result again = run.Train("run", {"checkpoint.resume=" + from});
    ASSERT_EQ(again.code, 0) << again.output;
    EXPECT_THAT(again.output, HasSubstr("step-4, after step 4"));
    EXPECT_THAT(again.output, HasSubstr("step-12: set aside"));
    EXPECT_EQ(run.State("run", 12), end);
  }
}

TEST(TrainResume, OldCheckpointsGoAndMultiplesOfKeepEveryStay) {
  const SmallRun run;
  ASSERT_EQ(run.Train("run", {"checkpoint.interval=1", "checkpoint.keep_latest_k=2",
                              "checkpoint.keep_every=5"})
                .code,
            0);
  for (int64_t step = 1; step <= 12; ++step) {
    EXPECT_EQ(run.HasCheckpoint("run", step), step == 5 || step >= 10) << step;
  }
}

}  // namespace
}  // namespace tranche
