// Masked language modelling: which tokens are chosen, what becomes of them, and the pairs of
// next-sentence prediction.
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "data/masking.h"
#include "data_corpus.h"
#include "gmock/gmock.h"

namespace tranche {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kMask = 4, kCls = 5, kSep = 6;
const ByteTokenizer& Tokens() {
  static const ByteTokenizer tokenizer(20000);
  return tokenizer;
}

LoaderOptions MlmOptions(const std::string& path, int64_t sequence_length, double probability) {
  LoaderOptions options = SmallOptions(path, sequence_length);
  options.objective = Objective::kMlm, options.mlm_probability = probability;
  options.tokenizer = &Tokens(), options.vocab_rows = 20000;
  return options;
}

// The ids before masking.
std::vector<int32_t> Unmasked(const Sample& sample) {
  std::vector<int32_t> ids = sample.ids;
  for (size_t p = 0; p < sample.rows.size(); ++p)
    ids[static_cast<size_t>(sample.rows[p])] = sample.labels[p];
  return ids;
}

TEST(Mlm, EveryTokenStandsOnceInAnEpochBetweenClsAndSep) {
  TempDir dir;
  const std::vector<int64_t> lengths = {10, 3, 25, 1, 60, 1, 2, 14};
  const std::string path = WriteCorpus(dir, "c", CountingDocuments(lengths));
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  for (const Packing packing : {Packing::kConcat, Packing::kBestFit, Packing::kNone}) {
    for (const bool mask : {false, true}) {
      SCOPED_TRACE(absl::StrCat(static_cast<int>(packing), mask));
      LoaderOptions options = MlmOptions(path, 16, 1.0);
      options.packing = packing, options.document_mask = mask;
      const auto loader = MakeLoader(options);
      EXPECT_EQ(loader->report()[0].unused_tokens, 0);
      std::map<int32_t, int> labels;
      for (const Sample& sample : FirstSamples(*loader, loader->samples_per_epoch())) {
        EXPECT_LE(sample.ids.size(), 16u);
        EXPECT_EQ(sample.ids.front(), kCls);
        EXPECT_EQ(sample.ids.back(), kSep);
        for (const int32_t label : sample.labels) ++labels[label];
        for (size_t s = 0; mask && s + 1 < sample.segments.size(); ++s) {
          EXPECT_EQ(sample.ids[static_cast<size_t>(sample.segments[s])], kCls);
          EXPECT_EQ(sample.ids[static_cast<size_t>(sample.segments[s + 1]) - 1], kSep);
          EXPECT_EQ(sample.positions[static_cast<size_t>(sample.segments[s])], 0);
        }
        if (packing == Packing::kConcat && !mask) {
          EXPECT_EQ(std::count(sample.ids.begin(), sample.ids.end(), kCls), 1);
        }
      }
      EXPECT_EQ(static_cast<int64_t>(labels.size()), tokens);
      for (const auto& [label, count] : labels) EXPECT_EQ(count, 1) << label;
    }
  }
}

TEST(Mlm, ChoosesTheProbabilityAnd80PercentMask10Random10Kept) {
  TempDir dir;
  std::vector<int32_t> ids;
  for (int i = 0; i < 200000; ++i)
    ids.push_back(i % 50 == 0 ? i % 8 : 8 + i % 256);  // 2 % are special
  const std::string path = WriteCorpus(dir, "c", {ids});
  for (const double probability : {0.15, 0.3}) {
    const auto loader = MakeLoader(MlmOptions(path, 130, probability));
    int64_t ordinary = 0, chosen = 0, masked = 0, kept = 0, random = 0;
    for (const Sample& sample : FirstSamples(*loader, loader->samples_per_epoch())) {
      const std::vector<int32_t> before = Unmasked(sample);
      for (const int32_t id : before) ordinary += id >= 8;
      for (size_t p = 0; p < sample.rows.size(); ++p) {
        const int32_t id = sample.ids[static_cast<size_t>(sample.rows[p])];
        EXPECT_GE(sample.labels[p], 8) << "a special id was chosen";
        ++chosen;
        if (id == kMask) {
          ++masked;
        } else if (id == sample.labels[p]) {
          ++kept;
        } else {
          ++random;
          EXPECT_GE(id, 8) << "a special id was inserted";
        }
      }
    }
    const auto within = [](int64_t count, int64_t of, double share) {
      const double n = static_cast<double>(of);
      EXPECT_NEAR(static_cast<double>(count), n * share, 3 * std::sqrt(n * share * (1 - share)))
          << share;
    };
    within(chosen, ordinary, probability);
    within(masked, chosen, 0.8);
    within(random, chosen, 0.1 * (1 - 1.0 / 19992));
    within(kept, chosen, 0.1 * (1 + 1.0 / 19992));
  }
}

TEST(Mlm, RandomIdsAreUniformOverTheOrdinaryOnesBelowTheRows) {
  const ByteTokenizer tokenizer(13);  // 8 special ids and 5 others
  const TokenMasker masker(tokenizer, 12, 1.0, false, INT64_MAX);
  EXPECT_EQ(masker.num_insertable(), 4);
  std::map<int32_t, int64_t> counts;
  for (uint64_t sample = 0; sample < 1000; ++sample) {
    std::vector<int32_t> ids(100, 12), rows, labels;
    masker.Apply(7, sample, 0, absl::MakeSpan(ids), &rows, &labels);
    EXPECT_EQ(rows.size(), 100u);
    for (const int32_t id : ids) ++counts[id];
  }
  EXPECT_EQ(counts.size(), 6u);  // [MASK], 12 kept, and 8..11
  for (int32_t id = 8; id < 12; ++id)
    EXPECT_NEAR(static_cast<double>(counts[id]), 2500, 3 * std::sqrt(2500.0)) << id;
  EXPECT_NEAR(static_cast<double>(counts[kMask]), 80000, 3 * std::sqrt(100000 * 0.16));
}

TEST(Mlm, VeryShortDocumentsNeverFaultWhateverTheProbability) {
  TempDir dir;
  const std::string path = WriteCorpus(dir, "c", CountingDocuments({1, 2, 3, 4, 1, 2, 3, 4}));
  for (const double probability : {0.15, 0.001, 1.0}) {
    LoaderOptions options = MlmOptions(path, 8, probability);
    options.packing = Packing::kNone, options.micro_batch_size = 1;
    const auto loader = MakeLoader(options);
    int64_t without = 0, predicted = 0;
    for (int64_t step = 0; step < 200; ++step) {
      int64_t sum = 0;
      for (int64_t slot = 0; slot < loader->slots(); ++slot) {
        const MicroBatch batch = GetBatch(*loader, step, slot);
        without += batch.num_predicted() == 0;
        sum += batch.num_predicted();
      }
      EXPECT_EQ(loader->PredictedTokens(step).value(), sum);
      predicted += sum;
    }
    if (probability == 1.0) {
      EXPECT_EQ(without, 0);
      EXPECT_EQ(predicted, 200 * 4 * 20 / 8);
    } else {
      EXPECT_GT(without, 400);
    }
  }
}

TEST(Mlm, MasksDependOnSeedSampleAndEpochOnly) {
  TempDir dir;
  LoaderOptions options = MlmOptions(WriteCorpus(dir, "c", CountingDocuments({3000})), 32, 0.15);
  const auto by_content = [](const Loader& loader, int64_t epoch) {
    std::map<int32_t, Sample> samples;
    const int64_t n = loader.samples_per_epoch();
    const auto all = FirstSamples(loader, (epoch + 1) * n);
    for (int64_t i = epoch * n; i < (epoch + 1) * n; ++i) {
      Sample sample = all[static_cast<size_t>(i)];
      sample.keys.clear();  // these name the place in the run
      samples[Unmasked(sample)[1]] = sample;
    }
    return samples;
  };
  const auto first = by_content(*MakeLoader(options), 0),
             second = by_content(*MakeLoader(options), 1);
  EXPECT_EQ(first.size(), 100u);
  int same = 0;
  for (const auto& [id, sample] : first) same += second.at(id).rows == sample.rows;
  EXPECT_LT(same, 5);
  options.shuffle = false, options.micro_batch_size = 1;
  EXPECT_EQ(by_content(*MakeLoader(options), 0), first);
  options.seed = 99;
  EXPECT_NE(by_content(*MakeLoader(options), 0), first);
}

TEST(Mlm, WholeWordsAreChosenTogetherAtTheSameRate) {
  TempDir dir;
  std::vector<int32_t> ids;
  std::string text;
  for (int i = 0; i < 20000; ++i)
    text += absl::StrCat(
        " ", std::string(static_cast<size_t>(1 + i % 5), static_cast<char>('a' + i % 26)));
  Tokens().Encode(text, false, &ids);
  LoaderOptions options = MlmOptions(WriteCorpus(dir, "c", {ids}), 130, 0.15);
  options.whole_word_mask = true;
  const auto loader = MakeLoader(options);
  int64_t words = 0, chosen = 0;
  for (const Sample& sample : FirstSamples(*loader, loader->samples_per_epoch())) {
    const std::vector<int32_t> before = Unmasked(sample);
    const std::set<int32_t> rows(sample.rows.begin(), sample.rows.end());
    for (size_t i = 1; i + 1 < before.size(); ++i) {
      const bool begins = i == 1 || before[i] == 8 + ' ';
      words += begins;
      chosen += begins && rows.count(static_cast<int32_t>(i));
      if (!begins) {
        EXPECT_EQ(rows.count(static_cast<int32_t>(i)), rows.count(static_cast<int32_t>(i) - 1));
      }
    }
  }
  const double n = static_cast<double>(words);
  EXPECT_NEAR(static_cast<double>(chosen), 0.15 * n, 3 * std::sqrt(n * 0.15 * 0.85));
}

TEST(Mlm, AWordLongerThanTheLimitIsPassedOverNotCut) {
  TempDir dir;
  std::vector<int32_t> ids(5000, 8 + 'a');
  LoaderOptions options = MlmOptions(WriteCorpus(dir, "c", {ids}), 130, 0.5);
  options.whole_word_mask = true;
  const int64_t limit = ComputeBatchBounds(options).predicted / options.micro_batch_size;
  options.mlm_probability = 0.15;
  EXPECT_LT(ComputeBatchBounds(options).predicted / options.micro_batch_size, 128);
  EXPECT_EQ(limit, 128);
  const auto loader = MakeLoader(options);
  for (const Sample& sample : FirstSamples(*loader, 2 * loader->samples_per_epoch())) {
    EXPECT_TRUE(sample.rows.empty() || sample.ids.size() < 130u);
  }
}

TEST(NextSentence, PairsUseEveryTokenOnceAndHalfOfThemAreSwapped) {
  TempDir dir;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 500; ++i) lengths.push_back(1 + i * 13 % 31);
  const Documents documents = CountingDocuments(lengths);
  std::map<int32_t, size_t> document_of;
  for (size_t d = 0; d < documents.size(); ++d) {
    for (const int32_t id : documents[d]) document_of[id] = d;
  }
  LoaderOptions options = MlmOptions(WriteCorpus(dir, "c", documents), 16, 0.15);
  options.next_sentence = true, options.packing = Packing::kNone;
  const auto loader = MakeLoader(options);
  int64_t left_out = 0;  // rests of one token
  for (const int64_t length : lengths) left_out += length % 13 == 1;
  EXPECT_EQ(loader->report()[0].unused_tokens, left_out);
  EXPECT_THAT(loader->report()[0].unused_reason, HasSubstr("one token"));
  const int64_t epoch = loader->samples_per_epoch();
  for (int64_t e = 0; e < 2; ++e) {
    std::map<int32_t, int> counts;
    int64_t swapped = 0;
    const auto samples = FirstSamples(*loader, (e + 1) * epoch);
    for (int64_t i = e * epoch; i < (e + 1) * epoch; ++i) {
      const Sample& sample = samples[static_cast<size_t>(i)];
      const std::vector<int32_t> ids = Unmasked(sample);
      ASSERT_LE(ids.size(), 16u);
      EXPECT_EQ(ids.front(), kCls);
      EXPECT_EQ(ids.back(), kSep);
      const size_t first_sep =
          static_cast<size_t>(std::find(ids.begin(), ids.end(), kSep) - ids.begin());
      ASSERT_LT(first_sep + 2, ids.size());
      for (size_t r = 0; r < ids.size(); ++r) {
        EXPECT_EQ(sample.types[r], r > first_sep ? 1 : 0);
        EXPECT_EQ(sample.positions[r], static_cast<int32_t>(r));
        if (ids[r] >= 8) ++counts[ids[r]];
      }
      EXPECT_EQ(sample.segments.size(), 2u);
      const int32_t end_of_a = ids[first_sep - 1], begin_of_b = ids[first_sep + 1];
      const bool follows =
          begin_of_b == end_of_a + 1 && document_of[begin_of_b] == document_of[end_of_a];
      EXPECT_EQ(sample.next_sentence, follows ? 0 : 1);
      if (!follows) {
        EXPECT_NE(document_of[begin_of_b], document_of[end_of_a]);
      }
      swapped += !follows;
    }
    for (const auto& [id, count] : counts) EXPECT_EQ(count, 1) << id;
    EXPECT_EQ(static_cast<int64_t>(counts.size()),
              std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) - left_out);
    EXPECT_NEAR(static_cast<double>(swapped), static_cast<double>(epoch) / 2,
                3 * std::sqrt(static_cast<double>(epoch) / 2));
  }
}

}  // namespace
}  // namespace tranche
