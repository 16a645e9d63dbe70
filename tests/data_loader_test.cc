// The loader: order from (seed, sample) alone, blends, splits, bounds, and what it refuses.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "data_corpus.h"
#include "gmock/gmock.h"

namespace tranche {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Loader, OrderIsAFunctionOfSeedAndSampleHoweverItIsAskedFor) {
  TempDir dir;
  std::vector<int64_t> lengths(60);
  std::iota(lengths.begin(), lengths.end(), 1);
  const std::string a = WriteCorpus(dir, "a", CountingDocuments(lengths));
  const std::string b = WriteCorpus(dir, "b", CountingDocuments(lengths, 5000));
  for (const Objective objective : {Objective::kClm, Objective::kMlm}) {
    for (const Packing packing : {Packing::kConcat, Packing::kBestFit, Packing::kNone}) {
      const ByteTokenizer tokenizer(20000);
      LoaderOptions options = SmallOptions(a, 16);
      options.sources = {{a, 0.3}, {b, 0.7}};
      options.objective = objective, options.packing = packing, options.document_mask = true;
      options.tokenizer = &tokenizer, options.vocab_rows = 20000;
      options.global_batch_size = 12, options.micro_batch_size = 1;
      const auto samples = FirstSamples(*MakeLoader(options), 600);
      for (const int64_t micro : {2, 3, 4, 12}) {
        options.micro_batch_size = micro;
        const auto loader = MakeLoader(options);
        std::vector<int64_t> steps(50);
        std::iota(steps.begin(), steps.end(), 0);
        std::reverse(steps.begin(), steps.end());
        std::swap(steps[3], steps[40]);
        for (const int64_t step : steps) {
          int64_t predicted = 0;
          for (int64_t slot = loader->slots() - 1; slot >= 0; --slot) {
            const MicroBatch batch = GetBatch(*loader, step, slot);
            EXPECT_EQ(loader->PredictedTokens(step, slot).value(), batch.num_predicted());
            predicted += batch.num_predicted();
            const auto got = SplitSamples(batch);
            ASSERT_EQ(static_cast<int64_t>(got.size()), micro);
            for (int64_t i = 0; i < micro; ++i) {
              ASSERT_EQ(got[static_cast<size_t>(i)],
                        samples[static_cast<size_t>(step * 12 + slot * micro + i)]);
            }
          }
          EXPECT_EQ(loader->PredictedTokens(step).value(), predicted);
        }
      }
      options.seed = 12;
      EXPECT_NE(FirstSamples(*MakeLoader(options), 600), samples);
    }
  }
}

TEST(Loader, EpochsAreShuffledAnewAndWithoutShuffleInTheOrderOfTheCorpus) {
  TempDir dir;
  LoaderOptions options = SmallOptions(WriteCorpus(dir, "c", CountingDocuments({4001})), 10);
  auto loader = MakeLoader(options);
  ASSERT_EQ(loader->samples_per_epoch(), 400);
  EXPECT_EQ(loader->steps_per_epoch(), 100);
  std::vector<std::vector<int32_t>> firsts(3);
  const auto samples = FirstSamples(*loader, 1200);
  for (size_t i = 0; i < samples.size(); ++i) firsts[i / 400].push_back(samples[i].ids[0]);
  EXPECT_NE(firsts[0], firsts[1]);
  EXPECT_NE(firsts[1], firsts[2]);
  int in_order = 0;
  for (size_t i = 1; i < 400; ++i) in_order += firsts[0][i] == firsts[0][i - 1] + 10;
  EXPECT_LT(in_order, 10);
  options.shuffle = false;
  loader = MakeLoader(options);
  const auto ordered = FirstSamples(*loader, 800);
  for (size_t i = 0; i < 800; ++i)
    EXPECT_EQ(ordered[i].ids[0], 100 + 10 * static_cast<int32_t>(i % 400));
}

