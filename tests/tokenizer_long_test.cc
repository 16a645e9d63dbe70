// Long lines cost what their length is, in tokenizing and in training: counted in operations, not
// in seconds. And nothing about them changes ids.
#include <algorithm>
#include <functional>

#include "data/bpe_merge.h"
#include "data/tokenizer_trainer_merge.h"
#include "tokenizer_fixtures.h"

namespace tranche {
namespace {

// Lines of one letter, of random ones and of words.
std::vector<std::string> Lines(size_t size) {
  std::string random, words;
  uint32_t state = 1;
  while (random.size() < size) {
    state = state * 1664525 + 1013904223;
    random += static_cast<char>('a' + (state >> 24) % 26);
    words += (state >> 16) % 6 == 0 ? ' ' : random.back();
  }
  return {std::string(size, 'a'), std::string(size, '_'), random, words};
}

// Rules over ids: about a third of all pairs of ids below 500, ranks in an order of their own.
class Rules {
 public:
  static constexpr uint32_t kNoRank = 500 * 500;
  Rules() : merged_(kNoRank) {
    for (uint32_t rank = 0; rank < kNoRank; ++rank)
      merged_[rank] = static_cast<int32_t>(256 + rank % 500);
  }
  uint32_t Rank(int32_t left, int32_t right) {
    ++asked_;
    if (left >= 500 || right >= 500) return kNoRank;
    const uint32_t pair = static_cast<uint32_t>(left * 500 + right) * 2654435761u;
    return pair % 3 == 0 || left == right ? pair / 3 % kNoRank : kNoRank;
  }
  const std::vector<int32_t>& merged() const { return merged_; }
  int64_t asked() const { return asked_; }

 private:
  std::vector<int32_t> merged_;
  int64_t asked_ = 0;
};

std::vector<int32_t> Bytes(const std::string& line) {
  std::vector<int32_t> symbols;
  for (const char c : line) symbols.push_back(static_cast<unsigned char>(c));
  return symbols;
}

TEST(MergeByRank, JoinsWhatLookingThroughAllPairsJoins) {
  for (const std::string& line : Lines(600)) {
    Rules rules;
    std::vector<int32_t> expected = Bytes(line);
    for (;;) {
      size_t best = 0;
      uint32_t lowest = Rules::kNoRank;
      for (size_t i = 0; i + 1 < expected.size(); ++i) {
        const uint32_t rank = rules.Rank(expected[i], expected[i + 1]);
        if (rank < lowest) lowest = rank, best = i;
      }
      if (lowest == Rules::kNoRank) break;
      expected[best] = rules.merged()[lowest];
      expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    std::vector<int32_t> symbols = {7, 7, 7};  // what stands before stays
    const std::vector<int32_t> bytes = Bytes(line);
    symbols.insert(symbols.end(), bytes.begin(), bytes.end());
    expected.insert(expected.begin(), 3, 7);
    MergeByRank([&](int32_t l, int32_t r) { return rules.Rank(l, r); }, Rules::kNoRank,
                rules.merged(), &symbols, 3);
    EXPECT_EQ(symbols, expected);
  }
}

TEST(MergeByRank, AsksForSixRanksASymbolAtMostHoweverLongTheLine) {
  for (const size_t size : {size_t{20000}, size_t{2000000}}) {
    for (const std::string& line : Lines(size)) {
      Rules rules;
      std::vector<int32_t> symbols = Bytes(line);
      MergeByRank([&](int32_t l, int32_t r) { return rules.Rank(l, r); }, Rules::kNoRank,
                  rules.merged(), &symbols, 0);
      EXPECT_LT(symbols.size(), size);
      EXPECT_LE(rules.asked(), 6 * static_cast<int64_t>(size)) << line[0] << " " << size;
    }
  }
}

TEST(MergeLearner, StepsASymbolDoNotGrowWithTheLine) {
  const auto steps_a_symbol = [](const std::string& line) {
    std::vector<std::string> letters;
    for (int byte = 0; byte < 128; ++byte) letters.emplace_back(1, static_cast<char>(byte));
    MergeLearner learner(letters, "");
    learner.AddWord(Bytes(line), 1);
    learner.Learn(600, 2, [](int64_t) {});
    EXPECT_GT(learner.merges().size(), 8u);
    return static_cast<double>(learner.steps()) / static_cast<double>(line.size());
  };
  const std::vector<std::string> small = Lines(20000), large = Lines(2000000);
  for (size_t i = 0; i < small.size(); ++i)
    EXPECT_LE(steps_a_symbol(large[i]), 3 * steps_a_symbol(small[i])) << small[i].substr(0, 10);
}

class LongPieces : public ::testing::TestWithParam<const char*> {};

TEST_P(LongPieces, ComeBackUnchanged) {
  SKIP_WITHOUT(TokenizerFixture(GetParam()));
  const auto tokenizer = Tokenizer::Load(TokenizerFixture(GetParam()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const std::string& text : Lines(400000)) {
    const auto ids = Ids(**tokenizer, text);
    EXPECT_EQ((*tokenizer)->Decode(ids, false), text);
    // A piece's front does not depend on what comes far behind it.
    const auto front = Ids(**tokenizer, text.substr(0, 20000));
    ASSERT_GT(front.size(), 200u);
    EXPECT_TRUE(std::equal(front.begin(), front.end() - 200, ids.begin()));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, LongPieces, ::testing::Values("phi-2", "phi-3-mini"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, 5) == "phi-2" ? "phi2" : "phi3";
                         });

TEST(LongWords, AreUnknownToWordPieceAndMarksStandAlone) {
  SKIP_WITHOUT(TokenizerFixture("bert-base-uncased"));
  const auto tokenizer = Tokenizer::Load(TokenizerFixture("bert-base-uncased"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const size_t size = 2000000;
  const std::vector<std::string> lines = Lines(size);
  const std::vector<int32_t> unknown = {(*tokenizer)->specials().unk};
  EXPECT_EQ(Ids(**tokenizer, lines[0]), unknown);
  EXPECT_EQ(Ids(**tokenizer, lines[1]), std::vector<int32_t>(size, (*tokenizer)->TokenToId("_")));
  EXPECT_EQ(Ids(**tokenizer, lines[2]), unknown);
  // Words know nothing of the line they stand in.
  std::vector<int32_t> words;
  for (size_t begin = 0; begin < size;) {
    size_t end = std::min(begin + 5000, size);
    while (end < size && lines[3][end] != ' ') ++end;
    (*tokenizer)->Encode(lines[3].substr(begin, end - begin), false, &words);
    begin = end;
  }
  EXPECT_EQ(Ids(**tokenizer, lines[3]), words);
}

}  // namespace
}  // namespace tranche
