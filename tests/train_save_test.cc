// The real program: when checkpoints and exports are written, and what a full disk does.
#include <gmock/gmock.h>
#include <sys/mount.h>

#include "train_test_run.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<int64_t> Saved(const SmallRun& run, const std::string& output) {
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= 12; ++step) {
    if (run.HasCheckpoint(output, step)) steps.push_back(step);
  }
  return steps;
}

TEST(TrainSave, TheFirstStepIsSavedWhereTheRecipeAsksForIt) {
  const SmallRun run;
  const std::vector<std::string> sets = {"checkpoint.interval=0",
                                         "checkpoint.save_first_step=true"};
  ASSERT_EQ(run.Train("run", sets).code, 0);
  EXPECT_EQ(Saved(run, "run"), (std::vector<int64_t>{1, 12}));
  // What was saved there is no other run.
  std::filesystem::remove_all(run.File("run/checkpoints/step-12"));
  const Result again = run.Train("run", sets);
  EXPECT_THAT(again.output, HasSubstr("after step 1"));
  ASSERT_EQ(run.Train("plain", {"checkpoint.interval=0"}).code, 0);
  EXPECT_EQ(Saved(run, "plain"), (std::vector<int64_t>{12}));
  EXPECT_EQ(run.State("run", 12), run.State("plain", 12));
}

TEST(TrainSave, MinutesBetweenCheckpointsCountWhereTheyAreOver) {
  const SmallRun run;
  const auto train = [&](const std::string& output, const std::string& minutes) {
    const Result result = run.Train(output, {"checkpoint.interval=0", "checkpoint.keep_latest_k=99",
                                             "checkpoint.interval_minutes=" + minutes});
    EXPECT_EQ(result.code, 0) << result.output;
    return Saved(run, output);
  };
  EXPECT_EQ(train("always", "1e-9").size(), 12u);
  EXPECT_EQ(train("never", "1e9"), (std::vector<int64_t>{12}));
}

TEST(TrainSave, AFileOfTheTriggersNameAsksForACheckpointAndIsRemoved) {
  const SmallRun run;
  const struct {
    std::string output, set, file;
    bool asks;
  } cases[] = {{"default", "checkpoint.keep_latest_k=9", "checkpoint_now", true},
               {"named", "checkpoint.trigger_file=save me", "save me", true},
               {"other", "checkpoint.trigger_file=save me", "checkpoint_now", false},
               {"none", "checkpoint.trigger_file=\"\"", "checkpoint_now", false}};
  for (const auto& each : cases) {
    run.dir().Write(each.output + "/" + each.file, "");
    const Result result = run.Train(each.output, {"checkpoint.interval=0", each.set});
    ASSERT_EQ(result.code, 0) << result.output;
    EXPECT_EQ(std::filesystem::exists(run.File(each.output + "/" + each.file)), !each.asks);
    EXPECT_EQ(Saved(run, each.output),
              each.asks ? (std::vector<int64_t>{1, 12}) : (std::vector<int64_t>{12}))
        << each.output;
  }
  // A folder of that name is nobody's request, and stays.
  run.dir().Write("folder/checkpoint_now/inside", "kept");
  ASSERT_EQ(run.Train("folder", {"checkpoint.interval=0"}).code, 0);
  EXPECT_EQ(Slurp(run.File("folder/checkpoint_now/inside")), "kept");
}

TEST(TrainSave, AnExportOfEachCheckpointIsWhatTheCheckpointExports) {
  const SmallRun run;
  const Result result = run.Train("run", {"checkpoint.export_hf=every", "checkpoint.interval=3"});
  ASSERT_EQ(result.code, 0) << result.output;
  for (const int step : {6, 9}) {
    const std::string name = absl::StrCat("step-", step), to = run.File("of-" + name);
    ASSERT_EQ(run.Call({"export", run.File("run/checkpoints/" + name), to}).code, 0);
    for (const char* file : {"/model.safetensors", "/config.json"}) {
      EXPECT_FALSE(Slurp(to + file).empty());
      EXPECT_EQ(Slurp(run.File("run/exports/" + name) + file), Slurp(to + file)) << step << file;
    }
  }
  EXPECT_TRUE(std::filesystem::exists(run.File("run/export/model.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(run.File("run/exports/step-12"))) << "that is run/export";
}

// A run on a volume that holds two of its checkpoints and not three.
class TrainOnFullDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(mount_point());
    if (::mount("tmpfs", mount_point().c_str(), "tmpfs", 0, "size=800k") != 0) {
      GTEST_SKIP() << "mounting a tmpfs needs privileges";
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount(mount_point().c_str());
  }
  std::string mount_point() const { return run_.File("disk"); }
  Result Train(std::vector<std::string> sets) const {
    sets.push_back("checkpoint.keep_latest_k=9");
    return run_.Train("disk", sets);
  }

  SmallRun run_;
  bool mounted_ = false;
};

TEST_F(TrainOnFullDisk, KeepsEarlierCheckpointsTrainsOnAndSaysSo) {
  const Result result = Train({});
  EXPECT_EQ(result.code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("no checkpoint of step 12 was written"));
  EXPECT_THAT(result.output, HasSubstr("step 12/12"));
  EXPECT_EQ(Saved(run_, "disk"), (std::vector<int64_t>{4, 8}));
  EXPECT_FALSE(std::filesystem::exists(mount_point() + "/checkpoints/step-12.tmp"));
  const Result eval = run_.Call({"eval", mount_point(), "--data", run_.File("train")});
  EXPECT_EQ(eval.code, 0) << eval.output;
  ASSERT_EQ(run_.Train("ample").code, 0);
  EXPECT_EQ(run_.State("disk", 4), run_.State("ample", 4));
}

TEST_F(TrainOnFullDisk, RemovesTheOldestButNeverTheNewestWhereTheRecipeSaysSo) {
  const Result result = Train({"checkpoint.on_disk_full=prune_then_continue"});
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("step-4 was removed to make room for step 12"));
  EXPECT_EQ(Saved(run_, "disk"), (std::vector<int64_t>{8, 12}));
  ASSERT_EQ(run_.Train("ample").code, 0);
  EXPECT_EQ(run_.State("disk", 12), run_.State("ample", 12));
}

TEST_F(TrainOnFullDisk, NeverRemovesWhatKeepEveryKeeps) {
  const Result result =
      Train({"checkpoint.on_disk_full=prune_then_continue", "checkpoint.keep_every=4"});
  EXPECT_EQ(result.code, 1) << result.output;
  EXPECT_EQ(Saved(run_, "disk"), (std::vector<int64_t>{4, 8}));
}

TEST_F(TrainOnFullDisk, EndsTheRunWhereTheRecipeSaysSo) {
  const Result result = Train({"checkpoint.on_disk_full=error", "checkpoint.interval=2"});
  EXPECT_EQ(result.code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("error: "));
  EXPECT_THAT(result.output, HasSubstr("no checkpoint of step 6 was written"));
  EXPECT_THAT(result.output, Not(HasSubstr("step 12/12")));
  EXPECT_EQ(Saved(run_, "disk"), (std::vector<int64_t>{2, 4}));
}

}  // namespace
}  // namespace tranche
