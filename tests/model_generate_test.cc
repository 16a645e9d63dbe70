// Generation: the key/value cache, sampling, and a real pretrained model's answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/file.h"
#include "model/generate.h"
#include "model/hf_folder.h"
#include "model/hf_weights.h"
#include "model_configs.h"
#include "model_harness.h"
#include "model_test_generator.h"

namespace tranche {
namespace {

std::vector<std::pair<std::string, std::string>> CausalConfigs() {
  std::vector<std::pair<std::string, std::string>> causal;
  for (const auto& [name, text] : TinyConfigs(0.1)) {
    if (text.find("ForCausalLM") != std::string::npos) causal.emplace_back(name, text);
  }
  return causal;
}

class GenerateTest : public testing::TestWithParam<std::pair<std::string, std::string>> {};
INSTANTIATE_TEST_SUITE_P(Architectures, GenerateTest, testing::ValuesIn(CausalConfigs()),
                         [](const auto& info) { return info.param.first; });

TEST_P(GenerateTest, TheCacheChangesNothing) {
  TestModel model(GetParam().second);
  TestGenerator generator(model.config(), model.specs(), 32);
  for (size_t i = 0; i < model.specs().size(); ++i) generator.SetWeight(i, model.GetWeight(i));
  const std::vector<int32_t> document = RandomDocument(3, 24);
  const auto compare = [&](const std::vector<float>& logits, size_t row) {
    MicroBatch whole =
        MakeBatch({{document.begin(), document.begin() + static_cast<int64_t>(row) + 1}}, {});
    whole.predict_rows = {static_cast<int32_t>(row)};
    whole.labels = {0};
    EXPECT_THAT(logits, testing::Pointwise(testing::FloatNear(1e-5f), model.Logits(whole)))
        << "row " << row;
  };
  // Token by token, then in pieces, behind a Reset.
  for (size_t t = 0; t < document.size(); ++t) compare(generator->Read({&document[t], 1}), t);
  generator->Reset();
  size_t begin = 0;
  for (const size_t count : {5, 1, 11, 7}) {
    const std::vector<float> logits = generator->Read({&document[begin], count});
    begin += count;
    compare(logits, begin - 1);
  }
}

TEST_P(GenerateTest, GenerationIsAFunctionOfPromptAndSeedAndStopsWhereItShould) {
  TestModel model(GetParam().second);
  TestGenerator generator(model.config(), model.specs(), 32);
  for (size_t i = 0; i < model.specs().size(); ++i) generator.SetWeight(i, model.GetWeight(i));
  const std::vector<int32_t> prompt = RandomDocument(5, 4);
  SamplingOptions sampling{.max_new_tokens = 100, .temperature = 2, .seed = 1};
  const std::vector<int32_t> first = generator->Generate(prompt, sampling, 0);
  EXPECT_EQ(first.size(), 28u) << "max_length bounds both";
  EXPECT_EQ(generator->Generate(prompt, sampling, 0), first);
  EXPECT_NE(generator->Generate(prompt, sampling, 1), first);
  sampling.stop_ids = {first[9]};
  const std::vector<int32_t> stopped = generator->Generate(prompt, sampling, 0);
  const auto stop = std::find(first.begin(), first.end(), first[9]);
  EXPECT_EQ(stopped, std::vector<int32_t>(first.begin(), stop));
  sampling.stop_ids.clear();
  sampling.max_new_tokens = 6;
  EXPECT_EQ(generator->Generate(prompt, sampling, 0),
            std::vector<int32_t>(first.begin(), first.begin() + 6));
}

TEST(SampleTokenTest, DrawsFollowTheProbabilitiesThatTopKAndTopPLeave) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(0.125f), std::log(0.5f), std::log(0.25f),
                                     std::log(0.125f)};
  const auto frequencies = [&](const SamplingOptions& sampling) {
    std::vector<double> counts(4);
    for (int i = 0; i < 1000; ++i) {
      counts[static_cast<size_t>(SampleToken(logits, sampling, (i + 0.5) / 1000))] += 1e-3;
    }
    return counts;
  };
  const auto are = [](double a, double b, double c, double d) {
    return testing::Pointwise(testing::DoubleNear(2e-3), std::vector<double>{a, b, c, d});
  };
  EXPECT_THAT(frequencies({.temperature = 0}), are(0, 1, 0, 0));
  EXPECT_THAT(frequencies({.temperature = 1}), are(0.125, 0.5, 0.25, 0.125));
  EXPECT_THAT(frequencies({.temperature = 1, .top_k = 2}), are(0, 2.0 / 3, 1.0 / 3, 0));
  EXPECT_THAT(frequencies({.temperature = 1, .top_k = 1}), are(0, 1, 0, 0));
  EXPECT_THAT(frequencies({.temperature = 1, .top_p = 0.74}), are(0, 2.0 / 3, 1.0 / 3, 0));
  EXPECT_THAT(frequencies({.temperature = 1, .top_p = 0.3}), are(0, 1, 0, 0));
  EXPECT_THAT(frequencies({.temperature = 1, .top_p = 0}), are(0, 1, 0, 0));
  EXPECT_THAT(frequencies({.temperature = 1, .top_p = 0.8}), are(1.0 / 7, 4.0 / 7, 2.0 / 7, 0));
  EXPECT_THAT(frequencies({.temperature = 0.5}), are(1.0 / 22, 16.0 / 22, 4.0 / 22, 1.0 / 22));
  EXPECT_THAT(frequencies({.temperature = 1, .top_k = 99}), are(0.125, 0.5, 0.25, 0.125));
}

