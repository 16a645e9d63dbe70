// The verbs that are pointed at a run or a model: inspect, export, eval --text.
#include <gmock/gmock.h>

#include "model/safetensors.h"
#include "train_test_run.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(InspectRun, ShowsHowFarItIsItsCheckpointsItsModelAndItsRecipe) {
  const SmallRun run;
  ASSERT_EQ(run.Train("run").code, 0);
  const Result text = run.Call({"inspect", run.File("run")});
  ASSERT_EQ(text.code, 0) << text.output;
  EXPECT_THAT(text.output, HasSubstr("small: saved at step 12 of 12, complete; "
                                     "last step in the log: 12"));
  for (const char* part : {"checkpoints/step-4 ", "checkpoints/step-12 ", "PhiForCausalLM",
                           "hidden 32, intermediate 64, 2 layers", "resolved.toml", "lr = 0.003"}) {
    EXPECT_THAT(text.output, HasSubstr(part));
  }
  std::filesystem::resize_file(run.File("run/checkpoints/step-12/m.safetensors"), 1000);
  const Result result = run.Call({"inspect", run.File("run"), "--json"});
  ASSERT_EQ(result.code, 0) << result.output;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["saved_step"], 8);
  EXPECT_EQ(json["total_steps"], 12);
  EXPECT_EQ(json["logged_step"], 12);
  ASSERT_EQ(json["checkpoints"].size(), 3u);
  EXPECT_EQ(json["checkpoints"][0]["step"], 12);
  EXPECT_THAT(json["checkpoints"][0]["damage"].get<std::string>(), HasSubstr("m.safetensors"));
  EXPECT_GT(json["checkpoints"][1]["bytes"], 100000);
  EXPECT_GT(json["parameters"], 10000);
  EXPECT_THAT(run.Call({"inspect", run.File("run")}).output, HasSubstr("DAMAGED: "));
  EXPECT_EQ(run.Call({"inspect", run.File("run"), "--tokenizer", "x"}).code, 2);
}

TEST(ExportVerb, ReplacesAModelFolderWhereItIsToldToAndNothingElseEver) {
  const SmallRun run;
  ASSERT_EQ(run.Train("run").code, 0);
  const std::string model = run.File("model"), step4 = run.File("run/checkpoints/step-4");
  ASSERT_EQ(run.Call({"export", step4, model}).code, 0);
  const std::string before = Slurp(model + "/model.safetensors");
  const Result refused = run.Call({"export", run.File("run"), model});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, HasSubstr("--overwrite"));
  EXPECT_EQ(Slurp(model + "/model.safetensors"), before);
  run.dir().Write("model/left-over", "x");
  const Result replaced = run.Call({"export", run.File("run"), model + "/", "--overwrite"});
  EXPECT_EQ(replaced.code, 0) << replaced.output;
  EXPECT_NE(Slurp(model + "/model.safetensors"), before);
  EXPECT_FALSE(std::filesystem::exists(model + "/left-over"));
  // A failure keeps what was there.
  FlipByte(step4 + "/master.safetensors");
  const std::string now = Slurp(model + "/model.safetensors");
  EXPECT_NE(run.Call({"export", step4, model, "--overwrite"}).code, 0);
  EXPECT_EQ(Slurp(model + "/model.safetensors"), now);
  for (const std::string& target :
       {run.File("run"), run.File("run/checkpoints/step-12"), run.recipe_path()}) {
    const Result other = run.Call({"export", run.File("run"), target, "--overwrite"});
    EXPECT_EQ(other.code, 2) << target;
    EXPECT_THAT(other.output, HasSubstr("is no model folder"));
    EXPECT_TRUE(std::filesystem::exists(target));
  }
  EXPECT_TRUE(run.HasCheckpoint("run", 12));
}

