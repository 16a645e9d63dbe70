// Memory and arithmetic of a model, known before it runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model_configs.h"
#include "model_harness.h"

namespace tranche {
namespace {

using testing::Lt;

constexpr char kPhi2[] = R"({"model_type":"phi","architectures":["PhiForCausalLM"],
    "vocab_size":51200,"hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":32,
    "num_attention_heads":32,"partial_rotary_factor":0.4,"max_position_embeddings":2048,
    "resid_pdrop":0.1})";
constexpr char kBert25[] = R"({"model_type":"bert","architectures":["BertForMaskedLM"],
    "vocab_size":30522,"hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":31,
    "num_attention_heads":32,"max_position_embeddings":512})";

struct Planned {
  int64_t peak = 0;
  int64_t activations = 0;
  PlanCounts counts;
  int64_t weights = 0;
  int64_t head_chunk = 0;
};

// One real step of a full-size model on the plan backend.
Planned PlanStep(const std::string& config_json, int64_t sequences, int64_t length,
                 int64_t predicted, DType dtype, Recompute recompute) {
  const ModelConfig config =
      ParseModelConfig(ParseOrderedJson(config_json, "test").value(), "test").value();
  const std::vector<ParamSpec> specs = BuildParamSpecs(config);
  const std::unique_ptr<PlanBackend> backend = CreatePlanBackend(2);
  Arena arena = Arena::Rehearsal();
  FlatGroups groups(specs, dtype, arena);
  TransformerOptions options{.dtype = dtype, .recompute = recompute};
  options.max_tokens = sequences * length;
  options.max_segments = sequences;
  options.max_predicted = predicted;
  options.max_length = length;
  DeviceBatch batch(config, options, *backend, arena);
  const Tensor loss = arena.Allocate("loss", MemoryKind::kWorkspace, DType::kFloat64, 1, 1);
  backend->ReserveWorkspace(
      {dtype, options.max_tokens, sequences, config.num_heads, config.head_dim}, arena);
  const auto model = Transformer::Create(config, specs, options, *backend, arena, groups).value();
  arena.Seal();

  MicroBatch micro;
  micro.cu_seqlens = {0};
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t t = 0; t < length; ++t) {
      micro.input_ids.push_back(0);
      micro.positions.push_back(static_cast<int32_t>(t));
      micro.token_types.push_back(0);
      micro.token_keys.push_back(0);
    }
    micro.cu_seqlens.push_back(static_cast<int32_t>(micro.num_tokens()));
  }
  micro.cu_sequences = micro.cu_seqlens;
  for (int64_t p = 0; p < predicted; ++p) {
    micro.predict_rows.push_back(static_cast<int32_t>(p));
    micro.labels.push_back(0);
  }
  const std::unique_ptr<Stream> stream = backend->CreateStream("test");
  backend->ResetCounts();
  batch.Upload(*stream, micro);
  model->ForwardBackward(*stream, batch, 1, 1, 0, loss, Tensor());
  return {.peak = arena.peak(),
          .activations = arena.BytesOf(MemoryKind::kActivations),
          .counts = backend->counts(),
          .weights = TotalElements(specs),
          .head_chunk = model->head_chunk_rows()};
}

TEST(ModelPlanTest, FlopsOfPhi2EqualTheClosedForm) {
  constexpr int64_t h = 2560, inner = 10240, layers = 32, n = 2 * 2048, vocabulary = 51200;
  const Planned none = PlanStep(kPhi2, 2, 2048, n, DType::kBFloat16, Recompute::kNone);
  const int64_t layer = 2 * n * (4 * h * h + 2 * h * inner);
  EXPECT_EQ(none.counts.matmul_flops, 3 * (layers * layer + 2 * n * vocabulary * h));
  const int64_t pairs = 2 * (2048 * 2049 / 2);
  EXPECT_EQ(none.counts.attention_flops, 14 * pairs * h * layers);
  const Planned selective = PlanStep(kPhi2, 2, 2048, n, DType::kBFloat16, Recompute::kSelective);
  EXPECT_EQ(selective.counts.matmul_flops, none.counts.matmul_flops) << "cheap parts only";
  EXPECT_EQ(selective.counts.attention_flops, none.counts.attention_flops);
  const Planned full = PlanStep(kPhi2, 2, 2048, n, DType::kBFloat16, Recompute::kFull);
  // The projections back to the stream are of no use a second time.
  EXPECT_EQ(full.counts.matmul_flops,
            none.counts.matmul_flops + layers * 2 * n * (3 * h * h + h * inner));
  EXPECT_EQ(full.counts.attention_flops, 18 * pairs * h * layers);
}

TEST(ModelPlanTest, MaskedModelsProjectOnlyThePredictedRows) {
  constexpr int64_t h = 2560, inner = 10240, layers = 31, n = 8 * 512, predicted = 600;
  const Planned plan = PlanStep(kBert25, 8, 512, predicted, DType::kFloat32, Recompute::kNone);
  EXPECT_GT(plan.weights, 2400000000);
  const int64_t layer = 2 * n * (4 * h * h + 2 * h * inner);
  EXPECT_EQ(plan.counts.matmul_flops, 3 * (layers * layer + 2 * predicted * (30522 * h + h * h)));
  EXPECT_LE(plan.head_chunk * 30522 * 4, 40 << 20) << "logits never exist at once";
}