TEST(Loader, WeightedBlendsFollowTheirSharesInEveryPrefixAndUseUpEachEpoch) {
  TempDir dir;
  const std::vector<double> weights = {0.15, 3, 0.85, 1e-6, 1};
  const double sum = 0.15 + 3 + 0.85 + 1e-6 + 1;
  LoaderOptions options = SmallOptions("", 4);
  options.sources.clear();
  for (size_t s = 0; s < weights.size(); ++s) {
    const std::string path =
        WriteCorpus(dir, absl::StrCat("s", s),
                    CountingDocuments({static_cast<int64_t>(4 * (37 + 50 * s) + 1)}));
    options.sources.push_back({path, weights[s]});
  }
  const auto loader = MakeLoader(options);
  std::vector<int64_t> counts(weights.size());
  std::vector<std::set<int64_t>> epoch(weights.size());
  for (int64_t g = 0; g < 20000; ++g) {
    const auto info = loader->Describe(g);
    const size_t s = static_cast<size_t>(info.source);
    EXPECT_EQ(info.epoch, counts[s] / (37 + 50 * info.source));
    EXPECT_TRUE(epoch[s].insert(info.sample).second);
    if (static_cast<int64_t>(epoch[s].size()) == 37 + 50 * info.source) epoch[s].clear();
    ++counts[s];
    for (size_t i = 0; i < weights.size(); ++i) {
      ASSERT_LE(
          std::abs(static_cast<double>(counts[i]) - static_cast<double>(g + 1) * weights[i] / sum),
          2.0)
          << g;
    }
  }
  // Far out the rule holds as well, and costs no more.
  const int64_t far = int64_t{1} << 42;
  std::fill(counts.begin(), counts.end(), 0);
  for (int64_t g = far; g < far + 5000; ++g)
    ++counts[static_cast<size_t>(loader->Describe(g).source)];
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(counts[i]), 5000 * weights[i] / sum, 4.0);
    EXPECT_NEAR(loader->report()[i].share, weights[i] / sum, 1e-9);
  }
}

TEST(Loader, WithoutWeightsAnEpochIsEverySampleOfEverySourceOnce) {
  TempDir dir;
  LoaderOptions options = SmallOptions(WriteCorpus(dir, "a", CountingDocuments({41})), 4);
  options.sources.push_back({WriteCorpus(dir, "b", CountingDocuments({17, 300}, 1000))});
  const auto loader = MakeLoader(options);
  const int64_t epoch = loader->samples_per_epoch();
  EXPECT_EQ(epoch, 10 + 79);
  for (int64_t e = 0; e < 3; ++e) {
    std::set<std::pair<int64_t, int64_t>> seen;
    for (int64_t g = e * epoch; g < (e + 1) * epoch; ++g) {
      const auto info = loader->Describe(g);
      EXPECT_EQ(info.epoch, e);
      seen.emplace(info.source, info.sample);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), epoch);
  }
  options.sources[0].weight = 1;
  EXPECT_THAT(CreateError(options), HasSubstr("weight"));
}

TEST(Loader, ABoundedLoaderEndsWithItsLastSample) {
  TempDir dir;
  LoaderOptions options = SmallOptions(WriteCorpus(dir, "c", CountingDocuments({66})),
                                       10);  // 7 samples, the last of 5 rows
  options.epochs = 1, options.shuffle = false;
  const auto loader = MakeLoader(options);
  EXPECT_EQ(loader->samples_per_epoch(), 7);
  EXPECT_EQ(GetBatch(*loader, 1, 0).num_sequences(), 2);
  const MicroBatch last = GetBatch(*loader, 1, 1);
  EXPECT_EQ(last.num_sequences(), 1);
  EXPECT_EQ(last.num_tokens(), 5);
  for (int64_t step = 2; step < 5; ++step) {
    const MicroBatch none = GetBatch(*loader, step, 0);
    EXPECT_EQ(none.num_tokens(), 0);
    EXPECT_THAT(none.cu_seqlens, ElementsAre(0));
    EXPECT_EQ(none.num_sequences(), 0);
    EXPECT_EQ(loader->PredictedTokens(step).value(), 0);
  }
  EXPECT_EQ(loader->PredictedTokens(0).value() + loader->PredictedTokens(1).value(), 65);
}

