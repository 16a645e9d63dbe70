// What a document's result may depend on: itself, and nothing else in the micro-batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model_configs.h"
#include "model_harness.h"

namespace tranche {
namespace {

class ModelPackingTest : public testing::TestWithParam<std::pair<std::string, std::string>> {
 protected:
  static MicroBatch Make(const TestModel& model, const std::vector<std::vector<int32_t>>& documents,
                         uint64_t sample = 0) {
    MicroBatch batch = MakeBatch(
        documents, {.causal = model.config().head == HeadKind::kCausal, .sample = sample});
    std::fill(batch.token_types.begin(), batch.token_types.end(), 0);
    return batch;
  }
  // The per-token losses of the last `document`.
  static std::vector<float> LastLosses(TestModel& model, const MicroBatch& batch,
                                       size_t begin_row) {
    std::vector<float> losses;
    model.Evaluate(batch, &losses);
    size_t first = 0;
    while (first < batch.predict_rows.size() &&
           static_cast<size_t>(batch.predict_rows[first]) < begin_row) {
      ++first;
    }
    return {losses.begin() + static_cast<int64_t>(first), losses.end()};
  }
};

INSTANTIATE_TEST_SUITE_P(Architectures, ModelPackingTest, testing::ValuesIn(TinyConfigs(0.1)),
                         [](const auto& info) { return info.param.first; });

TEST_P(ModelPackingTest, ADocumentsLossesAreTheSameBitsWhateverIsPackedBeforeIt) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TestModel model(GetParam().second, {.dtype = dtype});
    const std::vector<int32_t> b = RandomDocument(2, 7);
    const std::vector<float> alone = LastLosses(model, Make(model, {b}), 0);
    ASSERT_FALSE(alone.empty());
    for (const size_t length : {1, 5, 20, 32}) {
      std::vector<int32_t> a = RandomDocument(3, length);
      EXPECT_EQ(LastLosses(model, Make(model, {a, b}), length), alone) << "behind " << length;
      a.back() ^= 1;
      EXPECT_EQ(LastLosses(model, Make(model, {a, b}), length), alone) << "behind another token";
    }
    EXPECT_EQ(LastLosses(model, Make(model, {{5}, {6}, RandomDocument(4, 9), b}), 11), alone);
  }
}

TEST_P(ModelPackingTest, ALaterTokenIsInvisibleToCausalModelsAndVisibleToOthers) {
  TestModel model(GetParam().second);
  std::vector<int32_t> document = RandomDocument(2, 9);
  std::vector<float> before, after;
  const MicroBatch batch = Make(model, {document});
  model.Evaluate(batch, &before);
  MicroBatch changed = batch;
  changed.input_ids[8] ^= 1;
  model.Evaluate(changed, &after);
  if (model.config().causal) {
    EXPECT_EQ(after, before);
  } else {
    EXPECT_NE(after, before);
  }
}

TEST_P(ModelPackingTest, RowLossesSumToTheLossAndFollowFromTheLogits) {
  TestModel model(GetParam().second);
  const MicroBatch batch = Make(model, {RandomDocument(1, 9), RandomDocument(5, 13)});
  std::vector<float> rows;
  const double loss = model.Evaluate(batch, &rows);
  const std::vector<float> logits = model.Logits(batch);
  const int64_t vocabulary = model.config().vocab_size;
  double sum = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    sum += rows[r];
    double total = 0;
    const float* row = logits.data() + static_cast<int64_t>(r) * vocabulary;
    for (int64_t v = 0; v < vocabulary; ++v) total += std::exp(static_cast<double>(row[v]));
    EXPECT_NEAR(rows[r], std::log(total) - row[batch.labels[r]], 1e-4);
  }
  EXPECT_NEAR(loss, sum, 1e-5 * sum);
}

// Dropout masks follow a token's identity, not its row: a document's gradients, its dropout drawn,
// are the same alone and behind another that predicts nothing.
TEST_P(ModelPackingTest, DropoutFollowsTheTokenNotTheRow) {
  TestModel model(GetParam().second);
  const std::vector<int32_t> a = RandomDocument(3, 5), b = RandomDocument(2, 8);
  MicroBatch packed = Make(model, {a, b});
  while (!packed.predict_rows.empty() && packed.predict_rows.front() < 5) {
    packed.predict_rows.erase(packed.predict_rows.begin());
    packed.labels.erase(packed.labels.begin());
  }
  const MicroBatch alone = Make(model, {b}, /*sample=*/1);
  ASSERT_EQ(packed.labels, alone.labels);
  double packed_loss = 0, alone_loss = 0;
  model.Train(packed, 5, &packed_loss);
  model.Train(alone, 5, &alone_loss);
  EXPECT_EQ(packed_loss, alone_loss);
}

}  // namespace
}  // namespace tranche
