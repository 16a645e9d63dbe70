// Real tokenizers against what the reference library answered.
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "data/pretokenize_scan.h"
#include "data/tokenizer_verify.h"
#include "nlohmann/json.hpp"
#include "tokenizer_fixtures.h"

namespace tranche {
namespace {

class Goldens : public ::testing::TestWithParam<const char*> {};

TEST_P(Goldens, EveryLineIsEqual) {
  const std::string folder = TokenizerFixture(GetParam()),
                    goldens = TokenizerFixture(absl::StrCat("goldens/", GetParam(), ".jsonl"));
  SKIP_WITHOUT(goldens);
  const auto tokenizer = Tokenizer::Load(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto verdict = VerifyTokenizer(**tokenizer, goldens);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_GE(verdict->lines, 400);
  EXPECT_EQ(verdict->equal_lines, verdict->lines) << absl::StrJoin(verdict->differences, "\n");
}

INSTANTIATE_TEST_SUITE_P(AllTokenizers, Goldens,
                         ::testing::Values("bert-base-uncased", "gpt2", "phi-2", "phi-3-mini",
                                           "llama2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

TEST(BertQuestions, PiecesAndIdsOfAllQuestionsAreEqual) {
  const std::string path = TokenizerFixture("bert-base-uncased/question_tokens.json");
  SKIP_WITHOUT(path);
  const auto tokenizer = Tokenizer::Load(TokenizerFixture("bert-base-uncased"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = ReadJsonFile(path);
  const auto texts = ReadJsonFile(TokenizerFixture("bert-base-uncased/tokenized_questions.json"));
  ASSERT_TRUE(ids.ok() && texts.ok());
  // One file holds the questions with their pieces, the other the ids.
  const nlohmann::json& questions = (*ids)[0].is_object() ? *ids : *texts;
  const nlohmann::json& id_lists = (*ids)[0].is_object() ? *texts : *ids;
  ASSERT_EQ(questions.size(), 10570u);
  ASSERT_EQ(id_lists.size(), questions.size());
  for (size_t i = 0; i < questions.size(); ++i) {
    const auto got = Ids(**tokenizer, questions[i]["original"].get<std::string>());
    ASSERT_EQ(got, id_lists[i].get<std::vector<int32_t>>()) << questions[i]["original"];
    std::vector<std::string> pieces;
    for (const int32_t id : got) pieces.push_back((*tokenizer)->IdToToken(id));
    ASSERT_EQ(pieces, questions[i]["wordpiece"].get<std::vector<std::string>>());
  }
}

TEST(Gpt2, FrenchTextHasItsPreTokensTokensAndIds) {
  const std::string path = TokenizerFixture("gpt2/golden_encoded_tokens.json");
  SKIP_WITHOUT(path);
  const auto golden = ReadJsonFile(path);
  ASSERT_TRUE(golden.ok()) << golden.status();
  const auto tokenizer = Tokenizer::Load(TokenizerFixture("gpt2"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = (*golden)["text"].get<std::string>();
  const auto ids = Ids(**tokenizer, text);
  std::vector<std::string> tokens;
  for (const int32_t id : ids) tokens.push_back((*tokenizer)->IdToToken(id));
  EXPECT_EQ(tokens, (*golden)["bpe_tokens"].get<std::vector<std::string>>());
  EXPECT_EQ(ids, (*golden)["token_ids"].get<std::vector<int32_t>>());
}

TEST(Stories260K, PromptsAreTokenizedAsExpected) {
  const std::string path = SharedPath("fixtures/stories260K/hf/expect.json");
  SKIP_WITHOUT(path);
  const auto expect = ReadJsonFile(path);
  ASSERT_TRUE(expect.ok()) << expect.status();
  const auto tokenizer = Tokenizer::Load(SharedPath("fixtures/stories260K/hf"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const auto& entry : (*expect)["greedy"]) {
    EXPECT_EQ(Ids(**tokenizer, entry["prompt"].get<std::string>(), true),
              entry["prompt_ids"].get<std::vector<int32_t>>());
  }
  EXPECT_EQ((*tokenizer)->vocab_size(), 512);
  EXPECT_EQ((*tokenizer)->specials().bos, 1);
  EXPECT_EQ((*tokenizer)->specials().eos, 2);
}

TEST(DamagedFile, IsRefusedByNameWithThePlaceAndTheReason) {
  const std::string path = TokenizerFixture("damaged/llama2-tokenizer.json");
  SKIP_WITHOUT(path);
  const auto tokenizer = Tokenizer::Load(path);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(tokenizer.status().message()), ::testing::HasSubstr(path));
  EXPECT_THAT(std::string(tokenizer.status().message()), ::testing::HasSubstr("merges[18917]"));
}

}  // namespace
}  // namespace tranche