TEST(Loader, TrainAndValidationPartTheDocuments) {
  TempDir dir;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 100; ++i) lengths.push_back(1 + i * 7 % 23);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  LoaderOptions options = SmallOptions(WriteCorpus(dir, "c", CountingDocuments(lengths)), 8);
  options.document_mask = true;
  for (const double fraction : {0.01, 0.1, 0.5, 0.9}) {
    options.validation_fraction = fraction;
    options.split = DataSplit::kTrain;
    const auto train = MakeLoader(options)->report()[0];
    options.split = DataSplit::kValidation;
    const auto loader = MakeLoader(options);
    const auto valid = loader->report()[0];
    EXPECT_EQ(train.documents + valid.documents, 100);
    EXPECT_EQ(train.tokens + valid.tokens, tokens);
    EXPECT_LE(static_cast<double>(valid.tokens), fraction * static_cast<double>(tokens) + 1);
    EXPECT_GT(static_cast<double>(valid.tokens), fraction * static_cast<double>(tokens) - 24);
    for (const Sample& sample : FirstSamples(*loader, loader->samples_per_epoch())) {
      for (const int32_t id : sample.ids) EXPECT_GE(id, 100 + train.tokens);
      for (const int32_t label : sample.labels) EXPECT_GT(label, 100 + train.tokens);
    }
  }
  options.validation_fraction = 0;
  EXPECT_THAT(CreateError(options), HasSubstr("held out"));
  LoaderOptions single = SmallOptions(WriteCorpus(dir, "one", CountingDocuments({50})), 8);
  single.split = DataSplit::kValidation, single.validation_fraction = 0.2;
  EXPECT_THAT(CreateError(single), HasSubstr("behind the validation cut"));
}

TEST(Loader, FilesWithoutAnIndexAreOneDocumentAndRefuseWhatNeedsBorders) {
  TempDir dir;
  std::string bytes;
  std::vector<int32_t> ids(100);
  std::iota(ids.begin(), ids.end(), 0);
  AppendIds(ids, TokenType::kU16, &bytes);
  LoaderOptions options = SmallOptions(dir.Write("train.bin", bytes), 8);
  options.format = TokenFormat::kTokens, options.token_dtype = "uint16";
  for (const Packing packing : {Packing::kConcat, Packing::kBestFit, Packing::kNone}) {
    options.packing = packing;
    const auto loader = MakeLoader(options);
    int64_t labels = 0;
    for (const Sample& sample : FirstSamples(*loader, loader->samples_per_epoch()))
      labels += static_cast<int64_t>(sample.labels.size());
    EXPECT_EQ(labels, 99);
  }
  options.split = DataSplit::kValidation, options.validation_fraction = 0.25;
  EXPECT_EQ(MakeLoader(options)->report()[0].tokens, 25);
  EXPECT_EQ(FirstSamples(*MakeLoader(options), 1)[0].ids.size(), 8u);
  options.document_mask = true;
  EXPECT_THAT(CreateError(options),
              AllOf(HasSubstr("train.bin"), HasSubstr("no index"), HasSubstr("document_mask")));
  options.document_mask = false, options.eod_loss = false;
  EXPECT_THAT(CreateError(options), HasSubstr("eod_loss"));
}

TEST(Loader, IdsBeyondTheModelsRowsAreRefusedBeforeTheFirstStep) {
  TempDir dir;
  const Documents documents = {{1, 2, 3}, {4, 50, 6}};
  LoaderOptions options = SmallOptions(WriteCorpus(dir, "c", documents), 8);
  options.vocab_rows = 51;
  EXPECT_NE(MakeLoader(options), nullptr);
  options.vocab_rows = 50;
  EXPECT_THAT(CreateError(options), HasSubstr("id 50 at token 4 (document 1, its token 1)"));
  // A larger vocabulary than rows is legal while its last ids do not occur.
  DatasetMeta meta;
  meta.tokenizer = "bytes", meta.vocab_size = 1000;
  options.sources[0].path = WriteCorpus(dir, "d", documents, &meta);
  EXPECT_THAT(CreateError(options), HasSubstr("id 50"));
  options.vocab_rows = 51;
  EXPECT_NE(MakeLoader(options), nullptr);
  // Data that lie about their vocabulary are found out where they are used.
  meta.vocab_size = 50;
  std::vector<int32_t> ids(30000, 7);
  ids[15000] = 50;
  options.sources[0].path = WriteCorpus(dir, "e", {ids}, &meta);
  options.vocab_rows = 50, options.shuffle = false;
  const auto loader = MakeLoader(options);
  EXPECT_TRUE(loader->Get(0, 0).ok());
  EXPECT_THAT(std::string(loader->Get(15000 / 8 / 4, 1).status().message()),
              HasSubstr("id 50 at token 15000"));
}

