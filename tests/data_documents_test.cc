// Documents in samples: every token once an epoch, labels and segments that end where documents
// end.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "data_corpus.h"
#include "gmock/gmock.h"

namespace tranche {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Counts = std::map<int32_t, int>;

TEST(Documents, UsesEveryTokenOncePerEpochOrReportsTheNumberLeftOut) {
  TempDir dir;
  const std::vector<int64_t> lengths = {10, 3, 25, 1};
  const std::string path = WriteCorpus(dir, "c", CountingDocuments(lengths));
  for (const Packing packing : {Packing::kConcat, Packing::kBestFit, Packing::kNone}) {
    for (const bool mask : {false, true}) {
      for (const bool shuffle : {false, true}) {
        for (const int64_t micro : {1, 2, 3}) {
          SCOPED_TRACE(absl::StrCat(static_cast<int>(packing), mask, shuffle, micro));
          LoaderOptions options = SmallOptions(path, 8);
          options.packing = packing, options.document_mask = mask, options.shuffle = shuffle;
          options.micro_batch_size = micro, options.global_batch_size = 3 * micro;
          const auto loader = MakeLoader(options);
          const bool crosses = packing == Packing::kConcat && !mask;
          const int64_t unused = crosses ? 0 : 1;  // the document of one token
          EXPECT_EQ(loader->report()[0].unused_tokens, unused);
          EXPECT_EQ(loader->report()[0].unused_reason.empty(), unused == 0);
          const int64_t epoch = loader->samples_per_epoch();
          const auto samples = FirstSamples(*loader, 2 * epoch);
          for (int64_t e = 0; e < 2; ++e) {
            Counts rows, labels, seen;
            for (int64_t j = e * epoch; j < (e + 1) * epoch; ++j) {
              const Sample& sample = samples[static_cast<size_t>(j)];
              for (const int32_t id : sample.ids) ++rows[id];
              for (const int32_t row : sample.rows) seen[sample.ids[static_cast<size_t>(row)]] = 1;
              for (const int32_t id : sample.labels) ++labels[id], seen[id] = 1;
            }
            for (const auto& [id, count] : rows) EXPECT_EQ(count, 1) << id;
            for (const auto& [id, count] : labels) EXPECT_EQ(count, 1) << id;
            EXPECT_EQ(static_cast<int64_t>(labels.size()), crosses ? 38 : 9 + 2 + 24);
            EXPECT_EQ(static_cast<int64_t>(seen.size()), 39 - unused);
          }
        }
      }
    }
  }
}

TEST(Documents, LabelsAreTheNextTokenOfTheSameDocument) {
  TempDir dir;
  const Documents documents = CountingDocuments({10, 3, 25, 1, 9, 8, 2});
  const std::string path = WriteCorpus(dir, "c", documents);
  std::map<int32_t, size_t> document_of;
  for (size_t d = 0; d < documents.size(); ++d) {
    for (const int32_t id : documents[d]) document_of[id] = d;
  }
  for (const Packing packing : {Packing::kConcat, Packing::kBestFit, Packing::kNone}) {
    for (const bool mask : {false, true}) {
      LoaderOptions options = SmallOptions(path, 8);
      options.packing = packing, options.document_mask = mask;
      const auto loader = MakeLoader(options);
      for (const Sample& sample : FirstSamples(*loader, loader->samples_per_epoch())) {
        EXPECT_LE(sample.ids.size(), 8u);
        ASSERT_FALSE(sample.ids.empty());
        EXPECT_EQ(sample.segments.front(), 0);
        EXPECT_EQ(sample.segments.back(), static_cast<int32_t>(sample.ids.size()));
        EXPECT_TRUE(std::is_sorted(sample.rows.begin(), sample.rows.end()));
        for (size_t p = 0; p < sample.rows.size(); ++p) {
          const int32_t id = sample.ids[static_cast<size_t>(sample.rows[p])];
          EXPECT_EQ(sample.labels[p], id + 1);
          if (packing != Packing::kConcat || mask) {
            EXPECT_EQ(document_of[id], document_of[id + 1]);
          }
        }
        for (size_t s = 0; s + 1 < sample.segments.size(); ++s) {
          for (int32_t row = sample.segments[s]; row < sample.segments[s + 1]; ++row) {
            EXPECT_EQ(sample.positions[static_cast<size_t>(row)], row - sample.segments[s]);
            if (!mask) continue;
            EXPECT_EQ(document_of[sample.ids[static_cast<size_t>(row)]],
                      document_of[sample.ids[static_cast<size_t>(sample.segments[s])]]);
          }
        }
        if (!mask) {
          EXPECT_EQ(sample.segments.size(), 2u);
        }
      }
    }
  }
}

TEST(Documents, AMaskedDocumentIsTheSameWithAndWithoutItsNeighbour) {
  TempDir dir;
  const std::vector<int32_t> a = {1, 2, 3, 4, 5}, changed = {1, 9, 3, 4, 5},
                             b = {11, 12, 13, 14, 15, 16, 17};
  const auto rows_of_b = [&](const Documents& documents) {
    LoaderOptions options = SmallOptions(WriteCorpus(dir, "c", documents), 16);
    options.document_mask = true, options.epochs = 1;
    const auto loader = MakeLoader(options);
    const Sample sample = FirstSamples(*loader, 1)[0];
    const auto begin = std::find(sample.ids.begin(), sample.ids.end(), 11) - sample.ids.begin();
    EXPECT_THAT(sample.segments, ::testing::Contains(begin));
    std::vector<std::vector<int32_t>> rows;
    for (size_t p = 0; p < sample.rows.size(); ++p) {
      const size_t row = static_cast<size_t>(sample.rows[p]);
      if (sample.rows[p] >= begin)
        rows.push_back({sample.ids[row], sample.positions[row], sample.labels[p]});
    }
    EXPECT_EQ(loader->PredictedTokens(0).value(),
              static_cast<int64_t>(documents.size() == 2 ? 4 + 6 : 6));
    return rows;
  };
  const auto alone = rows_of_b({b});
  EXPECT_EQ(alone.size(), 6u);
  EXPECT_EQ(rows_of_b({a, b}), alone);
  EXPECT_EQ(rows_of_b({changed, b}), alone);
}

TEST(Documents, BordersComeFromTheIndexNotFromEos) {
  TempDir dir;
  constexpr int32_t kEos = 1;
  const Documents documents = {{20, kEos, 21, kEos}, {22, 23}, {24, kEos}, {kEos, 25, 26, kEos}};
  DatasetMeta meta;
  meta.tokenizer = "bytes", meta.vocab_size = 264, meta.eos = kEos;
  LoaderOptions options = SmallOptions(WriteCorpus(dir, "c", documents, &meta), 32);
  options.document_mask = true, options.epochs = 1;
  Sample sample = FirstSamples(*MakeLoader(options), 1)[0];
  EXPECT_THAT(sample.segments, ElementsAre(0, 4, 6, 8, 11));
  EXPECT_THAT(sample.labels, ElementsAre(kEos, 21, kEos, 23, kEos, 25, 26, kEos));
  // Not learning the end of a document leaves the EOS inside of one alone, whatever the pad id is.
  options.eod_loss = false;
  for (const bool mask : {true, false}) {
    options.document_mask = mask;
    const auto loader = MakeLoader(options);
    sample = FirstSamples(*loader, 1)[0];
    if (mask) {
      EXPECT_THAT(sample.labels, ElementsAre(kEos, 21, 23, 25, 26));
    } else {
      EXPECT_THAT(sample.labels, ElementsAre(kEos, 21, 22, 23, 24, kEos, 25, 26));
    }
    EXPECT_EQ(loader->PredictedTokens(0).value(), static_cast<int64_t>(sample.labels.size()));
  }
}

TEST(Documents, DocumentsOfOneTokenGiveNoLabelAndNoFault) {
  TempDir dir;
  const std::string path = WriteCorpus(dir, "c", CountingDocuments({1, 1, 1, 1, 1}));
  LoaderOptions options = SmallOptions(path, 2);
  options.document_mask = true;
  const auto loader = MakeLoader(options);
  for (int64_t step = 0; step < 5; ++step) {
    EXPECT_EQ(loader->PredictedTokens(step).value(), 0);
    EXPECT_EQ(GetBatch(*loader, step, 0).num_predicted(), 0);
  }
  options.packing = Packing::kNone;
  EXPECT_THAT(CreateError(options), HasSubstr("too short to predict anything"));
  LoaderOptions one = SmallOptions(WriteCorpus(dir, "one", {{5}}), 8);
  EXPECT_THAT(CreateError(one), HasSubstr("make no sample"));
}

TEST(Documents, BestFitPacksAsTheTextbookDoes) {
  TempDir dir;
  std::vector<int64_t> lengths;
  uint64_t state = 3;
  for (int i = 0; i < 400; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    lengths.push_back(1 + static_cast<int64_t>((state >> 33) % 150));
  }
  constexpr int64_t kCapacity = 100;
  LoaderOptions options =
      SmallOptions(WriteCorpus(dir, "c", CountingDocuments(lengths)), kCapacity);
  options.packing = Packing::kBestFit, options.document_mask = true, options.shuffle = false;
  // Best fit decreasing by the definition, in quadratic time.
  std::vector<int64_t> pieces, rooms;
  for (const int64_t length : lengths) {
    for (int64_t left = length - 1; left > 0; left -= kCapacity)
      pieces.push_back(std::min(left, kCapacity));
  }
  std::sort(pieces.rbegin(), pieces.rend());
  for (const int64_t piece : pieces) {
    auto best = rooms.end();
    for (auto it = rooms.begin(); it != rooms.end(); ++it) {
      if (*it >= piece && (best == rooms.end() || *it < *best)) best = it;
    }
    if (best == rooms.end()) rooms.push_back(kCapacity), best = rooms.end() - 1;
    *best -= piece;
  }
  std::sort(rooms.begin(), rooms.end());
  std::vector<int64_t> left;
  const auto loader = MakeLoader(options);
  for (const Sample& sample : FirstSamples(*loader, loader->samples_per_epoch())) {
    left.push_back(kCapacity - static_cast<int64_t>(sample.ids.size()));
  }
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, rooms);
}

TEST(Documents, BestFitHandlesLongSequencesWithEveryRoomBoundary) {
  TempDir dir;
  for (const int64_t capacity : {63, 64, 65, 4095, 4096, 4097, 9000}) {
    std::vector<int64_t> lengths;
    for (int64_t size = 1; size < capacity; size += std::max<int64_t>(1, capacity / 50)) {
      lengths.push_back(size + 1), lengths.push_back(capacity - size + 1);
    }
    int64_t rows = 0;
    for (const int64_t length : lengths) rows += length - 1;
    LoaderOptions options = SmallOptions(
        WriteCorpus(dir, "c", CountingDocuments(lengths, 1), nullptr, 200000), capacity);
    options.vocab_rows = 2000000;
    options.packing = Packing::kBestFit;
    EXPECT_EQ(MakeLoader(options)->samples_per_epoch(), rows / capacity)
        << capacity;  // pairs fill samples exactly
  }
}

}  // namespace
}  // namespace tranche
