// Token files: exactly what megatron-core, llm.c and nanoGPT mean, and an error for everything
// else.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "data/indexed_writer.h"
#include "data/token_file.h"
#include "data_test_files.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace tranche {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string Index(int code, const std::vector<int32_t>& lengths,
                  const std::vector<int64_t>& offsets, const std::vector<int64_t>& documents,
                  uint64_t version = 1) {
  std::string bytes("MMIDIDX\0\0", 9);
  bytes += Raw<uint64_t>({version}) + static_cast<char>(code);
  bytes += Raw<uint64_t>({lengths.size(), documents.size()});
  return bytes + Raw(lengths) + Raw(offsets) + Raw(documents);
}

absl::StatusOr<std::vector<int32_t>> ReadIds(const TokenFile& file, int64_t limit = INT32_MAX) {
  std::vector<int32_t> ids(static_cast<size_t>(file.num_tokens()));
  const absl::Status status = file.Read(0, absl::MakeSpan(ids), limit);
  if (!status.ok()) return status;
  return ids;
}

class MegatronFixture : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (FixturesDir().empty()) GTEST_SKIP() << "no fixtures: set TRANCHE_SHARED";
    prefix_ = FixturesDir() + "/megatron_indexed/docs_" + GetParam();
    const auto json = ReadJsonFile(FixturesDir() + "/megatron_indexed/expect.json");
    ASSERT_TRUE(json.ok()) << json.status();
    expect_ = (*json)[GetParam()];
  }
  std::string prefix_;
  nlohmann::json expect_;
};

TEST_P(MegatronFixture, IsReadAsMegatronCoreWroteIt) {
  const auto file = TokenFile::Open(prefix_, TokenFormat::kAuto, "auto");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(TokenTypeName((*file)->type()), GetParam());
  const auto& sequences = expect_["sequences"];
  const auto& documents = expect_["document_indices"];
  ASSERT_EQ((*file)->num_sequences(), static_cast<int64_t>(sequences.size()));
  ASSERT_EQ((*file)->num_documents() + 1, static_cast<int64_t>(documents.size()));
  for (int64_t s = 0; s < (*file)->num_sequences(); ++s) {
    const auto expected = sequences[static_cast<size_t>(s)].get<std::vector<int32_t>>();
    EXPECT_EQ((*file)->SequenceLength(s),
              expect_["sequence_lengths"][static_cast<size_t>(s)].get<int64_t>());
    std::vector<int32_t> ids(expected.size());
    ASSERT_TRUE((*file)->Read((*file)->SequenceBegin(s), absl::MakeSpan(ids), 65536).ok());
    EXPECT_EQ(ids, expected);
  }
  for (int64_t d = 0; d <= (*file)->num_documents(); ++d) {
    EXPECT_EQ((*file)->FirstSequence(d), documents[static_cast<size_t>(d)].get<int64_t>());
  }
  for (int64_t token = 0; token < (*file)->num_tokens(); ++token) {
    const int64_t d = (*file)->DocumentAt(token);
    EXPECT_LE((*file)->DocumentBegin(d), token);
    EXPECT_GT((*file)->DocumentBegin(d + 1), token);
  }
}

TEST_P(MegatronFixture, IsWrittenByteForByteTheSame) {
  TempDir dir;
  const TokenType type = TypeForVocabulary(std::string(GetParam()) == "uint16" ? 65499 : 65500);
  auto writer = IndexedWriter::Create(FileSystem::Real(), dir.File("copy"), type);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto documents = expect_["document_indices"].get<std::vector<size_t>>();
  for (size_t d = 0; d + 1 < documents.size(); ++d) {
    std::string bytes;
    std::vector<int64_t> lengths;
    for (size_t s = documents[d]; s < documents[d + 1]; ++s) {
      const auto ids = expect_["sequences"][s].get<std::vector<int32_t>>();
      AppendIds(ids, type, &bytes);
      lengths.push_back(static_cast<int64_t>(ids.size()));
    }
    ASSERT_TRUE((*writer)->AddDocument(bytes, lengths).ok());
  }
  ASSERT_TRUE((*writer)->Commit(nullptr).ok());
  EXPECT_EQ(Slurp(dir.File("copy.bin")), Slurp(prefix_ + ".bin"));
  EXPECT_EQ(Slurp(dir.File("copy.idx")), Slurp(prefix_ + ".idx"));
}

