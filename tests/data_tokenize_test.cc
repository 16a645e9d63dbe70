// Tokenizing: every document once, in order, the same for any number of threads; nothing
// half-written.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "data/indexed_writer.h"
#include "data/token_file.h"
#include "data/tokenize.h"
#include "data_byte_tokenizer.h"
#include "data_test_files.h"
#include "gmock/gmock.h"

namespace tranche {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Documents = std::vector<std::vector<int32_t>>;

Documents ReadAll(const std::string& prefix) {
  auto file = TokenFile::Open(prefix, TokenFormat::kMegatron, "auto");
  EXPECT_TRUE(file.ok()) << file.status();
  Documents documents;
  for (int64_t d = 0; file.ok() && d < (*file)->num_documents(); ++d) {
    const int64_t begin = (*file)->DocumentBegin(d), end = (*file)->DocumentBegin(d + 1);
    documents.emplace_back(static_cast<size_t>(end - begin));
    EXPECT_TRUE((*file)->Read(begin, absl::MakeSpan(documents.back()), INT32_MAX).ok());
  }
  return documents;
}

std::vector<int32_t> Bytes(const std::string& text) {
  std::vector<int32_t> ids;
  ByteTokenizer().Encode(text, false, &ids);
  return ids;
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TokenizeOptions Lines(const TempDir& dir, const std::vector<std::string>& inputs) {
  TokenizeOptions options;
  options.inputs = inputs;
  options.text.rule = DocumentRule::kLine;
  options.output = dir.File("out/corpus");
  return options;
}

TEST(Tokenize, EmptyDocumentsAreDroppedAndCountedFirstMiddleAndLast) {
  TempDir dir;
  const ByteTokenizer tokenizer;
  for (const bool eos : {false, true}) {
    for (const bool bos : {false, true}) {
      TokenizeOptions options = Lines(dir, {dir.Write("a.txt", "\na\n   \n\nbc\n\n")});
      options.append_eos = eos, options.add_bos = bos, options.overwrite = true;
      const auto report = TokenizeCorpus(tokenizer, options);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->empty_documents, 3);
      Documents expected;
      for (const char* text : {"a", "   ", "bc"}) {
        expected.push_back(Bytes(absl::StrCat(bos ? "<s>" : "", text, eos ? "</s>" : "")));
      }
      EXPECT_EQ(ReadAll(options.output), expected);
      EXPECT_EQ(report->outputs[0].documents, 3);
      EXPECT_EQ(report->outputs[0].tokens, 6 + 3 * eos + 3 * bos);
      EXPECT_EQ(report->outputs[0].text_bytes, 6);
      const auto meta = ReadDatasetMeta(options.output + ".meta.json");
      ASSERT_TRUE(meta.ok() && meta->has_value()) << meta.status();
      EXPECT_EQ((*meta)->tokens, report->outputs[0].tokens);
      EXPECT_EQ((*meta)->documents, 3);
      EXPECT_EQ((*meta)->text_bytes, 6);
      EXPECT_EQ((*meta)->eos, eos ? 1 : -1);
      EXPECT_EQ((*meta)->bos, bos ? 0 : -1);
      EXPECT_EQ((*meta)->tokenizer, "bytes");
    }
  }
}

TEST(Tokenize, ExactlyOneBosAndOneEosEvenWhereTheTextSpellsThem) {
  TempDir dir;
  TokenizeOptions options = Lines(
      dir, {dir.Write("a.txt", "<s>a</s>\nb<s></s>c\n<s>\n</s>\n<s><s>d</s></s></s>\n<s><s>\n")});
  options.append_eos = options.add_bos = options.overwrite = true;
  ASSERT_TRUE(TokenizeCorpus(ByteTokenizer(), options).ok());
  EXPECT_EQ(ReadAll(options.output),
            (Documents{Bytes("<s>a</s>"), Bytes("<s>b<s></s>c</s>"), Bytes("<s></s>"),
                       Bytes("<s></s>"), Bytes("<s>d</s>"), Bytes("<s></s>")}));
  // Neither flag: the text stands as it is.
  options.append_eos = options.add_bos = false;
  ASSERT_TRUE(TokenizeCorpus(ByteTokenizer(), options).ok());
  EXPECT_EQ(ReadAll(options.output)[4], Bytes("<s><s>d</s></s></s>"));
}

TEST(Tokenize, WithoutSuchTokensTheTokenizerMakesEosAndBosErrors) {
  class Bare : public ByteTokenizer {
    const Specials& specials() const override { return none_; }
    Specials none_;
  };
  TempDir dir;
  TokenizeOptions options = Lines(dir, {dir.Write("a.txt", "a\n")});
  options.append_eos = true;
  EXPECT_THAT(std::string(TokenizeCorpus(Bare(), options).status().message()),
              AllOf(HasSubstr("no EOS"), HasSubstr("leave --append-eos out")));
  options.append_eos = false, options.add_bos = true;
  EXPECT_THAT(std::string(TokenizeCorpus(Bare(), options).status().message()),
              AllOf(HasSubstr("no BOS"), HasSubstr("leave --add-bos out")));
}

TEST(Tokenize, OrderAndBytesDoNotDependOnThreadsOrBlockSizes) {
  TempDir dir;
  std::string a, b;
  Documents expected;
  for (int i = 0; i < 5000; ++i) {
    const std::string line =
        absl::StrCat("document ", i, std::string(static_cast<size_t>(i % 97), 'x'));
    (i < 3000 ? a : b) += line + "\n";
    expected.push_back(Bytes(line));
  }
  TokenizeOptions options = Lines(dir, {dir.Write("a.txt", a), dir.Write("b.txt.gz", Gzip(b))});
  options.overwrite = true;
  std::string first;
  for (const int threads : {1, 2, 8}) {
    for (const int64_t block : {int64_t{100}, int64_t{5000}, int64_t{1} << 20}) {
      options.threads = threads, options.text.block_bytes = block;
      int64_t last_done = 0;
      options.progress = [&](int64_t done, int64_t total, int64_t) {
        EXPECT_GE(done, last_done);
        EXPECT_LE(done, total);
        last_done = done;
      };
      const auto report = TokenizeCorpus(ByteTokenizer(), options);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->text.file_bytes, last_done);
      const std::string files = Slurp(options.output + ".bin") + Slurp(options.output + ".idx");
      if (first.empty()) first = files;
      EXPECT_EQ(files, first);
    }
  }
  EXPECT_EQ(ReadAll(options.output), expected);
}

