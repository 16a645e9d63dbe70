// Rotations that depend on the length of what is read (longrope): numbers of transformers on both
// sides of the border, alone, packed and generated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "model/generate.h"
#include "model_harness.h"
#include "model_test_generator.h"

namespace tranche {
namespace {

constexpr char kConfig[] = R"({"model_type":"phi3","vocab_size":32,"hidden_size":16,
    "intermediate_size":24,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,
    "max_position_embeddings":32,"original_max_position_embeddings":8,"partial_rotary_factor":0.75,
    "pad_token_id":0,"bos_token_id":1,"eos_token_id":2,"rope_scaling":{"type":"longrope",
    "short_factor":[1.0,1.1,1.3],"long_factor":[1.5,2.5,4.0]}})";

// Mean losses and greedy tokens of transformers 5.24 for that configuration, from
//   for n, p in model.named_parameters():
//       v = 0.7 * torch.sin(torch.arange(p.numel(), dtype=torch.float64) * 0.61 + sum(map(ord, n)))
//       p.copy_((1 + 0.2 * v if p.dim() == 1 else v).reshape(p.shape).float())
//   ids = torch.tensor([[(7 * i + 3) % 29 + 1 for i in range(T)]])
//   model(input_ids=ids, labels=ids).loss
//   model.generate(ids[:, :5], max_new_tokens=8, do_sample=False, eos_token_id=None)
const std::map<int, double>& Losses() {
  static const auto* losses =
      new std::map<int, double>{{6, 3.637608}, {8, 3.505243}, {9, 3.547390}, {12, 3.515316}};
  return *losses;
}
constexpr int32_t kGreedy[] = {23, 5, 25, 27, 11, 4, 26, 8};

std::vector<float> Values(const ParamSpec& spec) {
  std::vector<float> values;
  for (const HfPart& part : spec.parts) {
    const double phase = std::accumulate(part.name.begin(), part.name.end(), 0.0);
    for (int64_t i = 0; i < part.elements(); ++i) {
      const double wave = 0.7 * std::sin(static_cast<double>(i) * 0.61 + phase);
      values.push_back(static_cast<float>(part.shape.size() == 1 ? 1 + 0.2 * wave : wave));
    }
  }
  return values;
}

std::vector<int32_t> Document(int length) {
  std::vector<int32_t> ids;
  for (int i = 0; i < length; ++i) ids.push_back((7 * i + 3) % 29 + 1);
  return ids;
}

class LongRopeTest : public testing::Test {
 protected:
  LongRopeTest() : model_(kConfig) {
    for (size_t i = 0; i < model_.specs().size(); ++i) {
      model_.SetWeight(i, Values(model_.specs()[i]));
    }
  }
  TestModel model_;
};

TEST_F(LongRopeTest, ADocumentRotatesByItsOwnLengthAsInTransformers) {
  for (const auto& [length, loss] : Losses()) {
    const MicroBatch batch = MakeBatch({Document(length)}, {});
    EXPECT_NEAR(model_.Evaluate(batch) / (length - 1), loss, 2e-6) << length;
  }
}

TEST_F(LongRopeTest, ADocumentsLossesDoNotDependOnLongerOrShorterOnesBesideIt) {
  std::vector<std::vector<int32_t>> documents;
  for (const auto& [length, loss] : Losses()) documents.push_back(Document(length));
  std::vector<float> together, alone, all_alone;
  model_.Evaluate(MakeBatch(documents, {}), &together);
  for (const std::vector<int32_t>& document : documents) {
    model_.Evaluate(MakeBatch({document}, {}), &alone);
    all_alone.insert(all_alone.end(), alone.begin(), alone.end());
  }
  EXPECT_EQ(together, all_alone);
}

TEST_F(LongRopeTest, GenerationReadsAgainWhereItsLengthPassesTheBorder) {
  TestGenerator generator(model_.config(), model_.specs(), 32);
  for (size_t i = 0; i < model_.specs().size(); ++i) {
    generator.SetWeight(i, Values(model_.specs()[i]));
  }
  EXPECT_THAT(generator->Generate(Document(5), {.max_new_tokens = 8}, 0),
              testing::ElementsAreArray(kGreedy));
}

}  // namespace
}  // namespace tranche