INSTANTIATE_TEST_SUITE_P(Types, MegatronFixture, ::testing::Values("uint16", "int32"));

TEST(Megatron, EveryIntegerTypeIsReadAndFloatsAndUnknownCodesAreRefused) {
  TempDir dir;
  const struct {
    int code;
    std::string bin;
  } good[] = {{1, Raw<uint8_t>({1, 2, 250})}, {2, Raw<int8_t>({1, 2, 25})},
              {3, Raw<int16_t>({1, 2, 250})}, {4, Raw<int32_t>({1, 2, 250})},
              {5, Raw<int64_t>({1, 2, 250})}, {8, Raw<uint16_t>({1, 2, 250})}};
  for (const auto& c : good) {
    const int64_t item = static_cast<int64_t>(c.bin.size()) / 3;
    dir.Write("a.bin", c.bin);
    dir.Write("a.idx", Index(c.code, {1, 2}, {0, item}, {0, 2}));
    const auto file = TokenFile::Open(dir.File("a.bin"), TokenFormat::kMegatron, "");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_THAT(*ReadIds(**file), ElementsAre(1, 2, c.code == 2 ? 25 : 250)) << c.code;
  }
  for (const int code : {0, 6, 7, 9, 255}) {
    dir.Write("a.bin", std::string(8, '\0'));
    dir.Write("a.idx", Index(code, {1}, {0}, {0, 1}));
    const auto file = TokenFile::Open(dir.File("a"), TokenFormat::kMegatron, "");
    EXPECT_THAT(std::string(file.status().message()),
                AllOf(HasSubstr("a.idx"), HasSubstr("type code"),
                      HasSubstr(code == 6 || code == 7 ? "float" : "unknown")));
  }
}

TEST(Megatron, EmptySequencesAndDocumentsKeepTheBordersRight) {
  TempDir dir;
  dir.Write("a.bin", Raw<uint16_t>({7, 8, 9}));
  dir.Write("a.idx", Index(8, {0, 2, 0, 1, 0}, {0, 0, 4, 4, 6}, {0, 0, 1, 2, 4, 5, 5}));
  const auto file = TokenFile::Open(dir.File("a"), TokenFormat::kMegatron, "");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->num_documents(), 6);
  EXPECT_EQ((*file)->DocumentAt(0), 2);
  EXPECT_EQ((*file)->DocumentAt(1), 2);
  EXPECT_EQ((*file)->DocumentAt(2), 3);
  EXPECT_EQ((*file)->DocumentBegin(6), 3);
}