class Stories260KTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* shared = std::getenv("TRANCHE_SHARED");
    path_ = JoinPath(shared != nullptr ? shared : TRANCHE_SOURCE_DIR "/../shared",
                     "fixtures/stories260K/hf");
    if (!FileExists(JoinPath(path_, "expect.json"))) GTEST_SKIP() << path_ << " is not there";
    expect_ = ReadJsonFile(JoinPath(path_, "expect.json")).value();
    folder_ = std::make_unique<HfFolder>(HfFolder::Open(path_, nullptr).value());
    specs_ = BuildParamSpecs(folder_->config());
    weights_ = std::make_unique<HfWeights>(
        HfWeights::Match(*folder_, folder_->config(), specs_, {}, nullptr).value());
  }
  std::vector<float> Weight(size_t param) const {
    std::vector<float> values(static_cast<size_t>(specs_[param].elements()));
    weights_->CopyElements(static_cast<int>(param), 0, specs_[param].elements(), TensorType::kF32,
                           values.data());
    return values;
  }

  std::string path_;
  nlohmann::json expect_;
  std::unique_ptr<HfFolder> folder_;
  std::vector<ParamSpec> specs_;
  std::unique_ptr<HfWeights> weights_;
};

TEST_F(Stories260KTest, GreedyTokensEqualTheReferences) {
  TestGenerator generator(folder_->config(), specs_, 512);
  for (size_t i = 0; i < specs_.size(); ++i) generator.SetWeight(i, Weight(i));
  for (const nlohmann::json& item : expect_["greedy"]) {
    const auto ids = item["prompt_ids"].get<std::vector<int32_t>>();
    const auto expected = item["new_ids"].get<std::vector<int32_t>>();
    SamplingOptions sampling;
    sampling.max_new_tokens = static_cast<int64_t>(expected.size());
    sampling.stop_ids = {1, 2};
    EXPECT_EQ(generator->Generate(ids, sampling, 0), expected) << item["prompt"];
  }
}

TEST_F(Stories260KTest, MeanLossesEqualTheReferences) {
  TestModel model(ReadFile(JoinPath(path_, "config.json")).value(),
                  {.max_tokens = 512, .max_length = 512});
  for (size_t i = 0; i < specs_.size(); ++i) model.SetWeight(i, Weight(i));
  for (const nlohmann::json& item : expect_["losses"]) {
    const MicroBatch batch = MakeBatch({item["ids"].get<std::vector<int32_t>>()}, {});
    ASSERT_EQ(batch.num_predicted(), item["predicted_tokens"].get<int64_t>());
    EXPECT_NEAR(model.Evaluate(batch) / static_cast<double>(batch.num_predicted()),
                item["mean_loss_float64"].get<double>(), 2e-6)
        << item["name"];
  }
}

}  // namespace
}  // namespace tranche
