// `tranche generate` and `tranche verify` as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/json.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

using testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::string output;
};

// Runs the program; standard error joins the output where `with_errors`.
Outcome Tranche(const std::string& arguments, bool with_errors) {
  std::FILE* pipe = ::popen(
      absl::StrCat(TRANCHE_BINARY, " ", arguments, with_errors ? " 2>&1" : " 2>/dev/null").c_str(),
      "r");
  Outcome outcome;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    outcome.output.append(buffer, n);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

class GenerateVerbTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* shared = std::getenv("TRANCHE_SHARED");
    fixtures_ = JoinPath(shared != nullptr ? shared : TRANCHE_SOURCE_DIR "/../shared", "fixtures");
    stories_ = JoinPath(fixtures_, "stories260K/hf");
    if (!FileExists(JoinPath(stories_, "expect.json"))) GTEST_SKIP() << stories_ << " is not there";
  }
  std::string fixtures_, stories_;
};

TEST_F(GenerateVerbTest, GreedyTextEqualsTheReferences) {
  const nlohmann::json expect = ReadJsonFile(JoinPath(stories_, "expect.json")).value();
  std::string command = absl::StrCat("generate ", stories_, " --max-new-tokens 64"), expected;
  for (const nlohmann::json& item : expect["greedy"]) {
    absl::StrAppend(&command, " --prompt ", Quoted(item["prompt"].get<std::string>()));
    absl::StrAppend(&expected, expected.empty() ? "" : "\n", item["text"].get<std::string>(), "\n");
  }
  for (const int threads : {1, 2}) {
    const Outcome outcome = Tranche(absl::StrCat(command, " --threads ", threads), false);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.output, expected);
  }
}

TEST_F(GenerateVerbTest, ASeedDecidesTheSample) {
  const auto sample = [&](int seed) {
    return Tranche(
               absl::StrCat("generate ", stories_, " --prompt Once --temperature 1 --seed ", seed),
               false)
        .output;
  };
  const std::string first = sample(1);
  EXPECT_EQ(sample(1), first);
  EXPECT_NE(sample(2), first);
}

TEST_F(GenerateVerbTest, WhatCannotBeGeneratedIsRefusedWithTheReason) {
  const auto refused = [](const std::string& arguments, const char* reason) {
    const Outcome outcome = Tranche("generate " + arguments, true);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(reason)) << arguments;
  };
  refused(stories_, "nothing to continue");
  refused(stories_ + " --prompt a --top-k 5", "--temperature");
  refused(stories_ + " --prompt \"$(printf 'a\\377')\"", "UTF-8");
  refused("/nowhere --prompt a", "/nowhere");
  refused(JoinPath(fixtures_, "parity/bert_mlm") + " --prompt a", "tokenizer");
}

TEST_F(GenerateVerbTest, VerifyPrintsARowPerFolderAndItsExitCodeTells) {
  const std::string parity = JoinPath(fixtures_, "parity");
  const Outcome good =
      Tranche(absl::StrCat("verify ", parity, "/phi2_clm ", parity, "/bert_mlm"), true);
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_THAT(good.output, HasSubstr("phi2_clm"));
  EXPECT_THAT(good.output, HasSubstr("2 of 2 folders inside tolerance"));
  const Outcome unreadable = Tranche(absl::StrCat("verify ", stories_), true);
  EXPECT_EQ(unreadable.exit_code, 2);
  EXPECT_THAT(unreadable.output, HasSubstr("batch.safetensors"));
}

}  // namespace
}  // namespace tranche
