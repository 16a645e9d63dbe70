// Hostile recipes: whatever the bytes, the answer is a recipe or an error with the file's name;
// never a crash or a hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/rng.h"
#include "recipe_text.h"
#include "trainer/recipe.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Parses and, where that succeeds, checks that the printed recipe is one as well.
void ExpectAnswer(const std::string& text, int* valid) {
  const auto recipe = Parse(text);
  if (!recipe.ok()) {
    ASSERT_TRUE(absl::StartsWith(recipe.status().message(), "my.toml:")) << recipe.status() << "\n"
                                                                         << text;
    return;
  }
  ++*valid;
  const std::string printed = PrintRecipe(*recipe);
  const auto again = Parse(printed);
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << text << "\n--\n" << printed;
  ASSERT_TRUE(SameValues(*recipe, *again)) << text << "\n--\n" << printed;
}

std::string Mutated(std::string text, RandomSequence& random) {
  static const std::vector<std::string> kPieces = {"[",
                                                   "]",
                                                   "{",
                                                   "}",
                                                   "=",
                                                   "\"",
                                                   "'",
                                                   "\"\"\"",
                                                   "'''",
                                                   ".",
                                                   ",",
                                                   "\n",
                                                   "\r\n",
                                                   "#",
                                                   "\\",
                                                   "\\u0000",
                                                   "\\U0010FFFF",
                                                   "-",
                                                   "1e9",
                                                   "inf",
                                                   "nan",
                                                   "0x",
                                                   "1979-05-27T07:32:00Z",
                                                   "true",
                                                   "\xff",
                                                   "\xc3",
                                                   std::string(1, '\0'),
                                                   "[[",
                                                   "]]",
                                                   "\xef\xbb\xbf",
                                                   "9223372036854775808",
                                                   "-9223372036854775808",
                                                   "1e999",
                                                   "${",
                                                   "${HOME}",
                                                   "%name",
                                                   "a.b.c",
                                                   "_",
                                                   "\t",
                                                   "training",
                                                   "model",
                                                   "\xe2\x80\xa8"};
  const uint64_t edits = 1 + random.Below(4);
  for (uint64_t i = 0; i < edits; ++i) {
    const size_t at = random.Below(text.size() + 1);
    switch (random.Below(5)) {
      case 0:
        text.insert(at, kPieces[random.Below(kPieces.size())]);
        break;
      case 1:
        text.erase(at, random.Below(20));
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(random.Below(256));
        break;
      case 3:
        text.insert(at, text.substr(random.Below(text.size() + 1), random.Below(60)));
        break;
      default:
        if (random.Below(8) == 0) text.resize(at);
        break;
    }
  }
  return text;
}

TEST(HostileRecipe, ThousandsOfMutationsGiveAnAnswer) {
  const std::string seeds[] = {
      kSmallRecipe, ReadFile(JoinPath(TRANCHE_SOURCE_DIR, "recipes/phi2-continue.toml")).value(),
      ReadFile(JoinPath(TRANCHE_SOURCE_DIR, "recipes/bert-2.5b.toml")).value()};
  RandomSequence random(20261130);
  int valid = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = Mutated(seeds[random.Below(3)], random);
    ASSERT_NO_FATAL_FAILURE(ExpectAnswer(text, &valid));
  }
  EXPECT_GT(valid, 100) << "mutations that all fail at once test nothing behind the parser";
  EXPECT_LT(valid, 3900);
}

TEST(HostileRecipe, DeepNestingIsRefusedOrHarmless) {
  std::string dotted = "a", quoted = "\"a,\"", tables;
  for (int i = 0; i < 60000; ++i) dotted += ".a";
  for (int i = 0; i < 40000; ++i) quoted += ".\"a,\"";
  std::string header = "a";
  for (int i = 0; i < 400; ++i) {
    absl::StrAppend(&tables, "[", header, "]\n");
    header += ".a";
  }
  const std::string brackets(200000, '['), braces(200000, '{');
  std::string inline_tables;
  for (int i = 0; i < 50000; ++i) inline_tables += "{a=";
  for (const std::string& text :
       {dotted + " = 1\n", "[" + dotted + "]\n", "[[" + dotted + "]]\n", quoted + " = 1\n",
        "x = {" + quoted + " = 1}\n", "x = " + brackets, "x = " + braces, "x = " + inline_tables,
        "[model]\n" + dotted + " = 1\n", "[model]\nx = " + brackets, tables}) {
    const auto recipe = Parse(text);
    ASSERT_FALSE(recipe.ok());
    EXPECT_THAT(std::string(recipe.status().message()), StartsWith("my.toml:"))
        << text.substr(0, 40);
    EXPECT_LT(recipe.status().message().size(), size_t{1} << 20);
  }
}

TEST(HostileRecipe, ManyFaultsAreCutShort) {
  std::string text = "[training]\n";
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&text, "zz", i, " = 1\n");
  const auto recipe = Parse(text);
  ASSERT_FALSE(recipe.ok());
  EXPECT_THAT(std::string(recipe.status().message()), HasSubstr("more faults"));
}

TEST(HostileRecipe, HugeAndBinaryFilesAreRefused) {
  EXPECT_THAT(std::string(Parse(std::string(300 << 10, ' ')).status().message()),
              HasSubstr("at most 256 KiB"));
  EXPECT_THAT(std::string(Parse("[run]\nname = \"\xff\"\n").status().message()),
              StartsWith("my.toml:2: not valid UTF-8"));
  EXPECT_FALSE(Parse(std::string("\0\0\0\0", 4)).ok());
}

TEST(HostileRecipe, LineEndsAndByteOrderMarkOfOtherSystemsAreRead) {
  std::string text = "\xef\xbb\xbf";
  for (const char c : std::string(kSmallRecipe)) text += c == '\n' ? "\r\n" : std::string(1, c);
  const auto recipe = Parse(text);
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_TRUE(SameValues(*recipe, *Parse(kSmallRecipe)));
}

TEST(HostileRecipe, LongAndStrangeNamesDoNotBreakTheMessage) {
  const auto recipe = Parse(absl::StrCat(kSmallRecipe, "\n[metrics]\n\"", std::string(100000, 'x'),
                                         "\" = 1\n\"a\\nb\" = 2\n"));
  ASSERT_FALSE(recipe.ok());
  EXPECT_LT(recipe.status().message().size(), 5000u);
  EXPECT_EQ(std::count(recipe.status().message().begin(), recipe.status().message().end(), '\n'), 1)
      << recipe.status();
}

}  // namespace
}  // namespace tranche