TEST(Tokenize, TheFirstFaultInTheTextIsReportedWhateverTheThreadsAndNothingIsLeft) {
  TempDir dir;
  std::string text;
  for (int i = 1; i <= 3000; ++i) text += i % 700 == 0 ? "bad \xff\n" : "good line\n";
  TokenizeOptions options = Lines(dir, {dir.Write("a.txt", text)});
  options.text.block_bytes = 200;
  for (int round = 0; round < 10; ++round) {
    options.threads = 1 + round % 4;
    EXPECT_THAT(std::string(TokenizeCorpus(ByteTokenizer(), options).status().message()),
                HasSubstr("a.txt:700: byte"));
    EXPECT_THAT(Names(dir.File("out")), ElementsAre());
  }
  options.text.on_error = OnTextError::kSkip;
  const auto report = TokenizeCorpus(ByteTokenizer(), options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->text.skipped_documents, 4);
  EXPECT_EQ(report->outputs[0].documents, 2996);
  EXPECT_THAT(Names(dir.File("out")), ElementsAre("corpus.bin", "corpus.idx", "corpus.meta.json"));
}

TEST(Tokenize, AFaultyFileLateInTheListLeavesNothing) {
  TempDir dir;
  const std::string packed = Gzip(std::string(100000, 'z') + "\n");
  TokenizeOptions options = Lines(
      dir,
      {dir.Write("a.txt", "fine\n"), dir.Write("b.txt.gz", packed.substr(0, packed.size() - 4))});
  EXPECT_THAT(std::string(TokenizeCorpus(ByteTokenizer(), options).status().message()),
              AllOf(HasSubstr("b.txt.gz"), HasSubstr("ends inside")));
  EXPECT_THAT(Names(dir.File("out")), ElementsAre());
}