TEST(Megatron, DamageOfEachKindIsNamed) {
  TempDir dir;
  const std::string bin = Raw<uint16_t>({1, 2, 3, 4, 5});
  const std::string good = Index(8, {2, 3}, {0, 4}, {0, 1, 2});
  const auto open = [&](const std::string& idx, const std::string& ids) {
    dir.Write("a.bin", ids);
    dir.Write("a.idx", idx);
    const auto file = TokenFile::Open(dir.File("a"), TokenFormat::kMegatron, "");
    return std::string(file.status().message());
  };
  EXPECT_EQ(open(good, bin), "");
  EXPECT_THAT(open(good, bin.substr(0, 9)), HasSubstr("a.bin has 9 bytes"));
  EXPECT_THAT(open(good, bin + "x"), HasSubstr("do not belong together"));
  EXPECT_THAT(open(good.substr(0, good.size() - 1), bin), HasSubstr("too few"));
  EXPECT_THAT(open(good + "xxx", bin), HasSubstr("3 bytes more"));
  EXPECT_THAT(open(good + "xx", bin), HasSubstr("multimodal"));
  EXPECT_THAT(open("", bin), HasSubstr("wrong first bytes"));
  EXPECT_THAT(open(good.substr(0, 20), bin), HasSubstr("cut inside its header"));
  EXPECT_THAT(open(std::string("TNTIDX\0\0", 8) + good, bin), HasSubstr("TNTIDX"));
  EXPECT_THAT(open(Index(8, {2, 3}, {0, 4}, {0, 1, 2}, 2), bin), HasSubstr("version 2"));
  EXPECT_THAT(open(Index(8, {-2, 3}, {0, 4}, {0, 1, 2}), bin), HasSubstr("length -2"));
  EXPECT_THAT(open(Index(8, {2, 3}, {0, 2}, {0, 1, 2}), bin), HasSubstr("begins at byte 2"));
  EXPECT_THAT(open(Index(8, {2, 3}, {0, INT64_MAX}, {0, 1, 2}), bin),
              HasSubstr("begins at byte 9223"));
  EXPECT_THAT(open(Index(8, {2, 3}, {0, 4}, {0, 2, 1}), bin), HasSubstr("document border 2 is 1"));
  EXPECT_THAT(open(Index(8, {2, 3}, {0, 4}, {1, 2}), bin), HasSubstr("document border 0 is 1"));
  EXPECT_THAT(open(Index(8, {2, 3}, {0, 4}, {0, 1}), bin), HasSubstr("ends at sequence 1 of 2"));
  EXPECT_THAT(open(Index(8, {2, 3}, {0, 4}, {0, 1, 3}), bin), HasSubstr("document border 2 is 3"));
  EXPECT_THAT(open(Index(8, {2, 3}, {0, 4}, {}), bin), HasSubstr("no document borders"));
  std::string huge = good;
  std::memset(huge.data() + 18, 0xff, 16);
  EXPECT_THAT(open(huge, bin), HasSubstr("too few"));
  const uint64_t wraps = (uint64_t{1} << 63) / 6 + 1;  // times 12 it wraps round
  std::memcpy(huge.data() + 18, &wraps, 8);
  EXPECT_THAT(open(huge, bin), HasSubstr("too few"));
  std::filesystem::remove(dir.File("a.bin"));
  EXPECT_THAT(
      std::string(TokenFile::Open(dir.File("a"), TokenFormat::kMegatron, "").status().message()),
      HasSubstr("a.bin"));
}

TEST(Megatron, ThousandsOfDamagedIndicesNeverCrash) {
  TempDir dir;
  const std::string bin = Raw<uint16_t>({1, 2, 3, 4, 5, 6, 7, 8});
  const std::string good = Index(8, {2, 0, 3, 3}, {0, 4, 4, 10}, {0, 1, 3, 4});
  uint64_t state = 42;
  const auto random = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  int accepted = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string idx = good, ids = bin;
    for (uint64_t k = random(4); k < 4; ++k) {
      switch (random(6)) {
        case 0:
          idx[random(idx.size())] = static_cast<char>(random(256));
          break;
        case 1:
          idx.resize(1 + random(idx.size()));
          break;
        case 2:
          idx.insert(random(idx.size()), random(20), static_cast<char>(random(256)));
          break;
        case 3:
          ids.resize(random(ids.size() + 4));
          break;
        case 4:
          for (uint64_t at = random(idx.size()), n = 0; n < 8 && at < idx.size(); ++n, ++at) {
            idx[at] = static_cast<char>(random(2) ? 0xff : 0x7f);
          }
          break;
        default:
          idx[18 + random(16) % (idx.size() > 34 ? 16 : 1)] = static_cast<char>(random(256));
      }
      if (idx.size() < 20) break;
    }
    dir.Write("a.bin", ids);
    dir.Write("a.idx", idx);
    const auto file = TokenFile::Open(dir.File("a"), TokenFormat::kMegatron, "");
    if (!file.ok()) {
      EXPECT_THAT(std::string(file.status().message()), HasSubstr(dir.path()));
      continue;
    }
    ++accepted;
    ReadIds(**file).status().IgnoreError();
    (*file)->CheckIds(100).IgnoreError();
    for (int64_t d = 0; d <= (*file)->num_documents(); ++d) {
      EXPECT_LE((*file)->DocumentBegin(d), (*file)->num_tokens());
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 2000);
}

