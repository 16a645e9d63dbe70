// Tokenizers made from text.
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "data/tokenizer_trainer.h"
#include "data/tokenizer_trainer_merge.h"
#include "tokenizer_fixtures.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;
using Model = TrainerOptions::Model;

DocumentSource From(std::vector<std::string> documents) {
  return [documents = std::move(documents),
          next = size_t{0}](std::string* text) mutable -> absl::StatusOr<bool> {
    if (next == documents.size()) return false;
    *text = documents[next++];
    return true;
  };
}

// Text with many ties and some structure; deterministic.
std::vector<std::string> Documents() {
  std::vector<std::string> documents(40, "Wel come to the Tok en izers libr ary.");
  documents.push_back("abababab cdcdcdcd aaaa aaaaa");
  const std::vector<std::string> words = {"river",  "rivers", "riverbed", "Bed",     "naïve",
                                          "日本語", "don't",  "12345",    "x\n\n  y"};
  for (size_t i = 0; i < 300; ++i) {
    documents.push_back(
        absl::StrCat(words[i * 7 % 9], " ", words[i * i % 9], i % 3 ? "" : " ", words[i % 5]));
  }
  return documents;
}

TrainerOptions Options(Model model, int64_t vocab_size) {
  TrainerOptions options;
  options.model = model;
  options.vocab_size = vocab_size;
  return options;
}

class BothModels : public ::testing::TestWithParam<Model> {};

TEST_P(BothModels, FilesDoNotDependOnThreadsNorOnTheOrderOfDocuments) {
  std::vector<std::string> documents = Documents();
  std::map<std::string, std::string> expected;
  for (const int threads : {1, 2, 8}) {
    for (const bool reversed : {false, true}) {
      ScratchFolder folder;
      TrainerOptions options = Options(GetParam(), 340);
      options.threads = threads;
      std::vector<std::string> order = documents;
      if (reversed) std::reverse(order.begin(), order.end());
      const auto report = TrainTokenizer(options, From(order), folder.path());
      ASSERT_TRUE(report.ok()) << report.status();
      const auto names = ListDir(folder.path());
      ASSERT_TRUE(names.ok());
      for (const std::string& name : *names) {
        const auto content = ReadFile(folder.Path(name));
        ASSERT_TRUE(content.ok());
        const auto [entry, is_new] = expected.emplace(name, *content);
        EXPECT_EQ(entry->second, *content) << name << " with " << threads << " threads";
      }
    }
  }
  EXPECT_EQ(expected.size(), GetParam() == Model::kWordPiece ? 3u : 2u);
}

TEST_P(BothModels, TheResultLoadsAndSpecialsHaveTheFirstIds) {
  ScratchFolder folder;
  const auto report = TrainTokenizer(Options(GetParam(), 330), From(Documents()), folder.path());
  ASSERT_TRUE(report.ok()) << report.status();
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), report->vocab_size);
  EXPECT_THAT((*tokenizer)->warnings(), ::testing::IsEmpty());
  if (GetParam() == Model::kByteLevelBpe) {
    EXPECT_EQ((*tokenizer)->specials().eos, 0);
    EXPECT_EQ(Ids(**tokenizer, "<|endoftext|>"), std::vector<int32_t>{0});
    // Every text comes back, also one with bytes that training did not see.
    const std::string text = "\u0001 naïve 日本語 🦀\r\n\t\"quoted\"  twice";
    EXPECT_EQ((*tokenizer)->Decode(Ids(**tokenizer, text), false), text);
    EXPECT_EQ(Ids(**tokenizer, " river").size(), 1u);
  } else {
    EXPECT_EQ((*tokenizer)->specials().mask, 4);
    EXPECT_EQ(Ids(**tokenizer, "River", true),
              (std::vector<int32_t>{2, (*tokenizer)->TokenToId("river"), 3}));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BothModels,
                         ::testing::Values(Model::kByteLevelBpe, Model::kWordPiece),
                         [](const auto& info) {
                           return info.param == Model::kByteLevelBpe ? "Bpe" : "WordPiece";
                         });

TEST(WordPieceTrainer, VocabTxtAloneGivesTheSameIds) {
  ScratchFolder folder, text_only;
  ASSERT_TRUE(
      TrainTokenizer(Options(Model::kWordPiece, 120), From(Documents()), folder.path()).ok());
  for (const char* name : {"vocab.txt", "tokenizer_config.json"})
    text_only.Write(name, *ReadFile(folder.Path(name)));
  const auto whole = Tokenizer::Load(folder.path()), alone = Tokenizer::Load(text_only.path());
  ASSERT_TRUE(whole.ok() && alone.ok());
  for (const std::string& text : Documents())
    ASSERT_EQ(Ids(**whole, text, true), Ids(**alone, text, true));
}

