// Safetensors: each row of pitfalls.md's table, what is no safetensors file at all, and a writer
// whose bytes equal the reference library's.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/safetensors.h"
#include "model_format_fixtures.h"

namespace tranche {
namespace {

using testing::HasSubstr;

constexpr char kA[] = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
constexpr char kB[] = R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]})";

std::string Zeros(size_t count) { return std::string(count, '\0'); }

struct Row {
  const char* what;
  std::string header;
  std::string data;
  bool accepted;
};

// Header of `entries` between braces.
Row MakeRow(const char* what, std::vector<std::string> entries, size_t data, bool accepted) {
  return {what, absl::StrCat("{", absl::StrJoin(entries, ","), "}"), Zeros(data), accepted};
}

std::vector<Row> Table() {
  const std::string good = absl::StrCat("{", kA, ",", kB, "}");
  std::vector<Row> rows = {
      {"padded with spaces", good + "     ", Zeros(12), true},
      {"padded with newlines", good + "\n\n", Zeros(12), true},
      {"leading space", "  " + good, Zeros(12), true},
      {"padded with NUL", good + std::string(2, '\0'), Zeros(12), false},
      {"NUL inside a name",
       R"({"a)" + std::string(1, '\0') + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       Zeros(8), false},
      {"byte-order mark", "\xef\xbb\xbf" + good, Zeros(12), false},
      {"trailing text", good + "x", Zeros(12), false},
      {"two objects", good + good, Zeros(12), false},
      {"empty header", "", "", false},
      {"only spaces", "    ", "", false},
      {"a list", "[]", "", false},
      {"a number", "5", "", false},
      {"null", "null", "", false},
      {"unclosed", good.substr(0, good.size() - 1), Zeros(12), false},
      {"trailing comma", absl::StrCat("{", kA, ",}"), Zeros(8), false},
      {"invalid UTF-8", "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
       Zeros(8), false},
  };
  const auto add = [&](const char* what, std::vector<std::string> entries, size_t data,
                       bool accepted) {
    rows.push_back(MakeRow(what, std::move(entries), data, accepted));
  };
  add("names in another order", {kB, kA}, 12, true);
  add("bytes after the last", {kA, kB}, 16, false);
  add("bytes missing", {kA, kB}, 11, false);
  add("hole", {kA, R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]})"}, 16, false);
  add("hole at the start", {kB}, 12, false);
  add("overlap", {kA, R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})"}, 8, false);
  add("two names on one range", {kA, R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})"}, 8,
      false);
  add("metadata {}", {R"("__metadata__":{})", kA}, 8, true);
  add("metadata null", {R"("__metadata__":null)", kA}, 8, true);
  add("metadata only", {R"("__metadata__":{"format":"pt"})"}, 0, true);
  add("nothing", {}, 0, true);
  add("metadata with a number", {R"("__metadata__":{"n":1})", kA}, 8, false);
  add("metadata with null", {R"("__metadata__":{"n":null})", kA}, 8, false);
  add("metadata with an object", {R"("__metadata__":{"n":{}})", kA}, 8, false);
  add("metadata with a list", {R"("__metadata__":{"n":["x"]})", kA}, 8, false);
  add("metadata as a list", {R"("__metadata__":[])", kA}, 8, false);
  add("metadata as a string", {R"("__metadata__":"pt")", kA}, 8, false);
  add("metadata twice", {R"("__metadata__":{})", R"("__metadata__":{})", kA}, 8, false);
  add("0-d", {R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]})"}, 4, true);
  add("zero size first", {R"("z":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]})", kA}, 8,
      true);
  add("two of zero size at one offset",
      {R"("z":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]})", kA,
       R"("y":{"dtype":"I64","shape":[0],"data_offsets":[8,8]})"},
      8, true);
  add("zero size at a hole", {R"("z":{"dtype":"F32","shape":[0],"data_offsets":[4,4]})", kA}, 8,
      false);
  add("name twice, same range", {kA, kA}, 8, false);
  add("name twice, zero size", {R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})", kA}, 8,
      false);
  add("extra field", {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"}, 8, true);
  add("extra field that nests",
      {R"("a":{"x":{"dtype":[1,{"q":null}],"k":"v"},"dtype":"F32","y":[[{}]],"shape":[2],"data_offsets":[0,8]})"},
      8, true);
  add("dtype twice", {R"("a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})"}, 8,
      false);
  add("shape twice", {R"("a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})"}, 8,
      false);
  add("offsets twice",
      {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"data_offsets":[0,8]})"}, 8, false);
  add("no dtype", {R"("a":{"shape":[2],"data_offsets":[0,8]})"}, 8, false);
  add("no shape", {R"("a":{"dtype":"F32","data_offsets":[0,8]})"}, 8, false);
  add("no offsets", {R"("a":{"dtype":"F32","shape":[2]})"}, 8, false);
  add("I64, BOOL, F64, unaligned",
      {R"("i":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]})",
       R"("j":{"dtype":"I64","shape":[1],"data_offsets":[1,9]})",
       R"("k":{"dtype":"F64","shape":[1],"data_offsets":[9,17]})"},
      17, true);
  add("4-bit pairs", {R"("a":{"dtype":"F4","shape":[2,2],"data_offsets":[0,2]})"}, 2, true);
  add("4-bit odd", {R"("a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]})"}, 2, false);
  add("unknown dtype", {R"("a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]})"}, 8, false);
  add("dtype as a number", {R"("a":{"dtype":5,"shape":[2],"data_offsets":[0,8]})"}, 8, false);
  add("shape product overflows",
      {R"("a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"}, 0, false);
  add("bits overflow", {R"("a":{"dtype":"F32","shape":[576460752303423488],"data_offsets":[0,0]})"},
      0, false);
  add("negative shape", {R"("a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"}, 8, false);
  add("fractional shape", {R"("a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"}, 8, false);
  add("shape beyond 64 bits",
      {R"("a":{"dtype":"F32","shape":[18446744073709551617],"data_offsets":[0,8]})"}, 8, false);
  add("shape of 64 bits",
      {R"("a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"}, 8, false);
  add("shape as an object", {R"("a":{"dtype":"F32","shape":{},"data_offsets":[0,8]})"}, 8, false);
  add("nested shape", {R"("a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})"}, 8, false);
  add("string in shape", {R"("a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]})"}, 8, false);
  add("one offset", {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8]})"}, 8, false);
  add("three offsets", {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})"}, 8, false);
  add("offsets reversed", {R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]})"}, 8, false);
  add("offsets beyond the file",
      {R"("a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,18446744073709551615]})"},
      8, false);
  add("size and range differ", {R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]})"}, 8,
      false);
  add("tensor as a list", {R"("a":[])"}, 0, false);
  add("tensor as null", {R"("a":null)"}, 0, false);
  add("tensor as a number", {R"("a":1)"}, 0, false);
  return rows;
}

