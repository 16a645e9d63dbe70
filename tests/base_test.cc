// The base floor: what it promises about files, random numbers, units, names and JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/units.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

// Known-answer vectors published with the Random123 library.
TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_EQ(Philox(0, 0, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(PermutedIndex, IsAPermutationForEverySize) {
  for (uint64_t size : {1, 2, 3, 5, 16, 17, 100, 1000, 4097}) {
    std::vector<bool> seen(size, false);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t at = PermutedIndex(i, size, 42);
      ASSERT_LT(at, size);
      EXPECT_FALSE(seen[at]) << "size " << size << " index " << i;
      seen[at] = true;
    }
  }
}

TEST(PermutedIndex, DependsOnTheKey) {
  int same = 0;
  for (uint64_t i = 0; i < 1000; ++i)
    same += PermutedIndex(i, 1000, 1) == PermutedIndex(i, 1000, 2);
  EXPECT_LT(same, 20);
}

TEST(Units, BytesParseAndPrint) {
  EXPECT_EQ(*ParseBytes("256 MiB"), 256 << 20);
  EXPECT_EQ(*ParseBytes("1.5GB"), 1500000000);
  EXPECT_EQ(*ParseBytes("0 B"), 0);
  for (const char* bad : {"256", "MiB", "", "12 XB", "-1 B", "1e30 TiB", "1..5 MB"})
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  for (int64_t n : {int64_t{0}, int64_t{1023}, int64_t{1} << 20, int64_t{3} << 30})
    EXPECT_EQ(*ParseBytes(FormatBytes(n)), n);
}

TEST(Units, DurationsParse) {
  EXPECT_EQ(*ParseSeconds("71h30m"), 71 * 3600 + 30 * 60);
  EXPECT_EQ(*ParseSeconds("2d"), 172800);
  for (const char* bad : {"30", "", "m30", "30m71h", "1h1h"})
    EXPECT_FALSE(ParseSeconds(bad).ok()) << bad;
}

TEST(Text, FindsEveryKindOfInvalidUtf8) {
  EXPECT_FALSE(FindInvalidUtf8("plain, grüße, 分析, 😀").has_value());
  for (const char* bad : {"\xff", "\xc0\x80", "\xe4\xbd", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\x80", "\xf0\x80\x80\x80"}) {
    EXPECT_EQ(FindInvalidUtf8(std::string("12345678") + bad), 8u);
  }
  int64_t replaced = 0;
  EXPECT_EQ(ReplaceInvalidUtf8("a\xff\xffz\xe4\xbd", &replaced),
            "a\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD");
  EXPECT_EQ(replaced, 3);
}

TEST(Text, NearestNameFindsTyposAndNothingElse) {
  const std::vector<std::string> names = {"warmup_steps", "max_steps", "lr"};
  EXPECT_EQ(NearestName("warmup_step", names), "warmup_steps");
  EXPECT_EQ(NearestName("mxa_steps", names), "max_steps");
  EXPECT_EQ(NearestName("colour_of_sky", names), std::nullopt);
}

TEST(Json, RefusesWhatIsNotStrict) {
  EXPECT_TRUE(ParseJson(R"({"a": [1, 2.5, "x"]})", "f").ok());
  for (const char* bad :
       {"", "{", R"({"a":1,"a":2})", R"([1,2,])", "\xef\xbb\xbf{}", "{\"a\": \"\xff\"}", "{} x"}) {
    EXPECT_FALSE(ParseJson(bad, "f").ok()) << bad;
  }
  EXPECT_THAT(std::string(ParseJson("{\n  \"a\": ?\n}", "f.json").status().message()),
              testing::HasSubstr("f.json:2:"));
  EXPECT_FALSE(ParseJson(std::string(100000, '['), "f").ok());
}

TEST(AtomicFile, LeavesNothingBehindWithoutCommit) {
  const std::string folder = testing::TempDir() + "/atomic_file";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/x";
  ASSERT_TRUE(WriteFileAtomic(path, "old").ok());
  {
    auto file = FileSystem::Real().Create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Append(std::string(3 << 20, 'n')).ok());
  }
  EXPECT_EQ(*ReadFile(path), "old");
  EXPECT_EQ(ListDir(folder)->size(), 1u);
  auto file = FileSystem::Real().Create(path);
  ASSERT_TRUE((*file)->Append("hello").ok());
  ASSERT_TRUE((*file)->WriteAt(0, "J").ok());
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(*ReadFile(path), "Jello");
}

TEST(Hash, PiecesGiveTheSameAsTheWhole) {
  Hasher pieces;
  pieces.Update("ab");
  pieces.Update("");
  pieces.Update("c");
  EXPECT_EQ(pieces.Finish(), Hash128("abc"));
  EXPECT_NE(Hash128("abc"), Hash128("abd"));
}

}  // namespace
}  // namespace tranche
