// Gradients of whole tiny models: against finite differences, across recompute levels, threads,
// chunk sizes and micro-batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "model_configs.h"
#include "model_harness.h"

namespace tranche {
namespace {

constexpr double kDropout = 0.5;

MicroBatch BatchFor(const ModelConfig& config, uint64_t seed = 1) {
  MicroBatch batch = MakeBatch(
      {RandomDocument(seed, 11), RandomDocument(seed + 1, 7), RandomDocument(seed + 2, 14)},
      {.causal = config.head == HeadKind::kCausal});
  if (config.next_sentence_head) batch.next_sentence = {0, 1, 1};
  if (config.num_token_types == 0 || config.num_token_types == 1) {
    std::fill(batch.token_types.begin(), batch.token_types.end(), 0);
  }
  return batch;
}

// One instance per architecture.
class ModelGradientTest : public testing::TestWithParam<std::pair<std::string, std::string>> {};

INSTANTIATE_TEST_SUITE_P(Architectures, ModelGradientTest, testing::ValuesIn(TinyConfigs(kDropout)),
                         [](const auto& info) { return info.param.first; });

double Norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

TEST_P(ModelGradientTest, EveryGradientEqualsFiniteDifferencesWithDropoutOn) {
  TestModel model(GetParam().second);
  const MicroBatch batch = BatchFor(model.config());
  constexpr uint64_t kKey = 11;
  model.ClearGradients();
  model.ForwardBackward(batch, 1.0f, kKey);
  const Gradients gradients = model.GetGradients();
  for (size_t i = 0; i < model.specs().size(); ++i) {
    const std::vector<float>& gradient = gradients[i];
    const double norm = Norm(gradient);
    const std::vector<float> weights = model.GetWeight(i);
    // Along the gradient (finds a wrong scale or sign) and along a random direction (finds a wrong
    // direction).
    for (const bool random : {false, true}) {
      std::vector<double> direction(gradient.size());
      double length = 0;
      for (size_t e = 0; e < direction.size(); ++e) {
        direction[e] = random ? UniformFloat(Philox(e, i, 5)[0]) - 0.5 : gradient[e];
        length += direction[e] * direction[e];
      }
      if (length == 0) continue;
      length = std::sqrt(length);
      double expected = 0;
      for (size_t e = 0; e < direction.size(); ++e) {
        direction[e] /= length;
        expected += direction[e] * gradient[e];
      }
      // Curvature bounds the step from above, rounding of the loss from below.
      const double step = 2e-2 / std::max(1.0, norm);
      const auto loss_at = [&](double distance) {
        std::vector<float> moved(weights);
        for (size_t e = 0; e < moved.size(); ++e) {
          moved[e] += static_cast<float>(distance * direction[e]);
        }
        model.SetWeight(i, moved);
        return model.ForwardBackward(batch, 1.0f, kKey);
      };
      // Fourth order, so that the step may be large.
      const double measured =
          (8 * (loss_at(step) - loss_at(-step)) - (loss_at(2 * step) - loss_at(-2 * step))) /
          (12 * step);
      model.SetWeight(i, weights);
      EXPECT_NEAR(measured, expected, 5e-3 * norm + 3e-3)
          << model.specs()[i].name << (random ? " random direction" : " along the gradient");
    }
  }
}

TEST_P(ModelGradientTest, RecomputeLevelsGiveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Gradients reference;
    double reference_loss = 0;
    for (const Recompute level : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      TestModel model(GetParam().second, {.dtype = dtype, .recompute = level});
      const MicroBatch batch = BatchFor(model.config());
      double loss = 0;
      const Gradients gradients = model.Train(batch, 3, &loss);
      if (level == Recompute::kNone) {
        reference = gradients;
        reference_loss = loss;
        // Dropout draws: another key, another loss.
        double other = 0;
        model.Train(batch, 4, &other);
        const bool drops = model.config().attention_dropout > 0 ||
                           model.config().attention_output_dropout > 0 ||
                           model.config().embedding_dropout > 0;
        EXPECT_EQ(other != loss, drops);
        continue;
      }
      EXPECT_EQ(loss, reference_loss) << Name(level);
      for (size_t i = 0; i < gradients.size(); ++i) {
        EXPECT_EQ(gradients[i], reference[i])
            << DTypeName(dtype) << ' ' << Name(level) << ' ' << model.specs()[i].name;
      }
    }
  }
}

TEST_P(ModelGradientTest, ThreadCountsGiveTheSameBits) {
  Gradients reference;
  for (const int threads : {1, 2, 5}) {
    TestModel model(GetParam().second, {.threads = threads});
    const Gradients gradients = model.Train(BatchFor(model.config()), 3);
    if (threads == 1) {
      reference = gradients;
    } else {
      EXPECT_EQ(gradients, reference) << threads << " threads";
    }
  }
}

TEST_P(ModelGradientTest, ChunksOfTheHeadChangeNothingButRounding) {
  TestModel whole(GetParam().second);
  const MicroBatch batch = BatchFor(whole.config());
  double loss = 0;
  const Gradients reference = whole.Train(batch, 3, &loss);
  for (const int64_t rows : {1, 4, 7}) {
    TestModel chunked(GetParam().second, {.head_chunk_rows = rows});
    EXPECT_EQ(chunked.transformer().head_chunk_rows(), rows);
    double chunked_loss = 0;
    const Gradients gradients = chunked.Train(batch, 3, &chunked_loss);
    EXPECT_EQ(chunked_loss, loss);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const double tolerance = 1e-6 * Norm(reference[i]) + 1e-9;
      EXPECT_THAT(gradients[i], testing::Pointwise(testing::FloatNear(tolerance), reference[i]))
          << chunked.specs()[i].name;
    }
  }
}