TEST(Reader, DecidesEveryRowOfTheTableOfPitfalls) {
  const TestFolder folder;
  for (const Row& row : Table()) {
    folder.Write("x.safetensors", SafetensorsBytes(row.header, row.data));
    const auto file = SafetensorsFile::Open(folder.File("x.safetensors"));
    EXPECT_EQ(file.ok(), row.accepted) << row.what << ": " << file.status();
    if (file.ok()) continue;
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << row.what;
    EXPECT_THAT(std::string(file.status().message()),
                testing::AllOf(HasSubstr("x.safetensors: "), HasSubstr("again")))
        << row.what;
  }
}

TEST(Reader, SaysWhatAFileIsThatIsNoSafetensorsFile) {
  const TestFolder folder;
  const auto refusal = [&](absl::string_view bytes) {
    folder.Write("model.safetensors", bytes);
    const auto file = SafetensorsFile::Open(folder.File("model.safetensors"));
    EXPECT_FALSE(file.ok());
    return std::string(file.status().message());
  };
  EXPECT_THAT(
      refusal("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1048576\n"),
      HasSubstr("Git LFS pointer"));
  EXPECT_THAT(refusal(""), HasSubstr("empty"));
  EXPECT_THAT(refusal("abc"), HasSubstr("3 bytes"));
  EXPECT_THAT(refusal("\n <!DOCTYPE html>\n<html><body>404</body></html>"), HasSubstr("web page"));
  EXPECT_THAT(refusal("<HTML><head></head></HTML>"), HasSubstr("web page"));
  EXPECT_THAT(refusal("PK\x03\x04 and the rest"), HasSubstr("PyTorch"));
  EXPECT_THAT(refusal("\x80\x02\x8a\nl\xfc\x9c\x46 and the rest"), HasSubstr("PyTorch"));
  EXPECT_THAT(refusal(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8)),
              HasSubstr("9223372036854775807"));
  EXPECT_THAT(refusal(std::string("\x00\x01\x00\x00\x00\x00\x00\x00{}", 10)),
              HasSubstr("truncated"));
  EXPECT_FALSE(SafetensorsFile::Open(folder.path()).ok());
  EXPECT_EQ(SafetensorsFile::Open(folder.File("absent")).status().code(),
            absl::StatusCode::kNotFound);
}