TEST(ModelPlanTest, ActivationsShrinkWithEachLevelToTheStreamAtLayerBorders) {
  for (const char* config : {kPhi2, kBert25}) {
    const auto activations = [&](Recompute level) {
      return PlanStep(config, 8, 512, 512, DType::kBFloat16, level).activations;
    };
    const int64_t none = activations(Recompute::kNone);
    const int64_t selective = activations(Recompute::kSelective);
    const int64_t full = activations(Recompute::kFull);
    EXPECT_THAT(selective, Lt(none * 3 / 4));
    EXPECT_THAT(full, Lt(selective / 3));
    // The borders, and the working set of one layer.
    const int64_t stream = 8 * 512 * 2560 * 2;
    EXPECT_THAT(full, Lt(33 * stream + 24 * stream + (64 << 20)));
  }
}

class ModelMemoryTest : public testing::TestWithParam<std::pair<std::string, std::string>> {};
INSTANTIATE_TEST_SUITE_P(Architectures, ModelMemoryTest, testing::ValuesIn(TinyConfigs(0.1)),
                         [](const auto& info) { return info.param.first; });

// The arena of the run is made as large as the plan says and not a byte larger; a request beyond
// it, or after the model is made, aborts.
TEST_P(ModelMemoryTest, ThePlanEqualsTheArenaToTheByteAtEachLevelAndType) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Recompute level : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      TestModel model(GetParam().second, {.dtype = dtype, .recompute = level});
      EXPECT_EQ(model.arena_peak(), model.PlannedBytes());
      MicroBatch batch = MakeBatch({RandomDocument(1, 32), RandomDocument(2, 32)},
                                   {.causal = model.config().head == HeadKind::kCausal});
      std::fill(batch.token_types.begin(), batch.token_types.end(), 0);
      model.Train(batch);
      EXPECT_EQ(model.arena_peak(), model.PlannedBytes());
    }
  }
}

TEST(ModelCreateTest, SequencesBeyondLearnedPositionsAreRefused) {
  const ModelConfig config =
      ParseModelConfig(ParseOrderedJson(kBert25, "test").value(), "test").value();
  const std::vector<ParamSpec> specs = BuildParamSpecs(config);
  const std::unique_ptr<PlanBackend> backend = CreatePlanBackend(1);
  Arena arena = Arena::Rehearsal();
  FlatGroups groups(specs, DType::kFloat32, arena);
  TransformerOptions options{
      .max_tokens = 513, .max_segments = 1, .max_predicted = 1, .max_length = 513};
  const auto refused = Transformer::Create(config, specs, options, *backend, arena, groups);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("512"));
  options.max_length = 512;
  EXPECT_TRUE(Transformer::Create(config, specs, options, *backend, arena, groups).ok());
}

TEST(InitializeTest, AnElementDependsOnSeedNameAndPlaceAlone) {
  ParamSpec spec{.name = "layers.0.qkv.weight",
                 .rows = 30,
                 .cols = 41,
                 .init = InitKind::kNormal,
                 .init_std = 0.02};
  std::vector<float> whole(30 * 41), pieces(whole.size());
  InitialValues(spec, 5, 0, spec.elements(), whole.data());
  for (int64_t begin = spec.elements(); begin > 0; begin -= 41) {
    InitialValues(spec, 5, begin - 41, 41, pieces.data() + begin - 41);
  }
  EXPECT_EQ(pieces, whole);
  InitialValues(spec, 6, 0, spec.elements(), pieces.data());
  EXPECT_NE(pieces, whole);
  spec.name = "layers.1.qkv.weight";
  InitialValues(spec, 5, 0, spec.elements(), pieces.data());
  EXPECT_NE(pieces, whole);
}

TEST(InitializeTest, ValuesHaveTheSpecifiedDistribution) {
  ParamSpec spec{.name = "w",
                 .rows = 400,
                 .cols = 500,
                 .init = InitKind::kNormal,
                 .init_std = 0.5,
                 .init_zero_row = 7};
  std::vector<float> values(200000);
  const auto moments = [&] {
    InitialValues(spec, 1, 0, spec.elements(), values.data());
    double sum = 0, squares = 0, fourth = 0, neighbours = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double x = values[i];
      sum += x, squares += x * x, fourth += x * x * x * x;
      if (i > 0) neighbours += x * values[i - 1];
    }
    const double n = static_cast<double>(values.size() - 500);
    return std::array<double, 4>{sum / n, std::sqrt(squares / n),
                                 fourth / n / (squares / n * squares / n), neighbours / squares};
  };
  const auto [mean, deviation, kurtosis, correlation] = moments();
  EXPECT_NEAR(mean, 0, 0.005);
  EXPECT_NEAR(deviation, 0.5, 0.004);
  EXPECT_NEAR(kurtosis, 3, 0.06);
  EXPECT_NEAR(correlation, 0, 0.01);
  EXPECT_THAT(std::vector<float>(values.begin() + 3500, values.begin() + 4000),
              testing::Each(0.0f));
  spec.init = InitKind::kTruncatedNormal;
  spec.init_cutoff = 2;
  EXPECT_NEAR(moments()[1], 0.5 * 0.8796, 0.004);  // of a normal cut at two deviations
  for (const float value : values) EXPECT_LE(std::abs(value), 1.0f);
}

}  // namespace
}  // namespace tranche
