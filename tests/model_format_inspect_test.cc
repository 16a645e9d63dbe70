// `tranche inspect` of a model shows what transformers has, tensor by tensor, and refuses what
// training refuses.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model_format_fixtures.h"
#include "trainer/verbs/inspect_model.h"

namespace tranche {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(InspectModel, ShowsEveryTensorOfEveryRealConfiguration) {
  const std::string configs = SharedPath("fixtures/configs");
  TRANCHE_SKIP_WITHOUT(configs);
  const auto names = ListDir(configs);
  ASSERT_TRUE(names.ok());
  EXPECT_GE(names->size(), 13u);
  for (const std::string& name : *names) {
    const std::string folder = JoinPath(configs, name);
    const Json expect = MustParse(MustRead(JoinPath(folder, "expect.json")));
    const auto json = InspectModel(folder, true);
    ASSERT_TRUE(json.ok()) << json.status();
    const Json shown = MustParse(*json);
    EXPECT_EQ(shown["parameters"], expect["parameters"]) << name;
    std::map<std::string, std::vector<int64_t>> tensors;
    for (const auto& [tensor, entry] : shown["tensors"].items()) {
      tensors[tensor] = entry["shape"].get<std::vector<int64_t>>();
    }
    EXPECT_EQ(tensors, (expect["tensors"].get<std::map<std::string, std::vector<int64_t>>>()))
        << name;
    const auto text = InspectModel(JoinPath(folder, "config.json"), false);
    ASSERT_TRUE(text.ok()) << text.status();
    for (const auto& [tensor, shape] : tensors) EXPECT_THAT(*text, HasSubstr(tensor + " "));
  }
}

TEST(InspectModel, PrintsTheResolvedRotarySettingsAndWindows) {
  const TestFolder folder;
  folder.Write(
      "config.json",
      R"({"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"rope_parameters":{"rope_type":"llama3",
                "rope_theta":500000.0,"factor":32.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}})");
  EXPECT_THAT(
      *InspectModel(folder.path(), false),
      HasSubstr(
          "theta 500000, llama3, 16 of 16 dimensions, factor 32 (low 1, high 4), trained at 8192"));
  folder.Write("config.json",
               R"({"model_type":"modernbert","num_hidden_layers":4,"local_attention":32})");
  EXPECT_THAT(*InspectModel(folder.path(), false),
              AllOf(HasSubstr("layers 0, 3: theta 160000"), HasSubstr("layers 1, 2: theta 10000"),
                    HasSubstr("layers 1, 2: 16 tokens to each side")));
}

TEST(InspectModel, ShowsStoredTypesDecayAndWhatIsOdd) {
  const std::string model = SharedPath("fixtures/parity/bert_mlm");
  TRANCHE_SKIP_WITHOUT(model);
  const Json shown = MustParse(*InspectModel(model, true));
  EXPECT_EQ(shown["tensors"]["cls.predictions.transform.dense.weight"]["dtype"], "F32");
  EXPECT_EQ(shown["tensors"]["cls.predictions.bias"]["decay"], false);
  EXPECT_EQ(shown["tensors"]["bert.embeddings.word_embeddings.weight"]["decay"], true);
  EXPECT_TRUE(shown["notes"].empty());

  const TestFolder folder;
  std::vector<RawTensor> tensors = RawTensorsOf(MustRead(JoinPath(model, "model.safetensors")));
  const auto write = [&](Json config) {
    folder.Write("config.json", config.dump());
    folder.Write("model.safetensors", SafetensorsOf(tensors));
  };
  Json config = MustParse(MustRead(JoinPath(model, "config.json")));
  config["dtype"] = "float16";
  tensors.push_back({"adapter.gamma", "F32", {1}, "1234"});
  write(config);
  EXPECT_THAT(*InspectModel(folder.path(), false),
              AllOf(HasSubstr("adapter.gamma"), HasSubstr("config.json says float16")));
  tensors.erase(
      std::remove_if(tensors.begin(), tensors.end(),
                     [](const RawTensor& tensor) { return tensor.name == "cls.predictions.bias"; }),
      tensors.end());
  write(config);
  EXPECT_THAT(*InspectModel(folder.path(), false),
              AllOf(HasSubstr("fresh"), HasSubstr("cls.predictions.bias")));
  tensors.erase(tensors.begin());
  write(config);
  EXPECT_FALSE(InspectModel(folder.path(), false).ok())
      << "a missing body tensor is refused as in training";
  EXPECT_FALSE(InspectModel(folder.File("nowhere"), false).ok());
}

}  // namespace
}  // namespace tranche