TEST(LlmC, BothGenerationsAreReadAndTheSizeIsChecked) {
  TempDir dir;
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520, header[1] = 1, header[2] = 3;
  const std::string ids16 = Raw<uint16_t>({1, 50256, 65535});
  const auto file =
      TokenFile::Open(dir.Write("a.bin", Raw(header) + ids16), TokenFormat::kAuto, "auto");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(*ReadIds(**file), ElementsAre(1, 50256, 65535));
  EXPECT_FALSE((*file)->has_index());
  EXPECT_EQ((*file)->num_documents(), 1);
  EXPECT_EQ((*file)->DocumentAt(2), 0);
  header[0] = 20240801, header[1] = 7;
  const auto wide = TokenFile::Open(dir.Write("b.bin", Raw(header) + Raw<uint32_t>({1, 128000, 7})),
                                    TokenFormat::kTokens, "");
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_THAT(*ReadIds(**wide), ElementsAre(1, 128000, 7));
  const auto message = [&](const std::string& bytes, const char* dtype = "auto") {
    return std::string(
        TokenFile::Open(dir.Write("c.bin", bytes), TokenFormat::kTokens, dtype).status().message());
  };
  EXPECT_THAT(message(Raw(header) + ids16), HasSubstr("cut or damaged"));
  EXPECT_THAT(message(Raw(header).substr(0, 500)), HasSubstr("cut or damaged"));
  EXPECT_THAT(message(Raw(header) + Raw<uint32_t>({1, 2, 3}), "uint16"),
              HasSubstr("header says uint32"));
  header[2] = -1;
  EXPECT_THAT(message(Raw(header)), HasSubstr("-1 tokens"));
  header[1] = 3;
  EXPECT_THAT(message(Raw(header)), HasSubstr("version 3"));
  for (const int32_t magic : {20240522, 20240326, 20240327, 20240328}) {
    header[0] = magic;
    EXPECT_THAT(message(Raw(header)), HasSubstr("not a stream of tokens"));
  }
}

TEST(BareIds, NeedTheirTypeAndAWholeNumberOfIds) {
  TempDir dir;
  const std::string path = dir.Write("train.bin", Raw<uint16_t>({5, 6, 50256, 7}));
  EXPECT_THAT(std::string(TokenFile::Open(path, TokenFormat::kTokens, "auto").status().message()),
              HasSubstr("set token_dtype"));
  const auto file = TokenFile::Open(path, TokenFormat::kTokens, "uint16");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(*ReadIds(**file), ElementsAre(5, 6, 50256, 7));
  EXPECT_TRUE(TokenFile::Open(path, TokenFormat::kAuto, "uint32").ok());
  EXPECT_THAT(
      std::string(TokenFile::Open(path, TokenFormat::kTokens, "float32").status().message()),
      HasSubstr("not one of"));
  EXPECT_THAT(
      std::string(TokenFile::Open(dir.Write("odd.bin", "abc"), TokenFormat::kTokens, "uint16")
                      .status()
                      .message()),
      HasSubstr("not a multiple of 2"));
  EXPECT_EQ(
      (*TokenFile::Open(dir.Write("none.bin", ""), TokenFormat::kTokens, "uint16"))->num_tokens(),
      0);
  dir.Write("m.bin", ""), dir.Write("m.idx", Index(8, {}, {}, {0}));
  EXPECT_THAT(
      std::string(
          TokenFile::Open(dir.File("m.idx"), TokenFormat::kTokens, "uint16").status().message()),
      HasSubstr("format \"megatron\""));
  EXPECT_THAT(
      std::string(
          TokenFile::Open(dir.File("m"), TokenFormat::kMegatron, "uint16").status().message()),
      HasSubstr("leave token_dtype out"));
}

