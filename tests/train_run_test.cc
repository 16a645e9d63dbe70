// The real program: what a run reports, refuses, writes and leaves alone.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <regex>

#include "model/safetensors.h"
#include "train_test_run.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;

MATCHER_P(MatchesPart, pattern, "") {
  return std::regex_search(arg, std::regex(std::string(pattern)));
}

nlohmann::json LastEvent(const SmallRun& run, const std::string& output, const std::string& event) {
  nlohmann::json found;
  const std::string text = Slurp(run.File(output + "/metrics.jsonl"));
  for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const auto json = nlohmann::json::parse(line.begin(), line.end());
    if (json["event"] == event) found = json;
  }
  return found;
}

TEST(TrainRun, TheLossFallsAndEveryStepHasItsLineForPeopleAndMachines) {
  const SmallRun run(/*steps=*/60);
  const Result result = run.Train("run", {"checkpoint.interval=0"});
  ASSERT_EQ(result.code, 0) << result.output;
  const auto steps = run.Steps("run");
  ASSERT_EQ(steps.size(), 60u);
  EXPECT_NEAR(std::stod(steps.at(1)), std::log(97.0), 0.2);
  EXPECT_LT(std::stod(steps.at(60)), std::stod(steps.at(1)) - 0.5);
  EXPECT_THAT(result.output,
              MatchesPart("step 60/60 \\(100.0%\\) \\| loss [0-9.]+ \\| grad_norm [0-9.]+ \\| lr "
                          "3.00e-04 \\| tok/s [0-9.k]+ \\| mfu [0-9.>]+% \\| mem .* \\| data "
                          "[0-9.]+% \\| step .* \\| tokens .* \\| skipped 0 \\| eta "));
  // Off a terminal nothing rewrites lines and nothing is coloured.
  EXPECT_EQ(result.output.find('\r'), std::string::npos);
  EXPECT_EQ(result.output.find('\x1b'), std::string::npos);
}

TEST(TrainRun, ThePlanIsTheMemoryOfTheRunToTheByte) {
  const SmallRun run;
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const std::string level : {"none", "selective", "full"}) {
      const std::vector<std::string> sets = {"training.precision=" + precision,
                                             "training.activation_checkpointing=" + level,
                                             "training.max_steps=3", "--overwrite"};
      const Result plan = run.Call({"plan", run.recipe_path(), "--json", "--set", sets[0], "--set",
                                    sets[1], "--set", sets[2]});
      ASSERT_EQ(plan.code, 0) << plan.output;
      const auto json = nlohmann::json::parse(plan.output);
      const Result result = run.Train("run", sets);
      ASSERT_EQ(result.code, 0) << result.output;
      const int64_t bytes = json["memory_bytes"];
      EXPECT_EQ(LastEvent(run, "run", "start")["memory_bytes"], bytes);
      std::string grouped = std::to_string(bytes);
      for (int at = static_cast<int>(grouped.size()) - 3; at > 0; at -= 3) {
        grouped.insert(static_cast<size_t>(at), ",");
      }
      EXPECT_THAT(result.output, HasSubstr("planned " + grouped + " bytes, used " + grouped + ";"));
      int64_t sum = 0;
      for (const auto& [kind, part] : json["memory_by_kind"].items()) sum += part.get<int64_t>();
      EXPECT_EQ(sum, bytes);
    }
  }
}

TEST(TrainRun, ThePlanKnowsTheBytesOfACheckpoint) {
  const SmallRun run;
  const Result plan =
      run.Call({"plan", run.recipe_path(), "--json", "--set", "run.output_dir=" + run.File("run")});
  ASSERT_EQ(plan.code, 0) << plan.output;
  ASSERT_EQ(run.Train("run").code, 0);
  int64_t bytes = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(run.File("run/checkpoints/step-12"))) {
    if (entry.path().filename() != "manifest.toml") bytes += entry.file_size();
  }
  // The recipe inside tells where each value came from, and one came from --set in another order.
  EXPECT_NEAR(nlohmann::json::parse(plan.output)["checkpoint_bytes"].get<double>(),
              static_cast<double>(bytes), 200);
}