TEST(Tokenize, AnExistingOutputIsKeptUnlessOverwriteIsAskedFor) {
  TempDir dir;
  TokenizeOptions options = Lines(dir, {dir.Write("a.txt", "one\n")});
  ASSERT_TRUE(TokenizeCorpus(ByteTokenizer(), options).ok());
  dir.Write("a.txt", "two\n");
  const auto refused = TokenizeCorpus(ByteTokenizer(), options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadAll(options.output), Documents{Bytes("one")});
  options.overwrite = true;
  ASSERT_TRUE(TokenizeCorpus(ByteTokenizer(), options).ok());
  EXPECT_EQ(ReadAll(options.output), Documents{Bytes("two")});
}

TEST(Tokenize, OnlyEmptyInputIsAnErrorEmptyShardsAreNot) {
  TempDir dir;
  TokenizeOptions options = Lines(dir, {dir.Write("a.txt", ""), dir.Write("b.jsonl", "\n")});
  EXPECT_THAT(std::string(TokenizeCorpus(ByteTokenizer(), options).status().message()),
              HasSubstr("not one document"));
  EXPECT_THAT(Names(dir.File("out")), ElementsAre());
  options.inputs.push_back(dir.Write("c.txt", "x\n"));
  const auto report = TokenizeCorpus(ByteTokenizer(), options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->text.empty_files.size(), 2u);
}

TEST(Tokenize, ValidationDocumentsAreChosenByTheirTextAlone) {
  TempDir dir;
  std::string text, more;
  for (int i = 0; i < 4000; ++i) text += absl::StrCat("document number ", i, "\n");
  for (int i = 0; i < 4000; ++i) more += absl::StrCat("other ", i, "\n");
  TokenizeOptions options = Lines(dir, {dir.Write("a.txt", text)});
  options.validation_fraction = 0.1;
  auto report = TokenizeCorpus(ByteTokenizer(), options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->outputs[0].documents + report->outputs[1].documents, 4000);
  EXPECT_NEAR(static_cast<double>(report->outputs[1].documents), 400, 4 * std::sqrt(4000 * 0.09));
  const Documents valid = ReadAll(options.output + "-valid");
  options.inputs = {dir.Write("b.txt", more), dir.File("a.txt")};
  options.overwrite = true;
  ASSERT_TRUE(TokenizeCorpus(ByteTokenizer(), options).ok());
  const Documents grown = ReadAll(options.output + "-valid");
  EXPECT_TRUE(std::equal(valid.rbegin(), valid.rend(), grown.rbegin()));
}

TEST(Tokenize, IdsRoundTripAtEveryBoundaryOfThe16BitType) {
  TempDir dir;
  for (const int32_t vocab : {65499, 65500, 65535, 65536, 65537, 151936}) {
    TokenizeOptions options =
        Lines(dir, {dir.Write("a.txt", absl::StrCat("x#", vocab - 1, ";y\n"))});
    options.overwrite = true;
    const auto report = TokenizeCorpus(ByteTokenizer(vocab), options);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->token_type, vocab < 65500 ? "uint16" : "int32");
    EXPECT_EQ(ReadAll(options.output), (Documents{{8 + 'x', vocab - 1, 8 + 'y'}}));
  }
}