TEST_P(ModelGradientTest, OneMicroBatchOfEightEqualsEightOfOne) {
  TestModel model(GetParam().second);
  const bool causal = model.config().head == HeadKind::kCausal;
  std::vector<std::vector<int32_t>> documents;
  for (size_t d = 0; d < 8; ++d) documents.push_back(RandomDocument(20 + d, 2 + (d * 5) % 9));
  const auto make = [&](size_t begin, size_t count) {
    MicroBatch batch = MakeBatch({documents.begin() + static_cast<int64_t>(begin),
                                  documents.begin() + static_cast<int64_t>(begin + count)},
                                 {.causal = causal, .sample = begin});
    std::fill(batch.token_types.begin(), batch.token_types.end(), 0);
    for (size_t d = begin; model.config().next_sentence_head && d < begin + count; ++d) {
      batch.next_sentence.push_back(static_cast<int32_t>(d % 2));
    }
    return batch;
  };
  const MicroBatch together = make(0, 8);
  const float scale = 1.0f / static_cast<float>(together.num_predicted());
  model.ClearGradients();
  const double loss = model.ForwardBackward(together, scale, 3);
  const Gradients reference = model.GetGradients();
  model.ClearGradients();
  double sum = 0;
  for (size_t d = 0; d < 8; ++d) sum += model.ForwardBackward(make(d, 1), scale, 3);
  const Gradients gradients = model.GetGradients();
  EXPECT_NEAR(sum, loss, 1e-6 * loss);
  double all = 0;
  for (const auto& gradient : reference) all += Norm(gradient) * Norm(gradient);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const double tolerance = 1e-6 * Norm(reference[i]) + 1e-7 * std::sqrt(all);
    EXPECT_THAT(gradients[i], testing::Pointwise(testing::FloatNear(tolerance), reference[i]))
        << model.specs()[i].name;
  }
}

