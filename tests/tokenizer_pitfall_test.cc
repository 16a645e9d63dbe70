// What goes wrong with tokenizer files in the field (shared/reference/pitfalls.md), each of its
// whole kind.
#include <thread>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/json.h"
#include "nlohmann/json.hpp"
#include "tokenizer_fixtures.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

// A byte-level tokenizer over a few letters.
Json SmallBpe() {
  return Json::parse(R"({"version": "1.0", "added_tokens": [], "normalizer": null,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}, "post_processor": null,
      "decoder": {"type": "ByteLevel"},
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "Ġab": 5, "abc": 6, "x": 7, "y": 8},
                "merges": [["a", "b"], ["Ġ", "ab"], ["ab", "c"]]}})");
}

class TokenizerFiles : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const Json& file) {
    return Tokenizer::Load(folder_.Write("tokenizer.json", file.dump()));
  }
  std::vector<int32_t> Encode(const Json& file, const std::string& text) {
    const auto tokenizer = Load(file);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? Ids(**tokenizer, text) : std::vector<int32_t>{};
  }
  // Refused as bad input, with the file's name and a word of the reason.
  void ExpectRefused(const Json& file, const std::string& reason) {
    const auto tokenizer = Load(file);
    ASSERT_FALSE(tokenizer.ok()) << "accepted, though: " << reason;
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tokenizer.status().message()),
                HasSubstr(folder_.Path("tokenizer.json")));
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(reason));
  }

  ScratchFolder folder_;
};

TEST_F(TokenizerFiles, MergesAsPairsAndAsStringsGiveTheSameIds) {
  Json strings = SmallBpe();
  strings["model"]["merges"] = {"a b", "Ġ ab", "ab c"};
  EXPECT_EQ(Encode(SmallBpe(), "abc ab ba"), Encode(strings, "abc ab ba"));
  EXPECT_EQ(Encode(strings, "abc ab"), (std::vector<int32_t>{6, 5}));
}

TEST_F(TokenizerFiles, MergesInTwoSpellingsAreRefused) {
  Json mixed = SmallBpe();
  mixed["model"]["merges"] = Json::array({Json::array({"a", "b"}), "ab c"});
  ExpectRefused(mixed, "merges[1]");
  mixed["model"]["merges"] = Json::array({"a b", Json::array({"ab", "c"})});
  ExpectRefused(mixed, "merges[1]");
}

TEST_F(TokenizerFiles, TokensThatHoldSpacesNeedPairs) {
  Json file = SmallBpe();
  file["pre_tokenizer"] = nullptr;
  file["decoder"] = nullptr;
  file["model"]["vocab"] = {{"a", 0},  {"b", 1},   {" ", 2},   {"\n", 3},
                            {"a ", 4}, {"a b", 5}, {"\n\n", 6}};
  file["model"]["merges"] =
      Json::array({Json::array({"a", " "}), Json::array({"a ", "b"}), Json::array({"\n", "\n"})});
  EXPECT_EQ(Encode(file, "a b\n\na"), (std::vector<int32_t>{5, 6, 0}));
  file["model"]["merges"] = {"a  ", "a  b", "\n \n"};
  ExpectRefused(file, "merges[0]");
}

TEST_F(TokenizerFiles, NoMergesAreAcceptedWithAWarning) {
  Json file = SmallBpe();
  file["model"]["merges"] = Json::array();
  const auto tokenizer = Load(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Ids(**tokenizer, "abc"), (std::vector<int32_t>{0, 1, 2}));
  ASSERT_EQ((*tokenizer)->warnings().size(), 1u);
  EXPECT_THAT((*tokenizer)->warnings()[0], HasSubstr("no merge rule"));
}

TEST_F(TokenizerFiles, BrokenMergesAreRefusedWithTheirNumber) {
  for (const Json& rule :
       {Json("a"), Json("a b c"), Json(7), Json::array({"a"}), Json::array({"a", 1}),
        Json::array({"a", "q"}), Json::array({"a", "c"})}) {  // "ac" is not in the vocabulary
    Json file = SmallBpe();
    file["model"]["merges"] = Json::array({rule});
    ExpectRefused(file, "merges[0]");
  }
}

Json Added(int id, const std::string& content) {
  return {{"id", id}, {"content", content}, {"special", false}, {"normalized", false}};
}