// Refuses to write beyond a number of bytes, like a full disk.
class SmallDisk : public FileSystem {
 public:
  explicit SmallDisk(int64_t room) : room_(room) {}
  absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path) override {
    auto file = FileSystem::Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*std::move(file), path, &room_);
  }

 private:
  class File : public AtomicFile {
   public:
    File(std::unique_ptr<AtomicFile> file, std::string path, int64_t* room)
        : file_(std::move(file)), path_(std::move(path)), room_(room) {}
    absl::Status Append(absl::string_view bytes) override {
      *room_ -= static_cast<int64_t>(bytes.size());
      if (*room_ < 0)
        return absl::ResourceExhaustedError(path_ + ": cannot write: No space left on device");
      return file_->Append(bytes);
    }
    absl::Status WriteAt(int64_t offset, absl::string_view bytes) override {
      return file_->WriteAt(offset, bytes);
    }
    absl::Status Commit() override {
      if (*room_ < 1)
        return absl::ResourceExhaustedError(path_ + ": cannot sync: No space left on device");
      return file_->Commit();
    }
    int64_t size() const override { return file_->size(); }

   private:
    std::unique_ptr<AtomicFile> file_;
    std::string path_;
    int64_t* room_;
  };
  int64_t room_;
};

TEST(Tokenize, AFullDiskIsAClearErrorAndTheEarlierDatasetStays) {
  TempDir dir;
  TokenizeOptions options = Lines(dir, {dir.Write("a.txt", "earlier\n")});
  ASSERT_TRUE(TokenizeCorpus(ByteTokenizer(), options).ok());
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "some text\n";
  options.inputs = {dir.Write("b.txt", text)};
  options.overwrite = true;
  const int64_t needed = 2 * 9 * 1000 + 34 + 12 * 1000 + 8 * 1001;
  int failures = 0;
  for (int64_t room = 0; room < needed + 400; room += 97) {
    SmallDisk disk(room);
    const auto report = TokenizeCorpus(ByteTokenizer(), options, disk);
    if (report.ok()) {
      EXPECT_GT(room, needed);
      EXPECT_EQ(ReadAll(options.output).size(), 1000u);
      EXPECT_GT(failures, 300);
      return;
    }
    ++failures;
    EXPECT_EQ(report.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(report.status().message()), HasSubstr("No space left"));
    ASSERT_EQ(ReadAll(options.output), Documents{Bytes("earlier")}) << room;
    EXPECT_THAT(Names(dir.File("out")),
                ElementsAre("corpus.bin", "corpus.idx", "corpus.meta.json"));
  }
  FAIL() << "never fitted";
}

TEST(Tokenize, RealTokenizersGiveEachDocumentItsIdsAndExactlyOneBosAndEos) {
  if (FixturesDir().empty()) GTEST_SKIP() << "no fixtures: set TRANCHE_SHARED";
  TempDir dir;
  for (const char* name : {"phi-2", "llama2"}) {
    const auto tokenizer = Tokenizer::Load(FixturesDir() + "/tokenizers/" + name);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const Tokenizer::Specials& specials = (*tokenizer)->specials();
    const std::string bos = (*tokenizer)->IdToToken(specials.bos);
    TokenizeOptions options =
        Lines(dir, {FixturesDir() + "/text/nl.txt", dir.Write("a.txt", bos + " hello\n" + bos)});
    options.append_eos = options.add_bos = options.overwrite = true;
    const auto report = TokenizeCorpus(**tokenizer, options);
    ASSERT_TRUE(report.ok()) << report.status();
    const Documents documents = ReadAll(options.output);
    size_t d = 0;
    for (const std::string& input : options.inputs) {
      std::istringstream lines(Slurp(input));
      for (std::string line; std::getline(lines, line);) {
        std::vector<int32_t> expected;
        (*tokenizer)->Encode(line, /*add_special=*/false, &expected);
        if (expected.empty()) continue;
        if (expected.front() != specials.bos) expected.insert(expected.begin(), specials.bos);
        if (expected.back() != specials.eos) expected.push_back(specials.eos);
        ASSERT_LT(d, documents.size());
        ASSERT_EQ(documents[d++], expected) << line;
      }
    }
    EXPECT_EQ(d, documents.size());
    EXPECT_EQ(documents[d - 2].front(), specials.bos);
    EXPECT_NE(documents[d - 2][1], specials.bos);
  }
}

}  // namespace
}  // namespace tranche
