// Verbs that start ranks. `launch`: what it refuses before any rank is started, and what it hands
// to the ranks. `tune` and `bench collectives`: what they measure is there, and one rank is
// refused.
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "train_test_run.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Launch(const SmallRun& run, std::vector<std::string> words) {
  words.insert(words.begin(), "launch");
  words.insert(words.end(),
               {run.recipe_path(), "--set", absl::StrCat("run.output_dir=", run.File("launched"))});
  return words;
}

void ExpectNothingWritten(const SmallRun& run) {
  EXPECT_FALSE(std::filesystem::exists(run.File("launched")));
}

TEST(LaunchVerb, NeedsANumberOfRanks) {
  const SmallRun run;
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{}, {"-n", "0"}, {"-n", "many"}, {"--ranks=-1"}}) {
    const Result result = run.Call(Launch(run, words));
    EXPECT_EQ(result.code, 2) << result.output;
    EXPECT_THAT(result.output, HasSubstr("ranks"));
  }
  ExpectNothingWritten(run);
}

TEST(LaunchVerb, SaysFaultsOfTheRecipeOnceAndStartsNothing) {
  const SmallRun run;
  const Result result = run.Call(
      Launch(run, {"-n", "3", "--oversubscribe", "--set", "training.global_batch_size=many"}));
  EXPECT_EQ(result.code, 2);
  const size_t first = result.output.find("training.global_batch_size");
  EXPECT_NE(first, std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("error: ", result.output.find("error: ") + 1), std::string::npos);
  EXPECT_EQ(result.output.find("note: 3 ranks"), std::string::npos);
  ExpectNothingWritten(run);
}

TEST(LaunchVerb, RefusesToBeStartedAsARank) {
  const SmallRun run;
  ::setenv("RANK", "1", 1);
  ::setenv("WORLD_SIZE", "2", 1);
  ::setenv("MASTER_ADDR", "localhost", 1);
  ::setenv("MASTER_PORT", "29500", 1);
  const Result result = run.Call(Launch(run, {"-n", "2", "--oversubscribe"}));
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.output, HasSubstr("is itself rank 1 of 2"));
  ExpectNothingWritten(run);
}

TEST(LaunchVerb, ARecipesRanksAreStartedByTrain) {
  const SmallRun run(/*steps=*/3);
  const Result launched = run.Call(Launch(run, {"-n", "2", "--oversubscribe"}));
  ASSERT_EQ(launched.code, 0) << launched.output;
  const Result result = run.Train("own", {"launch.ranks=2", "launch.oversubscribe=true"});
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("2 ranks on this host"));
  EXPECT_EQ(run.Steps("own").size(), 3u);
  EXPECT_EQ(run.Steps("own"), run.Steps("launched"));
  EXPECT_TRUE(std::filesystem::exists(run.File("own/logs")));
}

TEST(LaunchVerb, TakesTheRecipesRanksAndItsFlagsBeforeThem) {
  const SmallRun run;
  const std::vector<std::string> of_recipe = {"--set", "launch.ranks=2", "--set",
                                              "launch.oversubscribe=true", "--dry-run"};
  const Result result = run.Call(Launch(run, of_recipe));
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("2 ranks on this host"));
  std::vector<std::string> more = of_recipe;
  more.insert(more.end(), {"-n", "3"});
  const Result three = run.Call(Launch(run, more));
  EXPECT_EQ(three.code, 0) << three.output;
  EXPECT_THAT(three.output, HasSubstr("3 ranks on this host"));
  const Result many = run.Train("launched", {"launch.ranks=4096"});
  EXPECT_EQ(many.code, 2);
  EXPECT_THAT(many.output, HasSubstr("cores"));
  ExpectNothingWritten(run);
}

TEST(LaunchVerb, ADryRunOfTheRanksWritesNothing) {
  const SmallRun run;
  const Result alone = run.Train("launched", {"--dry-run"});
  ASSERT_EQ(alone.code, 0) << alone.output;
  const Result result = run.Call(Launch(run, {"-n", "2", "--oversubscribe", "--dry-run"}));
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("2 ranks on this host"));
  EXPECT_THAT(result.output, HasSubstr("memory"));  // rank 0's plan
  ExpectNothingWritten(run);
}

int Count(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(TuneVerb, MeasuresEverySizeAndChoosesOne) {
  const SmallRun run(/*steps=*/12, /*hidden=*/256);
  const Result result =
      run.Call({"tune", run.recipe_path(), "-n", "2", "--oversubscribe", "--steps", "1"});
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("2 ranks, ZeRO stage"));
  const std::string head = "exposed\n";
  const size_t table = result.output.find(head) + head.size();
  const std::string rows = result.output.substr(table, result.output.find("\n\n", table) - table);
  EXPECT_GE(Count(rows, "\n"), 2) << result.output;
  EXPECT_EQ(Count(rows, " ms"), 3 * (Count(rows, "\n") + 1))
      << rows;  // predicted, measured, exposed
  EXPECT_EQ(Count(rows, "<- chosen"), 1) << rows;
}

TEST(BenchCollectivesVerb, ShowsTheBandwidthOfEverySize) {
  const SmallRun run;
  const Result result = run.Call({"bench", "collectives", "-n", "3", "--oversubscribe", "--sizes",
                                  "64KiB,300KiB", "--repeats", "2"});
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_EQ(Count(result.output, " GB/s"), 4) << result.output;
  for (const char* bytes : {" 65532 ", " 307200 "}) EXPECT_THAT(result.output, HasSubstr(bytes));
}

TEST(VerbsOnRanks, RefuseOne) {
  const SmallRun run;
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"bench", "collectives"}, {"tune", run.recipe_path()}}) {
    const Result result = run.Call(words);
    EXPECT_EQ(result.code, 2) << result.output;
    EXPECT_THAT(result.output, HasSubstr("-n "));
  }
}

}  // namespace
}  // namespace tranche