TEST(TokenFile, AnIdBeyondTheRowsIsRefusedWithItsPlaceInEveryType) {
  TempDir dir;
  const auto check = [&](int code, const std::string& bin, int64_t count, int64_t limit) {
    const int64_t item = static_cast<int64_t>(bin.size()) / count;
    dir.Write("a.bin", bin);
    dir.Write("a.idx", Index(code, {2, static_cast<int32_t>(count - 2)}, {0, 2 * item}, {0, 1, 2}));
    const auto file = TokenFile::Open(dir.File("a"), TokenFormat::kMegatron, "");
    EXPECT_TRUE(file.ok()) << file.status();
    const absl::Status all = (*file)->CheckIds(limit), read = ReadIds(**file, limit).status();
    EXPECT_EQ(all.ToString(), read.ToString());
    return std::string(all.message());
  };
  EXPECT_EQ(check(8, Raw<uint16_t>({1, 2, 3, 9}), 4, 10), "");
  EXPECT_THAT(
      check(8, Raw<uint16_t>({1, 2, 3, 9}), 4, 9),
      AllOf(HasSubstr("a.bin: id 9 at token 3 (document 1, its token 1)"), HasSubstr("[0, 9)")));
  EXPECT_THAT(check(4, Raw<int32_t>({1, -2, 3}), 3, 100),
              HasSubstr("id -2 at token 1 (document 0, its token 1)"));
  EXPECT_THAT(check(5, Raw<int64_t>({1, 2, int64_t{1} << 40}), 3, 100),
              HasSubstr("id 1099511627776"));
  EXPECT_THAT(check(2, Raw<int8_t>({-1, 2, 3}), 3, 100), HasSubstr("id -1"));
  std::vector<uint16_t> many(10'000'000, 5);
  many[9'000'001] = 40000, many[6'000'000] = 40001;
  EXPECT_THAT(check(8, Raw(many), 10'000'000, 40000), HasSubstr("id 40001 at token 6000000"));
}

TEST(TokenFile, MetaOfAnotherDatasetAndDamagedMetaAreRefused) {
  TempDir dir;
  dir.Write("a.bin", Raw<uint16_t>({1, 2, 3}));
  dir.Write("a.idx", Index(8, {3}, {0}, {0, 1}));
  const auto open = [&](const std::string& meta) {
    dir.Write("a.meta.json", meta);
    return std::string(
        TokenFile::Open(dir.File("a"), TokenFormat::kMegatron, "").status().message());
  };
  DatasetMeta meta;
  meta.tokenizer = "t", meta.vocab_size = 10, meta.documents = 1, meta.tokens = 3,
  meta.text_bytes = 12;
  EXPECT_EQ(open(FormatDatasetMeta(meta)), "");
  meta.tokens = 4;
  EXPECT_THAT(open(FormatDatasetMeta(meta)), HasSubstr("belongs to another dataset"));
  for (const char* bad :
       {"", "{}", "[]", "{\"tokenizer\":1}", "{\"tokenizer\":\"t\",\"version\":2}",
        "{\"tokenizer\":\"t\",\"version\":1,\"vocab_size\":1e30}",
        "{\"tokenizer\":\"t\",\"version\":1,\"vocab_size\":18446744073709551615}"}) {
    EXPECT_THAT(open(bad), HasSubstr("a.meta.json")) << bad;
  }
}

}  // namespace
}  // namespace tranche