// Its first bytes are then any two, those of archives and pickles among them.
TEST(Reader, ReadsHeadersOfEveryLength) {
  const TestFolder folder;
  std::string header = absl::StrCat("{", kA, ",", kB, "}");
  for (; header.size() <= 0x10100; header += header.size() < 0x600 ? " " : std::string(0x80, ' ')) {
    folder.Write("x.safetensors", SafetensorsBytes(header, Zeros(12)));
    const auto file = SafetensorsFile::Open(folder.File("x.safetensors"));
    ASSERT_TRUE(file.ok()) << header.size() << ": " << file.status();
  }
}

TEST(Reader, GivesEachTensorItsBytesInWhateverOrderTheHeaderHas) {
  const TestFolder folder;
  folder.Write(
      "x.safetensors",
      SafetensorsBytes(absl::StrCat(R"({"__metadata__":{"k":"v"},)", kB, ",", kA,
                                    R"(,"c":{"dtype":"U8","shape":[3,1],"data_offsets":[12,15]}})"),
                       "aaaaaaaabbbbccc"));
  const auto file = SafetensorsFile::Open(folder.File("x.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("a")->bytes, "aaaaaaaa");
  EXPECT_EQ(file->Find("b")->bytes, "bbbb");
  EXPECT_EQ(file->Find("c")->bytes, "ccc");
  EXPECT_EQ(file->Find("c")->type, TensorType::kU8);
  EXPECT_EQ(file->Find("c")->shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(file->Find("d"), nullptr);
  EXPECT_EQ(file->metadata(), (std::vector<std::pair<std::string, std::string>>{{"k", "v"}}));
}

TEST(Reader, DoesNotAllocateForDeepOrLongNonsense) {
  const TestFolder folder;
  std::string deep = R"({"a":{"x":)";
  deep.append(2'000'000, '[');
  folder.Write("x.safetensors", SafetensorsBytes(deep, ""));
  EXPECT_FALSE(SafetensorsFile::Open(folder.File("x.safetensors")).ok());
  std::string wide = R"({"a":{"dtype":"F32","shape":[1)";
  for (int i = 0; i < 1'000'000; ++i) wide += ",1";
  folder.Write("x.safetensors", SafetensorsBytes(wide + R"(],"data_offsets":[0,4]}})", Zeros(4)));
  const auto file = SafetensorsFile::Open(folder.File("x.safetensors"));
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("more than 64 numbers"));
}

// Writing.

absl::Status WriteAll(const std::string& path, const std::vector<RawTensor>& tensors,
                      const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::vector<TensorInfo> infos;
  std::map<std::string, std::string> bytes;
  for (const RawTensor& tensor : tensors) {
    TensorInfo info{tensor.name, TensorType::kBool, tensor.shape};
    while (tensor.dtype != Name(info.type))
      info.type = static_cast<TensorType>(static_cast<int>(info.type) + 1);
    infos.push_back(info);
    bytes[tensor.name] = tensor.bytes;
  }
  auto writer = SafetensorsWriter::Create(FileSystem::Real(), path, infos, metadata);
  if (!writer.ok()) return writer.status();
  for (const TensorInfo& info : writer->order()) {
    if (absl::Status status = writer->Append(bytes[info.name]); !status.ok()) return status;
  }
  return writer->Commit();
}

TEST(Writer, RewritesTheReferenceLibrarysFilesByteForByte) {
  const std::string parity = SharedPath("fixtures/parity");
  TRANCHE_SKIP_WITHOUT(parity);
  const TestFolder folder;
  int files = 0;
  const auto models = ListDir(parity);
  ASSERT_TRUE(models.ok()) << models.status();
  for (const std::string& model : *models) {
    for (const char* name : {"model.safetensors", "batch.safetensors", "expect.safetensors"}) {
      const std::string path = JoinPath(JoinPath(parity, model), name);
      if (!FileExists(path)) continue;
      const auto file = SafetensorsFile::Open(path);
      ASSERT_TRUE(file.ok()) << file.status();
      std::vector<RawTensor> tensors;
      for (const StoredTensor& tensor : file->tensors()) {
        tensors.push_back(
            {tensor.name, Name(tensor.type), tensor.shape, std::string(tensor.bytes)});
      }
      std::reverse(tensors.begin(), tensors.end());
      ASSERT_TRUE(WriteAll(folder.File("copy"), tensors, file->metadata()).ok());
      EXPECT_TRUE(MustRead(folder.File("copy")) == MustRead(path)) << path;
      ++files;
    }
  }
  EXPECT_GE(files, 30);
}

// The header that safetensors 0.8.0 wrote for one tensor of two elements of each type and one with
// an awkward name.
TEST(Writer, SortsTypesAndEscapesNamesAsTheReferenceDoes) {
  const TestFolder folder;
  std::vector<RawTensor> tensors;
  for (const char* type :
       {"BOOL",        "F4",          "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0",
        "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16", "F16",     "BF16",    "I32",
        "U32",         "F32",         "C64", "F64", "I64",     "U64"}) {
    RawTensor tensor{type, type, {2}, ""};
    TensorInfo info{type, TensorType::kBool, {2}};
    while (tensor.dtype != Name(info.type))
      info.type = static_cast<TensorType>(static_cast<int>(info.type) + 1);
    tensor.bytes = Zeros(ByteSize(info));
    tensors.push_back(tensor);
  }
  tensors.push_back({"a\n\"\xc3\xa9\x01\x7f", "F32", {3}, Zeros(12)});
  ASSERT_TRUE(WriteAll(folder.File("x"), tensors, {{"a", "b"}, {"format", "pt"}}).ok());
  const std::string expected =
      R"({"__metadata__":{"a":"b","format":"pt"},"U64":{"dtype":"U64","shape":[2],"data_offsets":[0,16]},)"
      R"("I64":{"dtype":"I64","shape":[2],"data_offsets":[16,32]},"F64":{"dtype":"F64","shape":[2],"data_offsets":[32,48]},)"
      R"("C64":{"dtype":"C64","shape":[2],"data_offsets":[48,64]},"F32":{"dtype":"F32","shape":[2],"data_offsets":[64,72]},)"
      "\"a\\n\\\"\xc3\xa9\\u0001\x7f\""
      R"(:{"dtype":"F32","shape":[3],"data_offsets":[72,84]},"U32":{"dtype":"U32","shape":[2],"data_offsets":[84,92]},)"
      R"("I32":{"dtype":"I32","shape":[2],"data_offsets":[92,100]},"BF16":{"dtype":"BF16","shape":[2],"data_offsets":[100,104]},)"
      R"("F16":{"dtype":"F16","shape":[2],"data_offsets":[104,108]},"U16":{"dtype":"U16","shape":[2],"data_offsets":[108,112]},)"
      R"("I16":{"dtype":"I16","shape":[2],"data_offsets":[112,116]},)"
      R"("F8_E5M2FNUZ":{"dtype":"F8_E5M2FNUZ","shape":[2],"data_offsets":[116,118]},)"
      R"("F8_E4M3FNUZ":{"dtype":"F8_E4M3FNUZ","shape":[2],"data_offsets":[118,120]},)"
      R"("F8_E8M0":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[120,122]},)"
      R"("F8_E4M3":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[122,124]},)"
      R"("F8_E5M2":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[124,126]},"I8":{"dtype":"I8","shape":[2],"data_offsets":[126,128]},)"
      R"("U8":{"dtype":"U8","shape":[2],"data_offsets":[128,130]},"F4":{"dtype":"F4","shape":[2],"data_offsets":[130,131]},)"
      R"("BOOL":{"dtype":"BOOL","shape":[2],"data_offsets":[131,133]}})";
  const std::string bytes = MustRead(folder.File("x"));
  EXPECT_EQ(bytes.substr(8, expected.size()), expected);
  EXPECT_EQ((bytes.size() - 133) % 8, 0u) << "the data is aligned";
  ASSERT_TRUE(WriteAll(folder.File("none"), {}, {}).ok());
  EXPECT_EQ(MustRead(folder.File("none")), SafetensorsBytes("{}      ", ""));
}

TEST(Writer, LeavesNothingWhenBytesAreMissing) {
  const TestFolder folder;
  {
    auto writer = SafetensorsWriter::Create(FileSystem::Real(), folder.File("x"),
                                            {{"a", TensorType::kF32, {2}}}, {});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->Append("1234").ok());
    EXPECT_FALSE(writer->Commit().ok());
  }
  EXPECT_TRUE(ListDir(folder.path())->empty());
}

}  // namespace
}  // namespace tranche
