// What is measured between ranks is kept for the next start, and only for the same ranks.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "train_test_run.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;

class ZeroRates : public ::testing::Test {
 protected:
  ZeroRates() : run_(/*steps=*/4) { ::setenv("TRANCHE_CACHE_DIR", Cache().c_str(), 1); }
  ~ZeroRates() override { ::unsetenv("TRANCHE_CACHE_DIR"); }

  std::string Cache() const { return run_.File("cache"); }
  std::string Train(int ranks, const std::string& precision = "fp32") {
    const std::string output = absl::StrCat("run", ++runs_);
    const Result result =
        run_.Call({"launch", absl::StrCat("--ranks=", ranks), "--oversubscribe", "--bind=none",
                   run_.recipe_path(), "--set", absl::StrCat("run.output_dir=", run_.File(output)),
                   "--set", absl::StrCat("training.precision=", precision)});
    EXPECT_EQ(result.code, 0) << result.output;
    return result.output;
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    if (!std::filesystem::exists(Cache())) return files;
    for (const auto& entry : std::filesystem::directory_iterator(Cache())) {
      files.push_back(entry.path());
    }
    return files;
  }
  void Rewrite(const std::function<void(Json&)>& change) const {
    Json json = Json::parse(Slurp(Files().at(0)));
    change(json);
    std::ofstream(Files().at(0)) << json.dump();
  }

  SmallRun run_;
  int runs_ = 0;
};

TEST_F(ZeroRates, TheSecondStartUsesWhatTheFirstMeasuredAndOthersDoNot) {
  EXPECT_THAT(Train(2), HasSubstr("measured now"));
  ASSERT_THAT(Files(), SizeIs(1));
  // What only the file can say: collectives that take a second each, which ask for one bucket.
  Rewrite([](Json& json) {
    for (const char* kind : {"all-gather", "reduce-scatter"}) json[kind]["alpha_seconds"] = 1.0;
  });
  const std::string second = Train(2);
  EXPECT_THAT(second, HasSubstr("all-gather 1000000 us"));
  EXPECT_THAT(second, HasSubstr(absl::StrCat("ago (", Files()[0], ")")));

  EXPECT_THAT(Train(3), HasSubstr("measured now"));
  EXPECT_THAT(Train(2, "bf16"), HasSubstr("measured now"));
  ::setenv("UCX_TLS", "tcp,self", 1);
  EXPECT_THAT(Train(2), HasSubstr("measured now"));
  ::unsetenv("UCX_TLS");
  EXPECT_THAT(Files(), SizeIs(4));
  EXPECT_THAT(Train(2), HasSubstr("all-gather 1000000 us"));
}

TEST_F(ZeroRates, WhatIsOldOrDamagedIsMeasuredAgain) {
  Train(2);
  ASSERT_THAT(Files(), SizeIs(1));
  const std::string sound = Slurp(Files()[0]);
  const std::vector<std::function<void(Json&)>> damages = {
      [](Json& json) { json["measured_unix_seconds"] = 1000; },
      [](Json& json) { json["measured_unix_seconds"] = 1e11; },
      [](Json& json) { json["origin"][1] = "rank 1: elsewhere"; },
      [](Json& json) { json.erase("matmul_flops"); },
      [](Json& json) { json["matmul_flops"] = 0; },
      [](Json& json) { json["all-gather"] = 3; },
      [](Json& json) { json["all-gather"]["alpha_seconds"] = -1; },
      [](Json& json) { json = Json::array({1}); },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    Rewrite(damages[i]);
    EXPECT_THAT(Train(2), HasSubstr("measured now")) << i;
  }
  std::ofstream(Files()[0]) << sound.substr(0, sound.size() / 2);
  EXPECT_THAT(Train(2), HasSubstr("measured now"));
  EXPECT_THAT(Train(2), HasSubstr(" ago ("));
}

TEST_F(ZeroRates, WithoutAFolderNothingIsKeptAndTheRunGoesOn) {
  std::ofstream(Cache()) << "a file where the folder should be";
  const std::string output = Train(2);
  EXPECT_THAT(output, HasSubstr("not kept for the next start"));
  EXPECT_THAT(output, HasSubstr(Cache()));
  ::setenv("TRANCHE_CACHE_DIR", "", 1);
  EXPECT_THAT(Train(2), Not(HasSubstr("not kept")));
}

}  // namespace
}  // namespace tranche
