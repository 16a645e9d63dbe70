// `tranche plan` of many ranks against the runs that it plans.
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "train_test_run.h"
#include "trainer/rehearsal.h"
#include "zero_world.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Json PlanOf(const SmallRun& run, std::vector<std::string> words) {
  words.insert(words.begin(), {"plan", run.recipe_path(), "--json"});
  const Result result = run.Call(words);
  EXPECT_EQ(result.code, 0) << result.output;
  return Json::parse(result.output, nullptr, false);
}

// The number after "used" in the last lines of a run.
int64_t UsedBytes(const std::string& output) {
  const size_t at = output.find(" bytes, used ");
  EXPECT_NE(at, std::string::npos) << output;
  if (at == std::string::npos) return -1;
  const size_t begin = at + std::string(" bytes, used ").size();
  const std::string number =
      absl::StrReplaceAll(output.substr(begin, output.find(';', begin) - begin), {{",", ""}});
  int64_t bytes = -1;
  EXPECT_TRUE(absl::SimpleAtoi(number, &bytes)) << number;
  return bytes;
}

TEST(ZeroPlan, BytesAreThoseOfTheRunAtEveryStage) {
  const SmallRun run(/*steps=*/3);
  const Json all = PlanOf(run, {"-n", "3", "--stages"});
  ASSERT_EQ(all["stages"].size(), 4u);
  for (int stage = 0; stage < 4; ++stage) {
    const std::string set = absl::StrCat("parallelism.zero_stage=", stage);
    const Json one = PlanOf(run, {"-n", "3", "--set", set});
    const Result trained =
        run.Call({"launch", "-n", "3", "--oversubscribe", run.recipe_path(), "--set", set, "--set",
                  absl::StrCat("run.output_dir=", run.File(absl::StrCat("stage", stage)))});
    ASSERT_EQ(trained.code, 0) << trained.output;
    const int64_t used = UsedBytes(trained.output);
    EXPECT_EQ(all["stages"][static_cast<size_t>(stage)]["memory_bytes"], used) << stage;
    EXPECT_EQ(one["memory_bytes"], used) << stage;
    EXPECT_EQ(one["rank"]["zero_stage"], stage);
  }
}

TEST(ZeroPlan, WhatIsShardedShrinksWithTheRanksAndNothingElseDoes) {
  const SmallRun run;
  for (const int ranks : {2, 5, 32}) {
    const Json stages = PlanOf(run, {"--ranks", absl::StrCat(ranks), "--stages"})["stages"];
    const auto bytes = [&](size_t stage, const char* kind) {
      return stages[stage]["memory_by_kind"][kind].get<int64_t>();
    };
    for (size_t stage = 1; stage < 4; ++stage) {
      EXPECT_EQ(bytes(stage, "optimizer") * ranks, bytes(0, "optimizer")) << ranks;
      EXPECT_EQ(bytes(stage, "activations"), bytes(0, "activations")) << ranks;
    }
    EXPECT_EQ(bytes(1, "gradients"), bytes(0, "gradients"));
    EXPECT_EQ(bytes(1, "weights"), bytes(0, "weights"));
    EXPECT_EQ(bytes(2, "weights"), bytes(0, "weights"));
    // Without accumulation every stage but the last sends the same: gradients once, weights once.
    const Json whole = PlanOf(run, {"--ranks", absl::StrCat(ranks), "--stages", "--set",
                                    "training.micro_batch_size=8"})["stages"];
    const int64_t reduced = bytes(0, "gradients") * (ranks - 1) / ranks;
    for (const Json& stage : whole) {
      EXPECT_EQ(stage["sent"]["reduce-scatter"]["bytes"], reduced) << ranks << stage;
    }
  }
}

TEST(ZeroPlan, FollowsTheLinkAndTheMachineThatAreGiven) {
  const SmallRun run;
  const auto seconds = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"-n", "4"};
    words.insert(words.end(), more.begin(), more.end());
    const Json plan = PlanOf(run, words);
    return plan["rank"]["predicted_step_seconds"].get<double>();
  };
  const double assumed = seconds({});
  EXPECT_GT(seconds({"--link", "30000,1.25GB"}), assumed + 0.03);
  EXPECT_GT(seconds({"--link", "30,1MB"}), 2 * assumed);
  EXPECT_LT(seconds({"--link", "0,1TB"}), assumed);
  EXPECT_GT(seconds({"--machine", "0.00001,10GB"}), 2 * assumed);
  const Json plan = PlanOf(run, {"-n", "4", "--link", "7,2GB"});
  EXPECT_EQ(plan["assumptions"]["link"], "given");
  EXPECT_EQ(plan["assumptions"]["machine"], "assumed");
  for (const char* wrong : {"30", "30,fast", "-1,1GB", "x,1GB", "30,0B", "1,2,3"}) {
    const Result result =
        run.Call({"plan", run.recipe_path(), "-n", "2", absl::StrCat("--link=", wrong)});
    EXPECT_EQ(result.code, 2) << wrong;
    EXPECT_THAT(result.output, HasSubstr("--link")) << wrong;
  }
  for (const char* flag : {"--stages", "--link=1,1GB", "--machine=1,1GB"}) {
    const Result result = run.Call({"plan", run.recipe_path(), flag});
    EXPECT_EQ(result.code, 2) << flag;
    EXPECT_THAT(result.output, HasSubstr("give -n RANKS")) << flag;
  }
}

// A rehearsal stops after a few micro-batches and counts on: every one of them enqueued must give
// the same counts.
TEST(ZeroPlan, ARehearsalOfManyMicroBatchesCountsWhatEachOfThemSends) {
  for (const ModelKind kind : {ModelKind::kPhi, ModelKind::kBert}) {
    for (int stage = 0; stage < 4; ++stage) {
      for (const int slots : {2, 3}) {
        RunSetup setup = WorldSetup(kind, "fp32", "none", /*global_batch=*/36, /*micro_batch=*/1);
        setup.ranks = 3;
        setup.engine.zero_stage = stage;
        setup.engine.layer_slots = slots;
        setup.engine.bucket_bytes = 4096;
        const auto rehearsal = Rehearse(setup, /*training=*/true, /*threads=*/1);
        ASSERT_TRUE(rehearsal.ok()) << rehearsal.status();

        const std::unique_ptr<PlanBackend> backend = CreatePlanBackend(1);
        Arena arena = Arena::Rehearsal();
        Comm comm(*backend, 0, setup.ranks);
        const auto session = Session::Create(setup, true, *backend, arena, {&comm, &comm, nullptr});
        ASSERT_TRUE(session.ok()) << session.status();
        for (int step = 1; step <= 2; ++step) {
          comm.ResetCounts();
          (*session)->BeginStep();
          for (int pass = 0; pass < 12; ++pass) {
            (*session)->ForwardBackward(TypicalBatch(setup), {.predicted_tokens = 1});
          }
          (*session)->FinishStep(0, step, 0);
        }
        EXPECT_EQ(rehearsal->comm.bytes, comm.counts().bytes) << stage << " " << slots;
        EXPECT_EQ(rehearsal->comm.calls, comm.counts().calls) << stage << " " << slots;
      }
    }
  }
}

}  // namespace
}  // namespace tranche