TEST(TrainRun, ADryRunWritesNothing) {
  const SmallRun run;
  const Result result = run.Train("run", {"--dry-run"});
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("together"));
  EXPECT_FALSE(std::filesystem::exists(run.File("run")));
}

TEST(TrainRun, WarmUpLongerThanTheRunIsRefusedBeforeAnythingIsWritten) {
  const SmallRun run;
  const Result result = run.Train("run", {"lr_scheduler.warmup_steps=13"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.output, HasSubstr("warmup_steps"));
  EXPECT_FALSE(std::filesystem::exists(run.File("run/checkpoints")));
  EXPECT_EQ(run.Train("all", {"lr_scheduler.warmup_steps=12"}).code, 0);
}

TEST(TrainRun, EvaluationReportsLossPerplexityAndTheSameFromTheCheckpoint) {
  const SmallRun run;
  const Result result = run.Train("run", {"validation.interval=5", "data.validation_fraction=0.2"});
  ASSERT_EQ(result.code, 0) << result.output;
  for (const std::string step : {"5", "10", "12"}) {
    EXPECT_THAT(result.output, MatchesPart("evaluation after step " + step +
                                           ": held_out: loss [0-9.]+ \\| perplexity [0-9.]+ \\| "));
  }
  const nlohmann::json in_run = LastEvent(run, "run", "evaluation");
  const Result eval = run.Call({"eval", run.File("run"), "--json"});
  ASSERT_EQ(eval.code, 0) << eval.output;
  const auto again = nlohmann::json::parse(eval.output);
  EXPECT_EQ(again["loss"], in_run["loss"]);
  EXPECT_EQ(again["predicted_tokens"], in_run["predicted_tokens"]);
  const Result other = run.Call({"eval", run.File("run"), "--data", run.File("train")});
  EXPECT_EQ(other.code, 0) << other.output;
  EXPECT_THAT(other.output, HasSubstr("train: loss "));
}

// An exported folder of a run, to start others from.
class TrainFromFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(run_.Train("first", {"training.max_steps=3"}).code, 0);
    const Result result = run_.Call({"export", run_.File("first"), run_.File("model")});
    ASSERT_EQ(result.code, 0) << result.output;
    // The folder's config takes the place of the recipe's model.
    std::string recipe = Slurp(run_.recipe_path());
    const size_t begin = recipe.find("init = "), end = recipe.find("[data]");
    recipe.replace(begin, end - begin, "path = \"model\"\n");
    run_.dir().Write("recipe.toml", recipe);
  }
  SmallRun run_;
};

TEST_F(TrainFromFolder, ExportAfterAnUpdateOfRateZeroIsEqualToTheByte) {
  ASSERT_EQ(run_.Train("zero", {"training.max_steps=1", "optimizer.lr=0",
                                "lr_scheduler.warmup_steps=0", "checkpoint.export_hf=last"})
                .code,
            0)
      << Slurp(run_.File("zero.log"));
  EXPECT_EQ(Slurp(run_.File("zero/export/model.safetensors")),
            Slurp(run_.File("model/model.safetensors")));
}

TEST_F(TrainFromFolder, WeightDecayTouchesMatricesAndNothingElse) {
  for (const std::string decay : {"0", "0.5"}) {
    const Result result =
        run_.Train("decay" + decay, {"optimizer.weight_decay=" + decay, "training.max_steps=1",
                                     "lr_scheduler.warmup_steps=0", "checkpoint.export_hf=last"});
    ASSERT_EQ(result.code, 0) << result.output;
  }
  const auto without = SafetensorsFile::Open(run_.File("decay0/export/model.safetensors"));
  const auto with = SafetensorsFile::Open(run_.File("decay0.5/export/model.safetensors"));
  ASSERT_TRUE(without.ok() && with.ok());
  int vectors = 0, matrices = 0;
  for (const StoredTensor& tensor : without->tensors()) {
    const StoredTensor* other = with->Find(tensor.name);
    ASSERT_NE(other, nullptr);
    EXPECT_EQ(tensor.bytes == other->bytes, tensor.shape.size() < 2) << tensor.name;
    ++(tensor.shape.size() < 2 ? vectors : matrices);
  }
  EXPECT_GT(vectors, 10);
  EXPECT_GT(matrices, 8);
}