TEST(Loader, DataOfAnotherTokenizerAreRefused) {
  TempDir dir;
  DatasetMeta meta;
  meta.tokenizer = "bytes", meta.vocab_size = 264, meta.text_bytes = 12;
  LoaderOptions options =
      SmallOptions(WriteCorpus(dir, "c", {{10, 11, 12}, {13, 14, 15}}, &meta), 8);
  const ByteTokenizer same(264, "bytes"), other(264, "other");
  options.tokenizer = &same;
  options.epochs = 1;
  const auto loader = MakeLoader(options);
  EXPECT_EQ(loader->report()[0].bytes_per_token, 2.0);
  EXPECT_EQ(GetBatch(*loader, 0, 0).text_bytes, 2.0 * 5);
  options.tokenizer = &other;
  EXPECT_THAT(CreateError(options), AllOf(HasSubstr("c.bin"), HasSubstr("another tokenizer")));
}

TEST(Loader, BoundsHoldForEveryBatchAndAreReached) {
  TempDir dir;
  std::vector<int64_t> lengths(300, 2);
  for (int64_t i = 0; i < 100; ++i) lengths.push_back(1 + i % 40);
  const ByteTokenizer tokenizer(20000);
  LoaderOptions options = SmallOptions(WriteCorpus(dir, "c", CountingDocuments(lengths)), 24);
  options.tokenizer = &tokenizer, options.vocab_rows = 20000;
  for (const Objective objective : {Objective::kClm, Objective::kMlm}) {
    for (const double probability : {0.15, 1.0}) {
      for (const Packing packing : {Packing::kConcat, Packing::kBestFit, Packing::kNone}) {
        for (const bool mask : {false, true}) {
          options.objective = objective, options.mlm_probability = probability;
          options.packing = packing, options.document_mask = mask;
          const BatchBounds bounds = ComputeBatchBounds(options);
          const auto loader = MakeLoader(options);
          int64_t most_rows = 0;
          for (int64_t step = 0; step < 2 * loader->steps_per_epoch(); ++step) {
            const MicroBatch batch = GetBatch(*loader, step, 1);
            EXPECT_LE(batch.num_tokens(), bounds.tokens);
            EXPECT_LE(batch.num_segments(), bounds.segments);
            EXPECT_LE(batch.num_sequences(), bounds.sequences);
            EXPECT_LE(batch.num_predicted(), bounds.predicted);
            for (size_t s = 1; s < batch.cu_seqlens.size(); ++s) {
              EXPECT_LE(batch.cu_seqlens[s] - batch.cu_seqlens[s - 1], bounds.segment_length);
              EXPECT_LT(batch.cu_seqlens[s - 1], batch.cu_seqlens[s]);
            }
            EXPECT_EQ(batch.positions.size(), batch.input_ids.size());
            EXPECT_EQ(batch.token_types.size(), batch.input_ids.size());
            EXPECT_EQ(batch.token_keys.size(), batch.input_ids.size());
            most_rows = std::max(most_rows, batch.num_tokens());
          }
          if (packing != Packing::kNone && !(objective == Objective::kMlm && mask)) {
            EXPECT_EQ(most_rows, bounds.tokens);
          }
        }
      }
    }
  }
}

TEST(Loader, KeysOfDropoutNameSampleAndRow) {
  TempDir dir;
  LoaderOptions options = SmallOptions(WriteCorpus(dir, "c", CountingDocuments({100})), 8);
  const auto loader = MakeLoader(options);
  const MicroBatch batch = GetBatch(*loader, 2, 1);
  EXPECT_EQ(batch.first_sample, 10);
  for (int64_t i = 0; i < batch.num_tokens(); ++i) {
    const int64_t sample = i < batch.cu_sequences[1] ? 10 : 11,
                  row = i < batch.cu_sequences[1] ? i : i - batch.cu_sequences[1];
    EXPECT_EQ(batch.token_keys[static_cast<size_t>(i)],
              static_cast<uint64_t>((sample << 20) | row));
  }
}

