// BERT's texts are tokenized run by run (data/bert_runs.h): the ids are those of the whole text.
#include "nlohmann/json.hpp"
#include "tokenizer_fixtures.h"

namespace tranche {
namespace {

using Json = nlohmann::json;

// Characters that act on their neighbours, vanish, part words, or look as if they did.
const std::vector<std::string>& Alphabet() {
  static const auto& alphabet = *new std::vector<std::string>{
      "a",         "B",      "c",          "9",          " ",          " ",
      "\t",        "\n",     "\r",         "\v",         "\f",         std::string(1, '\0'),
      "\x01",      "\x7f",   "<",          "=",          "'",          "_",
      "[",         "$",      "\u0085",     "\u00a0",     "\u00ad",     "\u00e9",
      "\u00c9",    "\u00df", "\u0130",     "\u0301",     "\u0327",     "\u0338",
      "\u0345",    "\u03a3", "\u0e33",     "\u0928",     "\u093c",     "\u1e9b",
      "\u2028",    "\u2026", "\u200b",     "\u200d",     "\u212b",     "\u3000",
      "\u3001",    "\u304b", "\u3099",     "\u3400",     "\u4e00",     "\u6f22",
      "\u9fff",    "\uac01", "\u1100",     "\u1161",     "\u11a8",     "\uf900",
      "\uff0c",    "\ufffd", "\U00011938", "\U0001F600", "\U00020000", "\U0002F800",
      "\U0002B820"};
  return alphabet;
}

// Every character of the alphabet and what becomes of it is a token, so that no difference hides
// in [UNK].
Json WordPieceFile() {
  Json vocab = Json::object();
  const auto add = [&](const std::string& token) {
    if (!vocab.contains(token)) vocab[token] = vocab.size();
  };
  for (const char* special : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) add(special);
  std::vector<std::string> texts = Alphabet();
  for (const char* text : {"b", "e", "E", "i", "s", "\u03c3", "\u1100", "\u1161", "\u11a8", "A",
                           "\u00e5", "\u8c48", "\u4e3d", "\u017f", "\u0307"})
    texts.emplace_back(text);
  for (const std::string& text : texts) {
    add(text);
    add("##" + text);
  }
  return {{"version", "1.0"},
          {"added_tokens", Json::array({{{"id", 4}, {"content", "[MASK]"}, {"special", true}}})},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", vocab}}}};
}

TEST(BertRuns, GiveTheIdsOfTheWholeTextWithEverySettingOfTheNormalizer) {
  ScratchFolder folder;
  for (int bits = 0; bits < 16; ++bits) {
    const Json normalizer = {{"type", "BertNormalizer"},
                             {"clean_text", (bits & 1) != 0},
                             {"handle_chinese_chars", (bits & 2) != 0},
                             {"strip_accents", (bits & 4) != 0},
                             {"lowercase", (bits & 8) != 0}};
    Json by_runs = WordPieceFile(), whole = WordPieceFile();
    by_runs["normalizer"] = normalizer;
    // Inside a sequence it is one normalizer of many: the text is normalized before it is cut.
    whole["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array({normalizer})}};
    const auto got = Tokenizer::Load(folder.Write("runs.json", by_runs.dump()));
    const auto expected = Tokenizer::Load(folder.Write("whole.json", whole.dump()));
    ASSERT_TRUE(got.ok() && expected.ok()) << got.status() << expected.status();
    uint32_t state = static_cast<uint32_t>(bits);
    const auto random = [&](uint32_t below) {
      state = state * 1664525 + 1013904223;
      return (state >> 8) % below;
    };
    for (int round = 0; round < 1500; ++round) {
      std::string text;
      // Some without blanks and marks, so that runs outgrow the cache.
      const uint32_t length = round % 50 == 0 ? 300 : random(12);
      const auto characters = static_cast<uint32_t>(Alphabet().size());
      for (uint32_t i = 0; i < length; ++i)
        text += Alphabet()[round % 100 == 0 ? 24 + random(characters - 24) : random(characters)];
      if (round % 7 == 0) text += "[MASK]" + text;
      ASSERT_EQ(Ids(**got, text), Ids(**expected, text))
          << "options " << bits << ": " << ::testing::PrintToString(text);
    }
  }
}

TEST(BertRuns, ARealTextHasTheSameIdsWhole) {
  const std::string vocab = TokenizerFixture("bert-base-uncased/vocab.txt");
  SKIP_WITHOUT(vocab);
  const auto tokenizer = Tokenizer::Load(TokenizerFixture("bert-base-uncased"));
  ASSERT_TRUE(tokenizer.ok());
  for (const char* name : {"fixtures/text/nl.txt", "fixtures/text/en.txt"}) {
    SKIP_WITHOUT(SharedPath(name));
    const auto text = ReadFile(SharedPath(name));
    ASSERT_TRUE(text.ok());
    // A line at a time, each with a tokenizer whose cache knows other lines.
    std::vector<int32_t> by_lines;
    for (size_t begin = 0; begin < text->size();) {
      const size_t end = std::min(text->find('\n', begin), text->size());
      (*tokenizer)->Encode(absl::string_view(*text).substr(begin, end - begin), false, &by_lines);
      begin = end + 1;
    }
    const auto fresh = Tokenizer::Load(TokenizerFixture("bert-base-uncased"));
    ASSERT_TRUE(fresh.ok());
    EXPECT_EQ(Ids(**fresh, *text), by_lines);
  }
}

}  // namespace
}  // namespace tranche