TEST(ExportVerb, AFreshHeadIsPartOfTheExportAndTheRestIsEqualToTheByte) {
  const SmallRun run;
  ASSERT_EQ(run.Train("first", {"training.max_steps=3"}).code, 0);
  ASSERT_EQ(run.Call({"export", run.File("first"), run.File("model")}).code, 0);
  const std::string path = run.File("model/model.safetensors");
  {  // The same folder without the head.
    const auto whole = SafetensorsFile::Open(path);
    ASSERT_TRUE(whole.ok());
    std::vector<TensorInfo> kept;
    for (const StoredTensor& tensor : whole->tensors()) {
      if (tensor.name.rfind("lm_head.", 0) != 0) kept.push_back(tensor);
    }
    ASSERT_EQ(kept.size() + 2, whole->tensors().size());
    auto writer = SafetensorsWriter::Create(FileSystem::Real(), path + ".cut", kept, {});
    ASSERT_TRUE(writer.ok());
    for (const TensorInfo& info : writer->order()) {
      ASSERT_TRUE(writer->Append(whole->Find(info.name)->bytes).ok());
    }
    ASSERT_TRUE(writer->Commit().ok());
  }
  std::filesystem::rename(path + ".cut", path);
  std::string recipe = Slurp(run.recipe_path());
  const size_t begin = recipe.find("init = "), end = recipe.find("[data]");
  recipe.replace(begin, end - begin, "path = \"model\"\n");
  run.dir().Write("recipe.toml", recipe);

  const std::vector<std::string> sets = {"training.max_steps=1", "optimizer.lr=0",
                                         "lr_scheduler.warmup_steps=0",
                                         "checkpoint.export_hf=last"};
  const Result refused = run.Train("refused", sets);
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("lm_head"));
  std::vector<std::string> fresh = sets;
  fresh.push_back("model.fresh_head=true");
  const Result trained = run.Train("run", fresh);
  ASSERT_EQ(trained.code, 0) << trained.output;
  ASSERT_EQ(run.Call({"export", run.File("run"), run.File("again")}).code, 0);
  EXPECT_EQ(Slurp(run.File("again/model.safetensors")),
            Slurp(run.File("run/export/model.safetensors")));

  const auto without = SafetensorsFile::Open(path);
  const auto with = SafetensorsFile::Open(run.File("run/export/model.safetensors"));
  ASSERT_TRUE(without.ok() && with.ok());
  EXPECT_EQ(with->tensors().size(), without->tensors().size() + 2);
  for (const StoredTensor& tensor : without->tensors()) {
    ASSERT_NE(with->Find(tensor.name), nullptr) << tensor.name;
    EXPECT_EQ(with->Find(tensor.name)->bytes, tensor.bytes) << tensor.name;
  }
  const StoredTensor* head = with->Find("lm_head.weight");
  ASSERT_NE(head, nullptr);
  EXPECT_NE(head->bytes.find_first_not_of('\0'), absl::string_view::npos) << "drawn, not zeros";
  // It is a whole model now: nothing asks for a fresh head any more.
  const Result eval = run.Call({"eval", run.File("run/export"), "--data", run.File("train"),
                                "--set", "data.sequence_length=32"});
  EXPECT_EQ(eval.code, 0) << eval.output;
  EXPECT_THAT(run.Call({"inspect", run.File("run/export")}).output, Not(HasSubstr("incomplete")));
}

TEST(EvalVerb, TextIsWhatTheTokenizedTextIs) {
  const SmallRun run;
  std::string text;
  uint32_t state = 5;
  for (int line = 0; line < 400; ++line) {
    for (int word = 0; word < 9; ++word) {
      state = state * 1664525u + 1013904223u;
      const char* words[] = {"the ", "cat ", "sits ", "on ", "a ", "mat ", "and ", "sleeps "};
      text += words[state >> 29];
    }
    text += line % 3 == 2 ? "\n\n" : "\n";
  }
  run.dir().Write("text.txt", text);
  run.dir().Write("held out.txt", text.substr(0, 3000));
  const std::string tokenizer = run.File("tokenizer");
  ASSERT_EQ(run.Call({"tokenizer", "train", run.File("text.txt"), "--output", tokenizer,
                      "--vocab-size", "280"})
                .code,
            0)
      << Slurp(run.File("call.log"));
  for (const std::string name : {"text", "held out"}) {
    const Result result = run.Call({"tokenize", run.File(name + ".txt"), "--tokenizer", tokenizer,
                                    "--append-eos", "--output", run.File(name)});
    ASSERT_EQ(result.code, 0) << result.output;
  }
  const std::vector<std::string> sets = {"data.sources=[{path = \"" + run.File("text") + "\"}]",
                                         "model.vocab_size=280", "tokenizer.path=" + tokenizer};
  const Result trained = run.Train("run", sets);
  ASSERT_EQ(trained.code, 0) << trained.output;
  const auto eval = [&](const std::string& flag, const std::string& path) {
    const Result result = run.Call({"eval", run.File("run"), flag, path, "--json"});
    EXPECT_EQ(result.code, 0) << result.output;
    auto json = nlohmann::json::parse(result.output.substr(result.output.find('{')));
    EXPECT_GT(json["predicted_tokens"], 100);
    EXPECT_TRUE(json["bits_per_byte"].is_number());
    for (const char* own : {"set", "name"}) json.erase(own);
    return json;
  };
  EXPECT_EQ(eval("--text", run.File("held out.txt")), eval("--data", run.File("held out")));

  const Result absent = run.Call({"eval", run.File("run"), "--text", run.File("no.txt")});
  EXPECT_EQ(absent.code, 2);
  EXPECT_THAT(absent.output, HasSubstr("no.txt"));
  ASSERT_EQ(run.Train("bare").code, 0);
  const Result bare = run.Call({"eval", run.File("bare"), "--text", run.File("text.txt")});
  EXPECT_EQ(bare.code, 2);
  EXPECT_THAT(bare.output, HasSubstr("the model has no tokenizer"));
}

}  // namespace
}  // namespace tranche