TEST(Loader, ImpossibleOptionsAreNamed) {
  TempDir dir;
  const LoaderOptions good = SmallOptions(WriteCorpus(dir, "c", CountingDocuments({100})), 8);
  const ByteTokenizer tokenizer(20000);
  const auto error = [&](auto change) {
    LoaderOptions options = good;
    change(options);
    return CreateError(options);
  };
  EXPECT_EQ(error([](auto&) {}), "");
  EXPECT_THAT(error([](auto& o) { o.sources.clear(); }), HasSubstr("data.sources"));
  EXPECT_THAT(error([](auto& o) { o.sources[0].path += "x"; }), HasSubstr("cx"));
  EXPECT_THAT(error([](auto& o) { o.sources[0].weight = -1; }), HasSubstr("weight"));
  EXPECT_THAT(error([](auto& o) { o.sequence_length = 0; }), HasSubstr("sequence_length"));
  EXPECT_THAT(error([](auto& o) { o.sequence_length = 1 << 21; }), HasSubstr("sequence_length"));
  EXPECT_THAT(error([](auto& o) { o.micro_batch_size = 3; }), HasSubstr("global_batch_size"));
  EXPECT_THAT(error([](auto& o) { o.global_batch_size = o.micro_batch_size = 1 << 30; }),
              HasSubstr("micro_batch_size"));
  EXPECT_THAT(error([](auto& o) { o.objective = Objective::kMlm; }), HasSubstr("tokenizer"));
  EXPECT_THAT(error([](auto& o) { o.next_sentence = true; }), HasSubstr("next_sentence"));
  EXPECT_THAT(error([](auto& o) { o.vocab_rows = 0; }), HasSubstr("vocab_size"));
  const auto mlm_error = [&](auto change) {
    return error([&](LoaderOptions& o) {
      o.objective = Objective::kMlm, o.tokenizer = &tokenizer, change(o);
    });
  };
  EXPECT_EQ(mlm_error([](auto&) {}), "");
  EXPECT_THAT(mlm_error([](auto& o) { o.mlm_probability = 0; }), HasSubstr("mlm_probability"));
  EXPECT_THAT(mlm_error([](auto& o) { o.mlm_probability = 1.01; }), HasSubstr("mlm_probability"));
  EXPECT_THAT(mlm_error([](auto& o) { o.sequence_length = 2; }), HasSubstr("sequence_length"));
  EXPECT_THAT(mlm_error([](auto& o) { o.next_sentence = true; }), HasSubstr("packing"));
  EXPECT_THAT(mlm_error([](auto& o) { o.vocab_rows = 4; }), HasSubstr("[MASK]"));
  const auto loader = MakeLoader(good);
  EXPECT_EQ(loader->Get(int64_t{1} << 50, 0).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(Loader, TheFingerprintTellsDataAndOptionsApart) {
  TempDir dir;
  LoaderOptions options = SmallOptions(WriteCorpus(dir, "a", CountingDocuments({100})), 8);
  const std::string first = MakeLoader(options)->fingerprint();
  EXPECT_EQ(MakeLoader(options)->fingerprint(), first);
  options.micro_batch_size = 4;
  EXPECT_EQ(MakeLoader(options)->fingerprint(), first);
  options.sources[0].path = WriteCorpus(dir, "moved", CountingDocuments({100}));
  EXPECT_EQ(MakeLoader(options)->fingerprint(), first);
  options.sources[0].path = WriteCorpus(dir, "b", CountingDocuments({100}, 101));
  EXPECT_NE(MakeLoader(options)->fingerprint(), first);
  options.sources[0].path = dir.File("a"), options.seed = 3;
  EXPECT_NE(MakeLoader(options)->fingerprint(), first);
}

}  // namespace
}  // namespace tranche