// The same rules, found the slow way: counting all pairs anew for every merge.
std::vector<std::pair<int32_t, int32_t>> NaiveMerges(std::vector<std::string> tokens,
                                                     std::vector<std::vector<int32_t>> words,
                                                     const std::vector<int64_t>& counts,
                                                     size_t vocab_size, int64_t least) {
  std::vector<std::pair<int32_t, int32_t>> merges;
  while (tokens.size() < vocab_size) {
    std::map<std::pair<int32_t, int32_t>, int64_t> pairs;
    for (size_t w = 0; w < words.size(); ++w) {
      for (size_t i = 0; i + 1 < words[w].size(); ++i)
        pairs[{words[w][i], words[w][i + 1]}] += counts[w];
    }
    std::pair<int32_t, int32_t> best;
    int64_t most = 0;
    for (const auto& [pair, count] : pairs) {
      if (count > most) most = count, best = pair;
    }
    if (most < least) break;
    const std::string text = tokens[best.first] + tokens[best.second];
    auto id = static_cast<int32_t>(std::find(tokens.begin(), tokens.end(), text) - tokens.begin());
    if (id == static_cast<int32_t>(tokens.size())) tokens.push_back(text);
    merges.push_back(best);
    for (auto& word : words) {
      std::vector<int32_t> joined;
      for (size_t i = 0; i < word.size(); ++i) {
        const bool match =
            i + 1 < word.size() && word[i] == best.first && word[i + 1] == best.second;
        joined.push_back(match ? id : word[i]);
        i += match;
      }
      word = joined;
    }
  }
  return merges;
}

TEST(MergeLearner, FindsTheMergesThatRecountingFinds) {
  uint32_t state = 12345;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c", "d"};
    std::vector<std::vector<int32_t>> words;
    std::vector<int64_t> counts;
    for (int w = 0; w < 30; ++w) {
      std::vector<int32_t> word;
      do {
        state = state * 1664525 + 1013904223;
        word.push_back(static_cast<int32_t>(state >> 28) % (2 + round % 3));
      } while (state >> 27 & 7);
      words.push_back(word);
      counts.push_back(1 + (state >> 20) % 4);
    }
    MergeLearner learner(tokens, "");
    for (size_t w = 0; w < words.size(); ++w) learner.AddWord(words[w], counts[w]);
    learner.Learn(40, 2, [](int64_t) {});
    EXPECT_EQ(learner.merges(), NaiveMerges(tokens, words, counts, 40, 2)) << "round " << round;
  }
}

TEST(Trainer, TiesGoToTheSmallerIds) {
  ScratchFolder folder;
  const auto report = TrainTokenizer(Options(Model::kByteLevelBpe, 259),
                                     From({"cdcd abab", "abab cdcd"}), folder.path());
  ASSERT_TRUE(report.ok()) << report.status();
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->IdToToken(257), "ab");
  EXPECT_EQ((*tokenizer)->IdToToken(258), "cd");
}

TEST(Trainer, OneLineWithoutPreTokenizerIsLearned) {
  std::string line;
  for (uint32_t i = 0, state = 7; i < 300000; ++i) {
    state = state * 1664525 + 1013904223;
    line += "etaoin shrdlu"[(state >> 20) % 13];
  }
  ScratchFolder folder;
  TrainerOptions options = Options(Model::kByteLevelBpe, 400);
  options.pattern = ScanPattern::kNone;
  const auto report = TrainTokenizer(options, From({line}), folder.path());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->vocab_size, 400);
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->Decode(Ids(**tokenizer, line), false), line);
}

TEST(Trainer, EveryPatternIsWrittenSoThatItIsReadBack) {
  for (const ScanPattern pattern : {ScanPattern::kGpt2, ScanPattern::kCl100k, ScanPattern::kQwen2,
                                    ScanPattern::kO200k, ScanPattern::kNone}) {
    ScratchFolder folder;
    TrainerOptions options = Options(Model::kByteLevelBpe, 300);
    options.pattern = pattern;
    ASSERT_TRUE(TrainTokenizer(options, From(Documents()), folder.path()).ok());
    const auto tokenizer = Tokenizer::Load(folder.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->Decode(Ids(**tokenizer, "Don't 12345 go\n\n"), false),
              "Don't 12345 go\n\n");
  }
}

TEST(Trainer, WrongOptionsAndEmptyTextAreRefusedAndNothingIsWritten) {
  const auto expect = [](TrainerOptions options, std::vector<std::string> documents,
                         const std::string& reason) {
    ScratchFolder folder;
    const std::string output = folder.Path("out");
    const auto report = TrainTokenizer(options, From(std::move(documents)), output);
    ASSERT_FALSE(report.ok()) << reason;
    EXPECT_THAT(std::string(report.status().message()), HasSubstr(reason));
    EXPECT_FALSE(IsDirectory(output));
  };
  expect(Options(Model::kByteLevelBpe, 256), Documents(), "vocab_size 256: too small");
  expect(Options(Model::kWordPiece, 10), Documents(), "vocab_size 10: too small");
  expect(Options(Model::kByteLevelBpe, 0), Documents(), "vocab_size 0");
  expect(Options(Model::kByteLevelBpe, 300), {"", ""}, "no text");
  TrainerOptions options = Options(Model::kByteLevelBpe, 300);
  options.special_tokens = {"<x>", "<x>"};
  expect(options, Documents(), "given twice");
  options.special_tokens = {"a"};
  expect(options, Documents(), "stand-in of a byte");
  options = Options(Model::kWordPiece, 300);
  options.special_tokens = {"[PAD]", "[UNK]"};
  expect(options, Documents(), "WordPiece needs [CLS]");
}

TEST(Trainer, ErrorsOfTheSourceArePassedOn) {
  ScratchFolder folder;
  int calls = 0;
  const auto report = TrainTokenizer(
      Options(Model::kByteLevelBpe, 300),
      [&](std::string* text) -> absl::StatusOr<bool> {
        *text = "some text";
        if (++calls > 10) return absl::DataLossError("f.txt:7: bad");
        return true;
      },
      folder.Path("out"));
  EXPECT_EQ(report.status().message(), "f.txt:7: bad");
  EXPECT_FALSE(IsDirectory(folder.Path("out")));
}

}  // namespace
}  // namespace tranche
