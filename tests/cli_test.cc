// The command line: flags and their faults, and the real program's help, exit codes and streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "nlohmann/json.hpp"
#include "trainer/cli.h"
#include "trainer/exit_codes.h"
#include "trainer/verbs/verbs.h"

namespace tranche {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Verb TestVerb() {
  return {.name = "eat",
          .summary = "Eats.",
          .usage = "FILE [flags]",
          .example = "tranche eat cake",
          .flags = {{"set", "KEY=VALUE", "Sets.", true},
                    {"on-error", "stop|skip", "What then."},
                    {"steps", "N", "How many."},
                    {"quiet", "", "Silently."}},
          .min_positionals = 1,
          .max_positionals = 2};
}

std::string Fault(const std::vector<std::string>& words) {
  const auto arguments = ParseArguments(TestVerb(), words);
  EXPECT_FALSE(arguments.ok());
  EXPECT_EQ(arguments.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(arguments.status().message());
}

TEST(Arguments, BothSpellingsOfValuesSwitchesAndTheEndOfFlags) {
  const auto arguments = ParseArguments(
      TestVerb(), {"a", "--set", "x=1", "--set=y=2", "--quiet", "--steps", "-3", "--", "--quiet"});
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_THAT(arguments->positionals(), ElementsAre("a", "--quiet"));
  EXPECT_THAT(arguments->GetAll("set"), ElementsAre("x=1", "y=2"));
  EXPECT_TRUE(arguments->Has("quiet"));
  EXPECT_FALSE(arguments->Has("on-error"));
  EXPECT_EQ(arguments->Get("on-error", "stop"), "stop");
  EXPECT_EQ(arguments->GetInt("steps", 5, -10, 10).value(), -3);
}

TEST(Arguments, WrongFlagsNameTheNearestRightOne) {
  EXPECT_EQ(Fault({"a", "--step", "3"}),
            "tranche eat: unknown flag --step (did you mean \"--steps\"?)");
  EXPECT_THAT(Fault({"a", "--on_error", "stop"}), HasSubstr("did you mean \"--on-error\"?"));
  EXPECT_THAT(Fault({"a", "--Quiet"}), HasSubstr("did you mean \"--quiet\"?"));
  EXPECT_THAT(Fault({"a", "-quiet"}), HasSubstr("did you mean \"--quiet\"?"));
  EXPECT_THAT(Fault({"a", "--zzzzzzzz"}),
              HasSubstr("allowed: --set, --on-error, --steps, --quiet, --help"));
}

TEST(Arguments, WrongUseIsToldWithTheRightOne) {
  EXPECT_EQ(Fault({}), "tranche eat: too few words; usage: tranche eat FILE [flags]");
  EXPECT_EQ(Fault({"a", "b", "c"}),
            "tranche eat: one word too many: c; usage: tranche eat FILE [flags]");
  EXPECT_EQ(Fault({"a", "--steps"}), "tranche eat: --steps needs a value: --steps N");
  EXPECT_EQ(Fault({"a", "--steps", "--quiet"}), "tranche eat: --steps needs a value: --steps N");
  EXPECT_EQ(Fault({"a", "--quiet=1"}), "tranche eat: --quiet takes no value");
  EXPECT_EQ(Fault({"a", "--steps=1", "--steps=2"}), "tranche eat: --steps is given twice");
}

TEST(Arguments, NumbersAreCheckedAgainstTheirRange) {
  const auto arguments = ParseArguments(TestVerb(), {"a", "--steps", "12x"});
  ASSERT_TRUE(arguments.ok());
  EXPECT_EQ(arguments->GetInt("steps", 1, 0, 9).status().message(),
            "--steps: \"12x\" is not a whole number from 0 to 9");
  EXPECT_FALSE(ParseArguments(TestVerb(), {"a", "--steps", "10"})->GetInt("steps", 1, 0, 9).ok());
  EXPECT_FALSE(
      ParseArguments(TestVerb(), {"a", "--steps", "nan"})->GetDouble("steps", 1, 0, 9).ok());
  EXPECT_EQ(
      ParseArguments(TestVerb(), {"a", "--steps", "0.5"})->GetDouble("steps", 1, 0, 9).value(),
      0.5);
  EXPECT_EQ(ParseArguments(TestVerb(), {"a"})->GetInt("steps", 7, 0, 9).value(), 7);
}

TEST(Arguments, BadInputAndFailureHaveTheirOwnExitCodes) {
  EXPECT_EQ(ReportError(absl::InvalidArgumentError("x")), kExitBadInput);
  EXPECT_EQ(ReportError(absl::NotFoundError("x")), kExitBadInput);
  EXPECT_EQ(ReportError(absl::ResourceExhaustedError("x")), kExitFailed);
  EXPECT_EQ(ReportError(absl::InternalError("x")), kExitFailed);
}

class Program : public testing::Test {
 protected:
  void SetUp() override {
    if (!FileExists(TRANCHE_BINARY)) GTEST_SKIP() << TRANCHE_BINARY << " is not built";
    folder_ = std::filesystem::path(testing::TempDir()) / absl::StrCat("cli_test_", getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  struct Result {
    int code = -1;
    std::string out, err;
  };
  // Runs `tranche ARGUMENTS` in the test's folder by the shell.
  Result Run(const std::string& arguments, const std::string& redirection = ">out") {
    const std::string command = absl::StrCat("cd ", folder_.string(), " && ", TRANCHE_BINARY, " ",
                                             arguments, " ", redirection, " 2>err");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadFile(folder_ / "out").value_or(""),
            ReadFile(folder_ / "err").value_or("")};
  }
  std::filesystem::path folder_;
};

TEST_F(Program, HelpListsEveryVerbAndEachHasAnExample) {
  const Result all = Run("--help");
  EXPECT_EQ(all.code, kExitDone);
  EXPECT_EQ(all.err, "");
  for (const Verb& verb : AllVerbs()) {
    EXPECT_THAT(all.out, HasSubstr(absl::StrCat("  ", verb.name, " "))) << verb.name;
    const Result help = Run(absl::StrCat(verb.name, " --help"));
    EXPECT_EQ(help.code, kExitDone) << verb.name;
    EXPECT_THAT(help.out, AllOf(StartsWith(absl::StrCat("usage: tranche ", verb.name)),
                                HasSubstr(verb.summary),
                                HasSubstr(absl::StrCat("example:\n  tranche ", verb.name))))
        << verb.name;
    for (const Flag& flag : verb.flags)
      EXPECT_THAT(help.out, HasSubstr(absl::StrCat("--", flag.name)));
  }
}

TEST_F(Program, VersionSaysWhatIsInIt) {
  const Result result = Run("--version");
  EXPECT_EQ(result.code, kExitDone);
  for (const char* part : {"tranche ", "instruction set: ", "threads: ", "backends: cpu", "UCX ",
                           "Highway ", "toml++ "}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST_F(Program, MistypedVerbsAndFlagsGetTheNearestAndExitCode2) {
  const struct {
    const char* words;
    const char* hint;
  } cases[] = {{"doctr", "did you mean \"doctor\"?"},
               {"recipes lst", "did you mean \"recipes list\"?"},
               {"recipes", "tranche recipes list"},
               {"doctor --jsn", "did you mean \"--json\"?"},
               {"xyzzyxyzzy", "`tranche --help` lists them"},
               {"recipes show quickstrat", "did you mean \"quickstart\"?"},
               {"recipes show", "usage: tranche recipes show NAME"}};
  for (const auto& each : cases) {
    const Result result = Run(each.words);
    EXPECT_EQ(result.code, kExitBadInput) << each.words;
    EXPECT_EQ(result.out, "") << each.words;
    EXPECT_THAT(result.err, AllOf(StartsWith("error: "), HasSubstr(each.hint))) << each.words;
  }
  EXPECT_EQ(Run("").code, kExitBadInput);
}

TEST_F(Program, RecipesAreShownAndCopiedButNeverOverwritten) {
  const std::string text =
      ReadFile(JoinPath(TRANCHE_SOURCE_DIR, "recipes/quickstart.toml")).value();
  EXPECT_THAT(Run("recipes list").out, HasSubstr("quickstart"));
  EXPECT_EQ(Run("recipes show quickstart").out, text);
  EXPECT_EQ(Run("recipes copy quickstart my.toml").code, kExitDone);
  EXPECT_EQ(ReadFile(folder_ / "my.toml").value(), text);
  std::ofstream(folder_ / "my.toml") << "edited";
  const Result again = Run("recipes copy quickstart my.toml");
  EXPECT_EQ(again.code, kExitBadInput);
  EXPECT_THAT(again.err, HasSubstr("exists already"));
  EXPECT_EQ(ReadFile(folder_ / "my.toml").value(), "edited");
  EXPECT_EQ(Run("recipes copy quickstart .").code, kExitDone);
  EXPECT_EQ(ReadFile(folder_ / "quickstart.toml").value(), text);
  EXPECT_EQ(Run("recipes copy quickstart no/such/folder.toml").code, kExitBadInput);
}

TEST_F(Program, DoctorPrintsJson) {
  const Result result = Run("doctor --json");
  EXPECT_EQ(result.code, kExitDone) << result.out;
  const auto json = nlohmann::json::parse(result.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << result.out;
  EXPECT_GT(json["findings"].size(), 5u);
}

TEST_F(Program, ReaderThatLeavesIsNoFailureAndAFullDiskIs) {
  const std::string piped = absl::StrCat("cd ", folder_.string(), " && (", TRANCHE_BINARY,
                                         " recipes reference 2>err; echo $? >code) | true");
  EXPECT_EQ(std::system(piped.c_str()), 0);
  EXPECT_EQ(ReadFile(folder_ / "code").value(), "0\n");
  EXPECT_EQ(ReadFile(folder_ / "err").value(), "");
  EXPECT_EQ(Run("recipes list", ">&-").code, kExitDone) << "closed stdout";
  if (!FileExists("/dev/full")) return;
  const Result full = Run("recipes list", ">/dev/full");
  EXPECT_EQ(full.code, kExitFailed);
  EXPECT_THAT(full.err, HasSubstr("standard output could not be written"));
}

}  // namespace
}  // namespace tranche
