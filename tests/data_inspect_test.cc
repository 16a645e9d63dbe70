// `tranche inspect` of data shows what is on disk and what the model gets.
#include "absl/strings/str_cat.h"
#include "data/tokenize.h"
#include "data_corpus.h"
#include "gmock/gmock.h"
#include "trainer/verbs/inspect_data.h"

namespace tranche {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Tokenized(const TempDir& dir, const std::string& text, const Tokenizer& tokenizer) {
  TokenizeOptions options;
  options.inputs = {dir.Write("a.txt", text)};
  options.text.rule = DocumentRule::kLine;
  options.output = dir.File("corpus");
  options.append_eos = options.add_bos = true;
  EXPECT_TRUE(TokenizeCorpus(tokenizer, options).ok());
  return options.output;
}

TEST(Inspect, ADatasetShowsCountsPolicyAndTheFirstDocumentsPieces) {
  TempDir dir;
  const ByteTokenizer tokenizer, other(264, "other");
  const std::string prefix = Tokenized(dir, "hi you\nlonger\tline\n", tokenizer);
  const auto text = InspectDataset(prefix + ".idx", "auto", &tokenizer);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text,
              AllOf(HasSubstr("corpus.bin: megatron, uint16"),
                    HasSubstr("2 documents, 2 sequences, 21 tokens"),
                    HasSubstr("shortest 8, mean 10.5, longest 13"),
                    HasSubstr("EOS appended: 1, BOS added: 0"), HasSubstr("(the given one)"),
                    HasSubstr("0\"<s>\" 112\"h\" 113\"i\""), HasSubstr("as text: <s>hi you</s>")));
  EXPECT_THAT(*InspectDataset(prefix, "auto", &other), HasSubstr("NOT the given one"));
  EXPECT_THAT(*InspectDataset(prefix, "auto", nullptr), HasSubstr("0 112 113"));
  dir.Write("corpus.bin", "odd");
  EXPECT_THAT(std::string(InspectDataset(prefix, "auto", nullptr).status().message()),
              HasSubstr("corpus.bin"));
}

TEST(Inspect, AStepShowsTextBordersAndLabels) {
  TempDir dir;
  const ByteTokenizer tokenizer;
  LoaderOptions options = SmallOptions(Tokenized(dir, "first one\nsecond\n", tokenizer), 16);
  options.tokenizer = &tokenizer, options.vocab_rows = 264, options.document_mask = true,
  options.shuffle = false;
  options.global_batch_size = options.micro_batch_size = 2;
  const auto text = InspectStep(options, 3, false);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(
      *text,
      AllOf(HasSubstr("step 3: samples 6 to 7, 17 labels; an epoch is 2 samples, 1 steps"),
            HasSubstr("sample 6 (slot 0)"),
            HasSubstr("epoch 3, its sample 0; 16 rows, 2 segment(s), 15 labels"),
            HasSubstr("document 0, tokens 0 to 10 (its end): rows 0 to 10\n  <s>first one</s>\n  "
                      "last label: none"),
            HasSubstr("document 1, tokens 0 to 4: rows 11 to 15\n  <s>seco\n  last label: \"n\"")));
  const auto rows = InspectStep(options, 3, true);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT(*rows, AllOf(HasSubstr("    0         0       0  \"<s>\" -> 110 \"f\""),
                           HasSubstr("   10        10       1  \"</s>\"\n"),
                           HasSubstr("   11         0       0  \"<s>\" -> 123 \"s\"")));
  options.tokenizer = nullptr;
  EXPECT_THAT(*InspectStep(options, 0, false), HasSubstr("0 110 113"));
  EXPECT_FALSE(InspectStep(options, INT64_MAX, false).ok());
}

TEST(Inspect, AMaskedStepShowsWhatIsMaskedAndByWhat) {
  TempDir dir;
  const ByteTokenizer tokenizer;
  LoaderOptions options = SmallOptions(
      Tokenized(dir, std::string(300, 'x') + "\n" + std::string(300, 'y') + "\n", tokenizer), 64);
  options.tokenizer = &tokenizer, options.vocab_rows = 264, options.objective = Objective::kMlm,
  options.mlm_probability = 0.5;
  const auto text = InspectStep(options, 0, false);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, AllOf(HasSubstr("\"x\" is masked"), HasSubstr(" is kept"),
                           HasSubstr(" is replaced by "), HasSubstr("rows 1 to 62"),
                           Not(HasSubstr("last label"))));
  options.packing = Packing::kNone, options.next_sentence = true;
  EXPECT_THAT(*InspectStep(options, 0, false),
              AllOf(HasSubstr("B follows A"), HasSubstr("document 1")));
}

}  // namespace
}  // namespace tranche