TEST_P(ModelGradientTest, GroupsAreReleasedAndReducedOnceInBackwardOrder) {
  TestModel model(GetParam().second);
  std::vector<int> expected;
  for (int64_t g = model.config().num_layers + 1; g >= 0; --g) {
    expected.push_back(static_cast<int>(g));
  }
  model.Train(BatchFor(model.config()));
  EXPECT_EQ(model.groups().TakeReduced(), expected);
  EXPECT_TRUE(model.groups().AllReleased());
  // A rank without data still takes part in every exchange.
  MicroBatch nothing;
  nothing.cu_seqlens = nothing.cu_sequences = {0};
  const Gradients before = model.GetGradients();
  EXPECT_EQ(model.ForwardBackward(nothing, 1), 0);
  EXPECT_EQ(model.groups().TakeReduced(), expected);
  EXPECT_EQ(model.GetGradients(), before);
}

TEST_P(ModelGradientTest, AMicroBatchWithoutTargetsAddsNothing) {
  TestModel model(GetParam().second);
  MicroBatch batch = BatchFor(model.config());
  batch.predict_rows.clear();
  batch.labels.clear();
  batch.next_sentence.clear();
  model.ClearGradients();
  EXPECT_EQ(model.ForwardBackward(batch, 1), 0);
  for (const std::vector<float>& gradient : model.GetGradients()) {
    EXPECT_THAT(gradient, testing::Each(0.0f));
  }
}

// torch's padding_idx: two models that differ only in which row is the padding row, on a batch that
// holds the one's padding token, differ in that row's gradient and nowhere else.
TEST_P(ModelGradientTest, OnlyThePaddingRowMissesTheGradientOfItsLookups) {
  std::string other = GetParam().second;
  const size_t at = other.find("\"pad_token_id\":0");
  if (at == std::string::npos) return;  // no padding row that can be moved
  other.replace(at, 16, "\"pad_token_id\":3");
  TestModel padded(GetParam().second), moved(other);
  for (size_t i = 0; i < padded.specs().size(); ++i) moved.SetWeight(i, padded.GetWeight(i));
  MicroBatch batch = BatchFor(padded.config());
  batch.input_ids[3] = batch.input_ids[12] = 0;
  Gradients without = padded.Train(batch);
  const Gradients with = moved.Train(batch);
  const size_t table = padded.param("embeddings.token.weight");
  const size_t hidden = static_cast<size_t>(padded.config().hidden_size);
  const std::vector<float> row(without[table].begin(),
                               without[table].begin() + static_cast<int64_t>(hidden));
  EXPECT_EQ(Norm(row) != 0, padded.config().tied) << "the decoder's part stays";
  double difference = 0;
  for (size_t e = 0; e < hidden; ++e) {
    difference += std::abs(with[table][e] - without[table][e]);
    without[table][e] = with[table][e];
  }
  EXPECT_GT(difference, 1e-4);
  EXPECT_EQ(with, without);
}

TEST(RobertaPositionsTest, PaddingIsNotCountedAndItsPositionRowGetsNoGradient) {
  const std::map<std::string, std::string> configs = [] {
    const auto list = TinyConfigs(0);
    return std::map<std::string, std::string>(list.begin(), list.end());
  }();
  TestModel model(configs.at("roberta"));
  constexpr int32_t kPad = 1;
  // Two documents with padding in front, inside and behind.
  MicroBatch batch = MakeBatch({{kPad, 5, 6, kPad, 7}, {8, 9, kPad}}, {.causal = false});
  std::fill(batch.token_types.begin(), batch.token_types.end(), 0);
  const Gradients gradients = model.Train(batch);
  const std::vector<float>& table = gradients[model.param("embeddings.position.weight")];
  const int64_t hidden = model.config().hidden_size;
  std::vector<int> touched;
  for (int64_t row = 0; row < static_cast<int64_t>(table.size()) / hidden; ++row) {
    const auto begin = table.begin() + row * hidden;
    if (Norm({begin, begin + hidden}) > 0) touched.push_back(static_cast<int>(row));
  }
  EXPECT_THAT(touched, testing::ElementsAre(2, 3, 4));  // the first real token reads row pad + 1
}

}  // namespace
}  // namespace tranche