TEST_F(TrainFromFolder, AWeightThatIsNotFiniteStopsTheRunAndIsNamed) {
  const std::string path = run_.File("model/model.safetensors");
  std::string bytes = Slurp(path);
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  const StoredTensor* victim = file->Find("model.layers.1.mlp.fc2.weight");
  ASSERT_NE(victim, nullptr);
  const float infinity = std::numeric_limits<float>::infinity();
  // The mapping starts at the file's first byte.
  const auto& first = file->tensors().front();
  const size_t header = bytes.size() - [&] {
    size_t data = 0;
    for (const StoredTensor& tensor : file->tensors()) data += tensor.bytes.size();
    return data;
  }();
  const size_t offset = header + static_cast<size_t>(victim->bytes.data() - first.bytes.data());
  std::memcpy(bytes.data() + offset + 4, &infinity, 4);
  std::filesystem::remove(path);
  run_.dir().Write("model/model.safetensors", bytes);
  const Result result = run_.Train("run", {"fault_tolerance.max_skipped_steps=2"});
  EXPECT_EQ(result.code, 76) << result.output;
  EXPECT_THAT(result.output, HasSubstr("the weights of layers.1."));
  EXPECT_THAT(result.output, HasSubstr("element [0, 1]"));
  EXPECT_THAT(result.output, HasSubstr("update skipped"));
  EXPECT_THAT(result.output, HasSubstr("3 steps were not finite"));
  EXPECT_FALSE(run_.HasCheckpoint("run", 4));
}

TEST(TrainRun, MaskedStepsWithoutATargetAreSkippedByRuleAndCounted) {
  const SmallRun run;
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (char letter = 'a'; letter <= 'z'; ++letter) vocabulary += std::string(1, letter) + "\n";
  run.dir().Write("tokenizer/vocab.txt", vocabulary);
  Documents documents;
  for (int i = 0; i < 9; ++i) documents.push_back({5 + i, 6 + i});
  WriteCorpus(run.dir(), "short", documents);
  run.dir().Write("mlm.toml", R"([model]
init = "random"
model_type = "bert"
vocab_size = 31
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 1
num_attention_heads = 2
max_position_embeddings = 16
[tokenizer]
path = "tokenizer"
[data]
objective = "mlm"
mlm_probability = 0.02
packing = "none"
sequence_length = 8
sources = [{path = "short"}]
[training]
max_steps = 40
global_batch_size = 2
[optimizer]
lr = 1e-3
[run]
output_dir = "mlm"
[checkpoint]
export_hf = "never"
)");
  const Result result = run.Call({"train", run.File("mlm.toml")});
  ASSERT_EQ(result.code, 0) << result.output;
  int without = 0, updated = 0;
  for (const auto& [step, numbers] : run.Steps("mlm")) {
    ++(numbers.find("no_targets") != std::string::npos ? without : updated);
    EXPECT_EQ(numbers.find("nonfinite"), std::string::npos) << numbers;
  }
  EXPECT_EQ(without + updated, 40);
  EXPECT_GT(without, 20);
  EXPECT_THAT(result.output, HasSubstr(absl::StrCat(without, " without a target")));
}

TEST(TrainRun, AYardstickThatStepsExceedIsNeverShownAsAShare) {
  const SmallRun run;
  const Result low = run.Train("low", {"metrics.peak_tflops=2e-9"});
  ASSERT_EQ(low.code, 0) << low.output;
  EXPECT_THAT(low.output, MatchesPart("step 12/12.* \\| mfu >100% \\|"));
  EXPECT_THAT(low.output, HasSubstr("was faster than 2 kFLOP/s, which metrics.peak_tflops gives"));
  EXPECT_THAT(low.output, HasSubstr("more than 100% of the 2 kFLOP/s of metrics.peak_tflops"));
  const Result high = run.Train("high", {"metrics.peak_tflops=1e6"});
  ASSERT_EQ(high.code, 0) << high.output;
  EXPECT_THAT(high.output, MatchesPart("step 12/12.* \\| mfu 0.0% \\|"));
  EXPECT_THAT(high.output, HasSubstr(", 0% of the "));
  EXPECT_THAT(run.Train("measured").output, HasSubstr("/s that matrix products reached here "));
}

}  // namespace
}  // namespace tranche