TEST_F(TokenizerFiles, AddedTokensAreOneTokenEachAndTheLongestWins) {
  Json file = SmallBpe();
  file["added_tokens"] = {Added(9, "<ab>"), Added(10, "<ab>c"), Added(11, "a<")};
  EXPECT_EQ(Encode(file, "x<ab>cy x<ab>y"), (std::vector<int32_t>{7, 10, 8, 3, 7, 9, 8}));
  EXPECT_EQ(Encode(file, "a<ab>"), (std::vector<int32_t>{11, 4}))
      << "the leftmost comes before the longest";
}

TEST_F(TokenizerFiles, AddedTokenWithAGapInItsIdIsRefusedUnlessTheVocabularyHoldsIt) {
  Json file = SmallBpe();
  file["added_tokens"] = {Added(1000, "<ab>")};
  ExpectRefused(file, "\"<ab>\" has id 1000, but the next free id is 9");
  file["model"]["vocab"]["<ab>"] = 1000;
  EXPECT_EQ(Encode(file, "<ab>"), (std::vector<int32_t>{1000}));
  file["added_tokens"] = {Added(999, "<ab>")};
  ExpectRefused(file, "model.vocab gives it id 1000");
}

TEST_F(TokenizerFiles, WhereTheVocabularyHasHolesAddedTokensKeepTheFilesIdsAndTheUserIsTold) {
  Json file = SmallBpe();
  file["model"]["vocab"]["<far>"] = 1000;  // others would number <ab> 10 now
  file["added_tokens"] = {Added(9, "<ab>"), Added(10, "<cd>"), Added(1000, "<far>")};
  EXPECT_EQ(Encode(file, "<ab><cd><far>"), (std::vector<int32_t>{9, 10, 1000}));
  const auto tokenizer = Load(file);
  ASSERT_TRUE(tokenizer.ok());
  ASSERT_EQ((*tokenizer)->warnings().size(), 1u);
  EXPECT_THAT((*tokenizer)->warnings()[0],
              HasSubstr("\"<ab>\" keeps its id 9, though model.vocab has holes and other programs "
                        "would number it 10"));
  file["added_tokens"] = {Added(1001, "<ab>")};
  ExpectRefused(file, "the next free id is 10");
}

TEST_F(TokenizerFiles, TwoTokensNeverShareARow) {
  Json file = SmallBpe();
  file["model"]["vocab"]["z"] = 10;
  file["added_tokens"] = {Added(10, "<ab>")};  // what others number it by
  ExpectRefused(file, "id 10 is that of \"z\"");
  file["added_tokens"] = {Added(9, "<ab>"), Added(9, "<cd>")};
  ExpectRefused(file, "\"<cd>\" has id 9, but ");
}

TEST_F(TokenizerFiles, AddedTokensThatOnlyTheConfigListsOrListsOtherwiseAreTold) {
  Json file = SmallBpe();
  file["added_tokens"] = {Added(9, "<ab>"), Added(10, "<cd>")};
  folder_.Write("tokenizer.json", file.dump());
  const auto warnings = [&](const Json& listed) {
    folder_.Write("tokenizer_config.json", Json{{"added_tokens_decoder", listed}}.dump());
    const auto tokenizer = Tokenizer::Load(folder_.path());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->warnings() : std::vector<std::string>{};
  };
  const Json same = {{"9", {{"content", "<ab>"}}}, {"10", {{"content", "<cd>"}}}};
  EXPECT_THAT(warnings(same), IsEmpty());
  Json more = same, other = same;
  more["11"] = {{"content", "<think>"}};
  EXPECT_THAT(warnings(more), ::testing::ElementsAre(HasSubstr(
                                  "\"<think>\" is listed with id 11, but tokenizer.json does not "
                                  "hold it")));
  other["9"] = {{"content", "<cd>"}}, other["10"] = {{"content", "<ab>"}};
  EXPECT_THAT(warnings(other),
              ::testing::ElementsAre(HasSubstr("gives it id 10"), HasSubstr("gives it id 9")));
}

TEST_F(TokenizerFiles, AddedTokensObeyTheirFlags) {
  Json file = SmallBpe();
  Json word = Added(9, "ab"), eager = Added(10, "<m>");
  word["id"] = 4;
  word["single_word"] = true;
  eager["id"] = 9;
  eager["lstrip"] = eager["rstrip"] = true;
  file["added_tokens"] = {word, eager};
  EXPECT_EQ(Encode(file, "x  <m> \n y"), (std::vector<int32_t>{7, 9, 8}));
  const auto tokenizer = Load(file);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->vocab_size(), 10);
  EXPECT_EQ((*tokenizer)->TokenToId("<m>"), 9);
}

