// Damaged and hostile tokenizer files: an error or a working tokenizer, never a crash, a hang or a
// huge allocation.
#include "base/rng.h"
#include "data/tokenizer_trainer.h"
#include "nlohmann/json.hpp"
#include "tokenizer_fixtures.h"

namespace tranche {
namespace {

using Json = nlohmann::json;

// Small files of each family, to be damaged.
std::vector<Json> Files() {
  std::vector<Json> files;
  for (const auto model :
       {TrainerOptions::Model::kByteLevelBpe, TrainerOptions::Model::kWordPiece}) {
    ScratchFolder folder;
    TrainerOptions options;
    options.model = model;
    options.vocab_size = 290;
    bool given = false;
    const auto report = TrainTokenizer(
        options,
        [&](std::string* text) -> absl::StatusOr<bool> {
          *text =
              "the river runs through the riverbed; the bed of the river is wide, the river's bed "
              "is not 12 deep";
          return !std::exchange(given, true);
        },
        folder.path());
    EXPECT_TRUE(report.ok()) << report.status();
    files.push_back(Json::parse(*ReadFile(folder.Path("tokenizer.json"))));
  }
  Json pieces = files[0];
  pieces["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "NFKC"}},
        {{"type", "Prepend"}, {"prepend", "▁"}},
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}},
        {{"type", "Replace"}, {"pattern", {{"Regex", "[0-9]+"}}}, {"content", "0"}},
        {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}},
        {{"type", "Lowercase"}}}}};
  pieces["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", "\\s+|\\p{L}+(?!x)"}}},
         {"behavior", "MergedWithPrevious"},
         {"invert", false}},
        {{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}}}}};
  pieces["decoder"] = {{"type", "Sequence"},
                       {"decoders",
                        {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}},
                         {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  pieces["model"]["byte_fallback"] = true;
  pieces["added_tokens"].push_back({{"id", 290},
                                    {"content", " bed"},
                                    {"lstrip", true},
                                    {"rstrip", true},
                                    {"single_word", true}});
  files.push_back(pieces);
  return files;
}

// Loads and, where that works, uses what came out.
void Try(const ScratchFolder& folder, const std::string& content) {
  const std::string path = folder.Write("tokenizer.json", content);
  const auto tokenizer = Tokenizer::Load(path);
  if (!tokenizer.ok()) {
    ASSERT_THAT(std::string(tokenizer.status().message()), ::testing::HasSubstr(path));
    return;
  }
  for (const char* text : {"", "the river's bed  is 12\n<|endoftext|>",
                           "日本\u0301 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}) {
    std::vector<int32_t> ids;
    (*tokenizer)->Encode(text, true, &ids);
    for (const int32_t id : ids) ASSERT_LT(id, (*tokenizer)->vocab_size());
    (*tokenizer)->Decode(ids, false);
  }
}

TEST(HostileTokenizer, CutAnywhereIsRefused) {
  const ScratchFolder folder;
  for (const Json& file : Files()) {
    const std::string whole = file.dump();
    for (size_t i = 0; i < 150; ++i) {
      const std::string cut = whole.substr(0, whole.size() * i / 150);
      const auto tokenizer = Tokenizer::Load(folder.Write("tokenizer.json", cut));
      ASSERT_FALSE(tokenizer.ok());
      ASSERT_THAT(std::string(tokenizer.status().message()),
                  ::testing::HasSubstr("tokenizer.json"));
    }
  }
}

TEST(HostileTokenizer, ThousandsOfChangedBytesNeverCrash) {
  const ScratchFolder folder;
  RandomSequence random(2024);
  for (const Json& file : Files()) {
    const std::string whole = file.dump();
    for (int i = 0; i < 500; ++i) {
      std::string changed = whole;
      for (uint64_t n = 1 + random.Below(3); n > 0; --n) {
        const size_t at = random.Below(changed.size());
        switch (random.Below(4)) {
          case 0:
            changed[at] = static_cast<char>(random.Below(256));
            break;
          case 1:
            changed.erase(at, 1 + random.Below(40));
            break;
          case 2:
            changed.insert(at, changed.substr(random.Below(changed.size()), random.Below(60)));
            break;
          case 3:
            changed[at] = "0123456789\"{}[],:-"[random.Below(18)];
            break;
        }
        if (changed.empty()) changed = "{";
      }
      Try(folder, changed);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// All nodes of a document below `node`, but of long lists only some.
void Collect(Json* node, RandomSequence* random, std::vector<Json*>* nodes) {
  nodes->push_back(node);
  if (!node->is_structured()) return;
  for (auto& child : *node) {
    if (node->size() < 20 || random->Below(node->size()) < 10) Collect(&child, random, nodes);
  }
}

TEST(HostileTokenizer, ThousandsOfWrongValuesNeverCrash) {
  const ScratchFolder folder;
  RandomSequence random(77);
  const std::vector<Json> values = {nullptr,
                                    true,
                                    -1,
                                    0,
                                    2097150,
                                    2097151,
                                    4294967295u,
                                    1e300,
                                    -0.5,
                                    "",
                                    "a",
                                    "▁",
                                    std::string(3000, 'a'),
                                    "Sequence",
                                    "Split",
                                    "BPE",
                                    "WordPiece",
                                    "first",
                                    "\\p{",
                                    "(a*)*b",
                                    "(?:a|aa)+$",
                                    "a{1000}{1000}",
                                    "(((((((((a))))))))){99}",
                                    "(?<=a+)b",
                                    "\\1(a)",
                                    "[[[[",
                                    "",
                                    Json::array(),
                                    Json::object(),
                                    Json::array({1, 2}),
                                    Json::array({"a", 70000}),
                                    {{"type", "Sequence"}},
                                    {{"type", "ByteLevel"}},
                                    {{"Regex", "(x+x+)+y"}},
                                    {{"Regex", ""}},
                                    {{"String", ""}},
                                    {{"Sequence", {{"id", "A"}}}}};
  for (const Json& file : Files()) {
    for (int i = 0; i < 600; ++i) {
      Json changed = file;
      for (uint64_t n = 1 + random.Below(2); n > 0; --n) {
        std::vector<Json*> nodes;
        Collect(&changed, &random, &nodes);
        *nodes[random.Below(nodes.size())] = values[random.Below(values.size())];
      }
      Try(folder, changed.dump());
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(HostileTokenizer, ReplacementsThatMultiplyAreRefused) {
  const ScratchFolder folder;
  Json file = Files()[0];
  Json steps = Json::array();
  for (int i = 0; i < 40; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const auto tokenizer = Tokenizer::Load(folder.Write("tokenizer.json", file.dump()));
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(std::string(tokenizer.status().message()), ::testing::HasSubstr("1000 times longer"));
}

TEST(HostileTokenizer, PatternsThatBacktrackWithoutEndComeBack) {
  const ScratchFolder folder;
  Json file = Files()[0];
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(x+x+)+y"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const auto tokenizer = Tokenizer::Load(folder.Write("tokenizer.json", file.dump()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text(60, 'x');
  EXPECT_EQ((*tokenizer)->Decode(Ids(**tokenizer, text), false), text);
}

}  // namespace
}  // namespace tranche
