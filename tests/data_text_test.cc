// Text files become exactly the documents they hold, or an error that says where.
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "data/text_reader.h"
#include "data_test_files.h"
#include "gmock/gmock.h"

namespace tranche {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Reading {
  absl::Status status;
  std::vector<std::string> documents;
  TextStats stats;
};

Reading Read(const std::vector<std::string>& inputs, const TextOptions& options = {}) {
  Reading reading;
  auto reader = TextReader::Open(inputs, options);
  reading.status = reader.status();
  if (!reader.ok()) return reading;
  std::string document;
  for (;;) {
    const auto more = (*reader)->Next(&document);
    reading.status = more.status();
    if (!more.ok() || !*more) break;
    reading.documents.push_back(document);
  }
  reading.stats = (*reader)->stats();
  return reading;
}

TextOptions Rule(DocumentRule rule, OnTextError on_error = OnTextError::kStop) {
  TextOptions options;
  options.rule = rule;
  options.on_error = on_error;
  return options;
}

TEST(TextReader, CutsDocumentsByEachRuleWithAndWithoutFinalNewline) {
  TempDir dir;
  for (const char* end : {"", "\n"}) {
    SCOPED_TRACE(end);
    const std::string text = dir.Write("a.txt", absl::StrCat("one\ntwo\n\n \t\n%\n\nthree", end));
    EXPECT_THAT(Read({text}, Rule(DocumentRule::kBlankLine)).documents,
                ElementsAre("one\ntwo", "%", "three"));
    EXPECT_THAT(Read({text}, Rule(DocumentRule::kLine)).documents,
                ElementsAre("one", "two", "", " \t", "%", "", "three"));
    EXPECT_THAT(Read({text}, Rule(DocumentRule::kSeparator)).documents,
                ElementsAre("one\ntwo\n\n \t", "\nthree"));
    EXPECT_THAT(Read({text}, Rule(DocumentRule::kFile)).documents,
                ElementsAre(absl::StrCat("one\ntwo\n\n \t\n%\n\nthree", end)));
  }
}

TEST(TextReader, SeparatorAtTheEndsMakesEmptyDocumentsOnlyBeforeIt) {
  TempDir dir;
  const std::string text = dir.Write("f", "%\na\n%\n%\nb\n%\n");
  EXPECT_THAT(Read({text}, Rule(DocumentRule::kSeparator)).documents,
              ElementsAre("", "a", "", "b"));
}

TEST(TextReader, OnlyLineFeedAndCarriageReturnLineFeedEndLines) {
  TempDir dir;
  const std::string odd =
      "a\xe2\x80\xa8"
      "b\xe2\x80\xa9"
      "c\xc2\x85"
      "d\ve\ff\rg";
  std::string with_nul = "h";
  with_nul += '\0';
  with_nul += "i";
  const std::string text = dir.Write("a.txt", odd + "\r\n" + with_nul + "\r\nlast\r");
  EXPECT_THAT(Read({text}, Rule(DocumentRule::kLine)).documents,
              ElementsAre(odd, with_nul, "last\r"));
  // A line of "\r\n" is blank; a lone \r is a character.
  const std::string crlf = dir.Write("b.txt", "a\r\nb\r\n\r\nc\r\n\r\r\nd");
  EXPECT_THAT(Read({crlf}, Rule(DocumentRule::kBlankLine)).documents,
              ElementsAre("a\r\nb", "c\r\n\r\r\nd"));
}

TEST(TextReader, ConsumesEveryByteOfEveryFileWhateverTheReadAndBlockBoundaries) {
  TempDir dir;
  std::string text, expected_joined;
  uint32_t state = 1;
  int64_t documents = 0;
  for (int i = 0; i < 30000; ++i) {
    state = state * 1664525u + 1013904223u;
    const std::string line(1 + (state >> 24) % 80, static_cast<char>('a' + i % 26));
    text += line + "\n";
    expected_joined += line;
    if ((state >> 10) % 4 == 0) text += "\n", expected_joined += "|", ++documents;
  }
  text += "end\n";
  expected_joined += "end|";
  ++documents;
  const std::string plain = dir.Write("a.txt", text);
  const std::string packed = dir.Write("b.txt.gz", Gzip(text));
  for (const int64_t block_bytes : {int64_t{1}, int64_t{777}, int64_t{1} << 20}) {
    TextOptions options;
    options.block_bytes = block_bytes;
    for (const std::string& path : {plain, packed}) {
      const Reading reading = Read({path}, options);
      ASSERT_TRUE(reading.status.ok()) << reading.status;
      std::string joined;
      for (const std::string& document : reading.documents) {
        for (const char c : document) {
          if (c != '\n') joined += c;
        }
        joined += '|';
      }
      EXPECT_EQ(joined, expected_joined);
      EXPECT_EQ(reading.stats.documents, documents);
      EXPECT_EQ(reading.stats.file_bytes, static_cast<int64_t>(std::filesystem::file_size(path)));
    }
  }
}

TEST(TextReader, InvalidUtf8StopsWithFileLineAndByteOrIsSkippedOrReplacedAndCounted) {
  TempDir dir;
  const struct {
    std::string bytes, replaced;
    int64_t count;
  } cases[] = {
      {"\xff", "\xef\xbf\xbd", 1},
      {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd", 2},
      {"\xe2\x82", "\xef\xbf\xbd", 1},
      {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 3},
      {"caf\xe9 au lait", "caf\xef\xbf\xbd au lait", 1},  // Latin-1
      {"\xf5\x80", "\xef\xbf\xbd\xef\xbf\xbd", 2},
  };
  for (const auto& c : cases) {
    const std::string path = dir.Write("a.txt", "good\nline\n\nfine\n" + c.bytes);
    const size_t bad = ("good\nline\n\nfine\n" + c.bytes).find_first_of("\xff\xc0\xe2\xed\xe9\xf5");
    const Reading stopped = Read({path});
    EXPECT_EQ(stopped.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(stopped.status.message()),
                AllOf(HasSubstr(absl::StrCat(path, ":5: byte ", bad, ": not valid UTF-8"))));
    const Reading skipped = Read({path}, Rule(DocumentRule::kBlankLine, OnTextError::kSkip));
    EXPECT_TRUE(skipped.status.ok()) << skipped.status;
    EXPECT_THAT(skipped.documents, ElementsAre("good\nline"));
    EXPECT_EQ(skipped.stats.skipped_documents, 1);
    EXPECT_THAT(skipped.stats.first_skipped, HasSubstr("a.txt:5: byte"));
    const Reading replaced = Read({path}, Rule(DocumentRule::kBlankLine, OnTextError::kReplace));
    EXPECT_THAT(replaced.documents, ElementsAre("good\nline", "fine\n" + c.replaced));
    EXPECT_EQ(replaced.stats.replaced_sequences, c.count);
    EXPECT_EQ(replaced.stats.file_bytes, static_cast<int64_t>(std::filesystem::file_size(path)));
  }
}

TEST(TextReader, NamesUtf16AndGzipUnderAnotherNameAndDropsTheUtf8Mark) {
  TempDir dir;
  for (const std::string& mark : {std::string("\xff\xfe"
                                              "a\0",
                                              4),
                                  std::string("\xfe\xff\0a", 4)}) {
    const Reading reading =
        Read({dir.Write("a.txt", mark)}, Rule(DocumentRule::kLine, OnTextError::kSkip));
    EXPECT_THAT(std::string(reading.status.message()),
                AllOf(HasSubstr("a.txt"), HasSubstr("UTF-16")));
  }
  // Other wide encodings, marked or not, compressed or not; a few NULs alone are text.
  const auto wide = [](absl::string_view text, size_t unit, bool big) {
    std::string bytes;
    for (const char c : text) {
      std::string padded(unit, '\0');
      padded[big ? unit - 1 : 0] = c;
      bytes += padded;
    }
    return bytes;
  };
  const std::pair<std::string, std::string> cases[] = {
      {wide("hello there", 2, false), "is UTF-16LE"},
      {wide("hello there", 2, true), "is UTF-16BE"},
      {std::string("\xff\xfe\0\0", 4) + wide("hi", 4, false), "is UTF-32"},
      {std::string("\0\0\xfe\xff", 4) + wide("hi", 4, true), "is UTF-32"}};
  for (const auto& [bytes, name] : cases) {
    for (const OnTextError on_error :
         {OnTextError::kStop, OnTextError::kSkip, OnTextError::kReplace}) {
      for (const std::string& path : {dir.Write("w.txt", bytes), dir.Write("w.jsonl", bytes),
                                      dir.Write("w.txt.gz", Gzip(bytes))}) {
        EXPECT_THAT(std::string(Read({path}, Rule(DocumentRule::kLine, on_error)).status.message()),
                    AllOf(HasSubstr(path), HasSubstr(name)));
      }
    }
  }
  const std::string nuls("a\0b\0c\0d\0ef", 10);
  EXPECT_THAT(Read({dir.Write("n.txt", nuls)}).documents, ElementsAre(nuls));
  EXPECT_THAT(std::string(Read({dir.Write("a.txt", Gzip("x"))}).status.message()),
              HasSubstr("gzip"));
  EXPECT_THAT(Read({dir.Write("a.txt", "\xef\xbb\xbfx\n")}).documents, ElementsAre("x"));
  EXPECT_THAT(Read({dir.Write("a.jsonl", "\xef\xbb\xbf{\"text\":\"y\"}")}).documents,
              ElementsAre("y"));
  EXPECT_THAT(Read({dir.Write("a.txt", "\xef\xbb\xbf")}).documents, IsEmpty());
}

TEST(TextReader, ReadsEveryMemberOfAGzipFile) {
  TempDir dir;
  const std::string members = Gzip("one\ntwo\n") + Gzip("") + Gzip("three\n");
  const TextOptions lines = Rule(DocumentRule::kLine);
  EXPECT_THAT(Read({dir.Write("a.txt.gz", members)}, lines).documents,
              ElementsAre("one", "two", "three"));
  const Reading padded = Read({dir.Write("a.txt.gz", members + std::string(16, '\0'))}, lines);
  EXPECT_THAT(padded.documents, ElementsAre("one", "two", "three"));
  EXPECT_EQ(padded.stats.file_bytes, static_cast<int64_t>(members.size()) + 16);
  // Padding between members too, as block devices leave it.
  EXPECT_THAT(Read({dir.Write("a.txt.gz", Gzip("one\n") + std::string(70000, '\0') + Gzip("two\n") +
                                              std::string(16, '\0'))},
                   lines)
                  .documents,
              ElementsAre("one", "two"));
  for (const std::string& garbage : {std::string("x"), std::string(300000, '\0') + "x"}) {
    const Reading reading = Read({dir.Write("a.txt.gz", members + garbage)}, lines);
    EXPECT_THAT(std::string(reading.status.message()),
                AllOf(HasSubstr("a.txt.gz: at byte "), HasSubstr("garbage")));
  }
  for (size_t cut = 1; cut < Gzip("three\n").size(); ++cut) {
    const Reading reading =
        Read({dir.Write("a.txt.gz", members.substr(0, members.size() - cut))}, lines);
    EXPECT_THAT(std::string(reading.status.message()),
                AllOf(HasSubstr(absl::StrCat("a.txt.gz: at byte ", members.size() - cut)),
                      HasSubstr("ends inside")))
        << cut;
  }
  EXPECT_THAT(std::string(Read({dir.Write("a.txt.gz", "plain text\n")}).status.message()),
              HasSubstr("not gzip data"));
}

TEST(TextReader, DamagedGzipIsAnErrorWithTheOffsetNeverAnEarlyEnd) {
  TempDir dir;
  std::string text;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&text, "line ", i * i, "\n");
  const std::string good = Gzip(text);
  uint32_t state = 7;
  for (int i = 0; i < 300; ++i) {
    state = state * 1664525u + 1013904223u;
    std::string bad = good;
    // Behind the ten bytes of header, whose time and flags may change without harm.
    bad[10 + (state >> 8) % (bad.size() - 10)] ^= static_cast<char>(1 << (state >> 29));
    const Reading reading = Read({dir.Write("a.txt.gz", bad)}, Rule(DocumentRule::kLine));
    EXPECT_FALSE(reading.status.ok());
    EXPECT_THAT(std::string(reading.status.message()), HasSubstr("a.txt.gz: at byte "));
  }
}

TEST(TextReader, EmptyShardsAreCountedAndListedNotFatal) {
  TempDir dir;
  const std::string a = dir.Write("a.jsonl", ""), b = dir.Write("b.jsonl", "\n"),
                    c = dir.Write("c.jsonl", "{\"text\":\"x\"}"), d = dir.Write("d.txt", "\n\n"),
                    e = dir.Write("e.txt.gz", ""), f = dir.Write("f.txt.gz", Gzip(""));
  const Reading reading = Read({a, b, c, d, e, f});
  EXPECT_TRUE(reading.status.ok()) << reading.status;
  EXPECT_THAT(reading.documents, ElementsAre("x"));
  EXPECT_EQ(reading.stats.files, 6);
  EXPECT_THAT(reading.stats.empty_files, ElementsAre(a, b, d, e, f));
}

TEST(TextReader, JsonLinesGiveTheirFieldOrSayWhichLineIsWrong) {
  TempDir dir;
  TextOptions options;
  options.json_field = "body";
  const std::string good =
      "{\"id\":[1,{\"body\":2}],\"body\":\"caf\\u00e9 "
      "\\ud83d\\ude00\\n\",\"x\":{\"body\":\"no\"}}\n";
  EXPECT_THAT(Read({dir.Write("a.jsonl", good + "\r\n{\"body\":\"\"}\n")}, options).documents,
              ElementsAre("caf\xc3\xa9 \xf0\x9f\x98\x80\n", ""));
  for (const char* bad :
       {"{\"body\":\"a\"", "{\"body\":\"a\"} x", "{\"body\":1}", "{\"body\":null}",
        "{\"body\":[\"a\"]}", "{\"Body\":\"a\"}", "[\"body\"]", "\"body\"", "{}",
        "{\"body\":\"a\",\"body\":\"b\"}", "{\"body\":\"\\ud800\"}", "{\"body\":\"a\",}",
        "{\"body\":\"\xff\"}", "null", "{\"x\":{\"body\":\"a\"}}"}) {
    const std::string path = dir.Write("a.jsonl", good + bad + "\n" + good);
    const Reading stopped = Read({path}, options);
    EXPECT_EQ(stopped.documents.size(), 0u) << bad;
    EXPECT_THAT(std::string(stopped.status.message()), HasSubstr(absl::StrCat(path, ":2: ")))
        << bad;
    options.on_error = OnTextError::kSkip;
    const Reading skipped = Read({path}, options);
    EXPECT_TRUE(skipped.status.ok()) << bad << skipped.status;
    EXPECT_EQ(skipped.documents.size(), 2u) << bad;
    EXPECT_EQ(skipped.stats.skipped_documents, 1) << bad;
    options.on_error = OnTextError::kStop;
  }
}

TEST(TextReader, DeeplyNestedJsonNeitherCrashesNorHangs) {
  TempDir dir;
  const std::string deep(1000000, '[');
  EXPECT_FALSE(Read({dir.Write("a.jsonl", "{\"text\":" + deep)}).status.ok());
  EXPECT_FALSE(Read({dir.Write("a.jsonl", deep)}).status.ok());
  EXPECT_THAT(Read({dir.Write("a.jsonl",
                              "{\"a\":" + deep + std::string(1000000, ']') + ",\"text\":\"x\"}")})
                  .documents,
              ElementsAre("x"));
}

TEST(TextReader, ADocumentBeyondTheLimitIsRefusedWithItsLine) {
  TempDir dir;
  TextOptions options;
  options.max_document_bytes = 1 << 20;
  const std::string path = dir.Write("a.txt.gz", Gzip("a\n\n" + std::string(3 << 20, 'x')));
  EXPECT_THAT(std::string(Read({path}, options).status.message()),
              HasSubstr("a.txt.gz:3: a document of more"));
}

TEST(TextReader, InputsAreFilesFoldersAndGlobsInAStableOrder) {
  TempDir dir;
  dir.Write("in/b.txt", "b"), dir.Write("in/a.txt", "a"),
      dir.Write("in/sub/c.jsonl", "{\"text\":\"c\"}");
  dir.Write("in/d.txt.gz", Gzip("d")), dir.Write("in/notes.pdf", "no"), dir.Write("odd[1]", "odd");
  EXPECT_THAT(Read({dir.File("in")}).documents, ElementsAre("a", "b", "d", "c"));
  EXPECT_THAT(Read({dir.File("in/*.txt")}).documents, ElementsAre("a", "b"));
  EXPECT_THAT(Read({dir.File("in/b.txt"), dir.File("in/[ab].txt")}).documents,
              ElementsAre("b", "a", "b"));
  EXPECT_THAT(Read({dir.File("odd[1]"), dir.File("in/notes.pdf")}).documents,
              ElementsAre("odd", "no"));
  dir.Write("none/x.pdf", "");
  EXPECT_THAT(std::string(Read({dir.File("none")}).status.message()), HasSubstr("no .txt"));
  EXPECT_THAT(std::string(Read({dir.File("*.zip")}).status.message()),
              HasSubstr("no file matches"));
  EXPECT_THAT(std::string(Read({dir.File("gone.txt")}).status.message()),
              HasSubstr("no such file"));
  EXPECT_FALSE(Read({}).status.ok());
}

}  // namespace
}  // namespace tranche