TEST_F(TokenizerFiles, UnknownTypesAreRefusedByNameInEverySection) {
  for (const char* section : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    Json file = SmallBpe();
    file[section] = {{"type", "Bytelevel2"}};
    ExpectRefused(file, absl::StrCat(section, ": type \"Bytelevel2\" is not supported"));
  }
  for (const auto& [section, list] :
       {std::pair("normalizer", "normalizers"), std::pair("pre_tokenizer", "pretokenizers"),
        std::pair("decoder", "decoders"), std::pair("post_processor", "processors")}) {
    Json file = SmallBpe();
    file[section] = {{"type", "Sequence"}, {list, Json::array({{{"type", "Nmt"}}})}};
    ExpectRefused(file, "type \"Nmt\" is not supported");
  }
  Json file = SmallBpe();
  file["model"]["type"] = "Unigram";
  ExpectRefused(file, "type \"Unigram\" is not supported");
}

TEST_F(TokenizerFiles, WhatWouldMakeIdsRandomOrUndefinedIsRefused) {
  Json file = SmallBpe();
  file["model"]["dropout"] = 0.1;
  ExpectRefused(file, "dropout");
  file = SmallBpe();
  file["model"]["unk_token"] = "[none]";
  ExpectRefused(file, "\"[none]\" is not in the vocabulary");
  file = SmallBpe();
  file["model"]["vocab"]["z"] = 1;
  ExpectRefused(file, "id 1 is given to");
  file = SmallBpe();
  file["model"]["vocab"]["z"] = 4000000000;
  ExpectRefused(file, "whole number");
  file = SmallBpe();
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
  ExpectRefused(file, "does not compile");
  file = SmallBpe();
  file["post_processor"] = {{"type", "RobertaProcessing"}, {"sep", {"s", 77}}, {"cls", {"c", 1}}};
  ExpectRefused(file, "id 77 is not in the vocabulary");
}

TEST_F(TokenizerFiles, MissingFolderAndEmptyFolderSayWhatIsNeeded) {
  EXPECT_EQ(Tokenizer::Load(folder_.Path("absent")).status().code(), absl::StatusCode::kNotFound);
  const auto empty = Tokenizer::Load(folder_.path());
  EXPECT_THAT(std::string(empty.status().message()),
              HasSubstr("tokenizer.json, vocab.txt, or vocab.json with merges.txt"));
}

// vocab.txt

const char* const kOddLines[] = {"[PAD]", "[UNK]",  "[CLS]", "[SEP]", "[MASK]",
                                 "a",     "\u2028", "",      "##b",   "c"};

TEST_F(TokenizerFiles, IdIsTheLineNumberWhateverTheLineHolds) {
  for (const char* line_end : {"\n", "\r\n"}) {
    for (const bool final_line_end : {true, false}) {
      folder_.Write("vocab.txt", absl::StrCat(absl::StrJoin(kOddLines, line_end),
                                              final_line_end ? line_end : ""));
      const auto tokenizer = Tokenizer::Load(folder_.path());
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      EXPECT_EQ((*tokenizer)->TokenToId("##b"), 8);
      EXPECT_EQ((*tokenizer)->TokenToId("c"), 9);
      EXPECT_EQ((*tokenizer)->vocab_size(), 10);
      EXPECT_EQ(Ids(**tokenizer, "ab c\u2028a", true), (std::vector<int32_t>{2, 5, 8, 9, 5, 3}));
    }
  }
}

TEST_F(TokenizerFiles, AByteOrderMarkIsNoPartOfTheFirstTokenOrRule) {
  folder_.Write("vocab.txt", "\xef\xbb\xbf[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n");
  const auto words = Tokenizer::Load(folder_.path());
  ASSERT_TRUE(words.ok()) << words.status();
  EXPECT_EQ((*words)->specials().pad, 0);
  EXPECT_EQ((*words)->IdToToken(0), "[PAD]");
  ScratchFolder bpe;
  bpe.Write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  for (const char* rules : {"\xef\xbb\xbf#version: 0.2\na b\n",
                            "\xef\xbb\xbf"
                            "a b\n"}) {
    bpe.Write("merges.txt", rules);
    const auto tokenizer = Tokenizer::Load(bpe.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ(Ids(**tokenizer, "ab"), (std::vector<int32_t>{2}));
  }
}

TEST_F(TokenizerFiles, OfEqualLinesTheLaterCountsAndTheUserIsTold) {
  folder_.Write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\nc\n");
  const auto tokenizer = Tokenizer::Load(folder_.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Ids(**tokenizer, "a b c"), (std::vector<int32_t>{7, 6, 8}));
  ASSERT_EQ((*tokenizer)->warnings().size(), 1u);
  EXPECT_THAT((*tokenizer)->warnings()[0], HasSubstr("vocab.txt:8"));
}

TEST_F(TokenizerFiles, CasedVocabularyKeepsCapitals) {
  folder_.Write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nA\na\n");
  folder_.Write("tokenizer_config.json", R"({"do_lower_case": false})");
  const auto tokenizer = Tokenizer::Load(folder_.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Ids(**tokenizer, "A a"), (std::vector<int32_t>{5, 6}));
}

TEST_F(TokenizerFiles, WordPieceKnowsItsSpecialsAndWhatContinuesAWord) {
  folder_.Write("vocab.txt", absl::StrJoin(kOddLines, "\n"));
  const auto tokenizer = Tokenizer::Load(folder_.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const Tokenizer::Specials& specials = (*tokenizer)->specials();
  EXPECT_EQ(
      (std::vector<int32_t>{specials.pad, specials.unk, specials.cls, specials.sep, specials.mask}),
      (std::vector<int32_t>{0, 1, 2, 3, 4}));
  for (int32_t id = 0; id < 10; ++id) EXPECT_EQ((*tokenizer)->IsSpecial(id), id < 5) << id;
  for (int32_t id = 0; id < 10; ++id) EXPECT_EQ((*tokenizer)->ContinuesWord(id), id == 8) << id;
}

// vocab.json and merges.txt

TEST_F(TokenizerFiles, OnlyAVersionLineIsACommentInMerges) {
  folder_.Write("vocab.json", R"({"#": 0, "a": 1, "b": 2, "#a": 3, "ab": 4})");
  for (const char* line_end : {"\n", "\r\n"}) {
    for (const char* head : {"", "#version: 0.2"}) {
      const std::vector<std::string> lines = {"# a", "a b"};
      folder_.Write("merges.txt", absl::StrCat(head, *head ? line_end : "",
                                               absl::StrJoin(lines, line_end), line_end));
      const auto tokenizer = Tokenizer::Load(folder_.path());
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      EXPECT_EQ(Ids(**tokenizer, "ab"), (std::vector<int32_t>{4}));
      EXPECT_EQ((*tokenizer)->Decode({3, 4}, false), "#aab");
    }
  }
  folder_.Write("merges.txt", "a b\n\n# a\n");
  EXPECT_THAT(std::string(Tokenizer::Load(folder_.path()).status().message()),
              HasSubstr("merges.txt:2"));
}

TEST_F(TokenizerFiles, RobertaFilesPutTheirTokensAround) {
  folder_.Write("vocab.json",
                R"({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "Ġ": 5, "<mask>": 6})");
  folder_.Write("merges.txt", "#version: 0.2\n");
  const auto tokenizer = Tokenizer::Load(folder_.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Ids(**tokenizer, "a <mask> a", true), (std::vector<int32_t>{0, 4, 6, 5, 4, 2}))
      << "<mask> takes the space before it";
  EXPECT_EQ((*tokenizer)->specials().mask, 6);
  EXPECT_EQ((*tokenizer)->Decode({0, 4, 2}, true), "a");
}

// Threads and caches

TEST_F(TokenizerFiles, ThreadsAndFullCachesDoNotChangeIds) {
  const auto tokenizer = Load(SmallBpe());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // More distinct words than a cache holds, of all lengths around its limits.
  std::string text;
  for (uint32_t i = 0; i < 150000; ++i) {
    text += ' ';
    for (uint32_t rest = i * 2654435761u, n = i % 29; n > 0 || rest > 0xFFFFFF;
         rest /= 3, n -= n > 0)
      text += "abc"[rest % 3];
  }
  const auto expected = Ids(**tokenizer, text);
  std::vector<std::vector<int32_t>> got(4);
  std::vector<std::thread> threads;
  for (auto& ids : got) threads.emplace_back([&] { (*tokenizer)->Encode(text, false, &ids); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& ids : got) EXPECT_EQ(ids, expected);
  EXPECT_EQ((*tokenizer)->Decode(expected, false), text);
}

TEST_F(TokenizerFiles, FingerprintFollowsWhatDecidesIds) {
  const auto first = Load(SmallBpe());
  const auto again = Load(SmallBpe());
  Json changed = SmallBpe();
  changed["model"]["merges"].erase(2);
  const auto other = Load(changed);
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  EXPECT_EQ((*first)->fingerprint(), (*again)->fingerprint());
  EXPECT_NE((*first)->fingerprint(), (*other)->fingerprint());
  EXPECT_EQ((*first)->files(), std::vector<std::string>{folder_.Path("tokenizer.json")});
}

}  // namespace
}  // namespace tranche
