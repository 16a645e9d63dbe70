// Every kind of fault in a recipe is reported with its line, its key, what is allowed and what was
// probably meant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "recipe_text.h"
#include "trainer/recipe.h"

namespace tranche {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct FaultCase {
  const char* name;
  const char* from;  // in the small recipe
  const char* to;    // its last line is where the fault stands
  const char* key;
  const char* message;       // part of what is said
  const char* at = nullptr;  // where the fault stands, if not there
};

std::ostream& operator<<(std::ostream& out, const FaultCase& each) { return out << each.name; }

class RecipeFault : public testing::TestWithParam<FaultCase> {};

TEST_P(RecipeFault, IsReportedAloneWithLineKeyAndAdvice) {
  const FaultCase& each = GetParam();
  const std::string text = Edited(each.from, each.to);
  const std::vector<std::string> lines = absl::StrSplit(each.to, '\n');
  const auto recipe = Parse(text);
  ASSERT_FALSE(recipe.ok());
  EXPECT_EQ(recipe.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(recipe.status().message());
  EXPECT_THAT(message, StartsWith(absl::StrCat(
                           "my.toml:", LineOf(text, each.at != nullptr ? each.at : lines.back()),
                           ": ", each.key, ": ")));
  EXPECT_THAT(message, HasSubstr(each.message));
  EXPECT_THAT(message, Not(HasSubstr("\n"))) << "one fault, one line";
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, RecipeFault,
    testing::Values(
        FaultCase{"Key", "max_steps = 10", "max_steps = 10\nmax_grad_nrom = 1.0",
                  "training.max_grad_nrom", "unknown key (did you mean \"max_grad_norm\"?)"},
        FaultCase{"KeyLikeNone", "max_steps = 10", "max_steps = 10\nzzzzzz = 1.0",
                  "training.zzzzzz", "allowed: max_steps, max_tokens"},
        FaultCase{"Section", "[checkpoint]", "[chekpoint]", "chekpoint",
                  "unknown section (did you mean \"checkpoint\"?)"},
        FaultCase{"SectionNotBuiltYet", "[checkpoint]", "[offload]", "offload",
                  "unknown section; allowed: run, model"},
        FaultCase{"KeyNotBuiltYet", "interval = 5", "interval = 5\nasync = true",
                  "checkpoint.async", "unknown key"},
        FaultCase{"PrecisionNotBuiltYet", "max_steps = 10", "max_steps = 10\nprecision = \"fp16\"",
                  "training.precision", "allowed: fp32, bf16"},
        FaultCase{"OtherSection", "interval = 5", "interval = 5\nmax_grad_norm = 1.0",
                  "checkpoint.max_grad_norm", "it stands in section [training]"},
        FaultCase{"ModelKeySpelling", "hidden_size = 64",
                  "hidden_size = 64\nhiden_dropout_prob = 0.1", "model.hiden_dropout_prob",
                  "did you mean \"hidden_dropout_prob\"?"},
        FaultCase{"ModelKeyOfAnotherType", "hidden_size = 64",
                  "hidden_size = 64\nhidden_dropout_prob = 0.1", "model.hidden_dropout_prob",
                  "has no effect: a model of type \"phi\""},
        FaultCase{"ModelKeyInAnotherSection", "hidden_size = 64",
                  "hidden_size = 64\nmax_grad_norm = 0.1", "model.max_grad_norm",
                  "it stands in section [training]"},
        FaultCase{"StringForNumber", "max_steps = 10", "max_steps = \"ten\"", "training.max_steps",
                  "\"ten\" is not a whole number of at least 1"},
        FaultCase{"NumberForString", "name = \"small\"", "name = 3", "run.name",
                  "3 is not a string"},
        FaultCase{"FractionForWhole", "max_steps = 10", "max_steps = 10.5", "training.max_steps",
                  "10.5 is not a whole number"},
        FaultCase{"NumberForBool", "interval = 5", "interval = 5\n[metrics]\njsonl = 1",
                  "metrics.jsonl", "1 is not true or false"},
        FaultCase{"TableForNumber", "lr = 1e-3", "lr = {peak = 1e-3}", "optimizer.lr",
                  "a table is not a number"},
        FaultCase{"DateForNumber", "lr = 1e-3", "lr = 2026-01-01", "optimizer.lr",
                  "a date or time is not a number"},
        FaultCase{"ListItem", "lr = 1e-3", "lr = 1e-3\nbetas = [0.9, \"x\"]", "optimizer.betas[1]",
                  "\"x\" is not a number"},
        FaultCase{"SourceWithoutPath", "sources = [{path = \"data/train\"}]",
                  "sources = [{weight = 1.0}]", "data.sources[0].path", "is missing; write a path"},
        FaultCase{"SourceUnknownKey", "sources = [{path = \"data/train\"}]",
                  "sources = [{path = \"a\", wieght = 1.0}]", "data.sources[0].wieght",
                  "did you mean \"weight\"?"},
        FaultCase{"SourceAsString", "sources = [{path = \"data/train\"}]", "sources = [\"a\"]",
                  "data.sources[0]", "\"a\" is not a table"},
        FaultCase{"NoSource", "sources = [{path = \"data/train\"}]", "sources = []", "data.sources",
                  "write at least one"},
        FaultCase{"BelowRange", "max_steps = 10", "max_steps = 0", "training.max_steps",
                  "0 is out of range; allowed: a whole number of at least 1"},
        FaultCase{"NegativeRate", "lr = 1e-3", "lr = -1e-3", "optimizer.lr", "out of range"},
        FaultCase{"NotFinite", "lr = 1e-3", "lr = inf", "optimizer.lr", "out of range"},
        FaultCase{"NotANumber", "lr = 1e-3", "lr = nan", "optimizer.lr", "out of range"},
        FaultCase{"BetaOne", "lr = 1e-3", "lr = 1e-3\nbetas = [0.9, 1.0]", "optimizer.betas[1]",
                  "in [0, 1)"},
        FaultCase{"OneBeta", "lr = 1e-3", "lr = 1e-3\nbetas = [0.9]", "optimizer.betas",
                  "holds 1 numbers; write two"},
        FaultCase{"NoMaskedTokens", "sequence_length = 64",
                  "sequence_length = 64\nmlm_probability = 0.0", "data.mlm_probability", "(0, 1]"},
        FaultCase{
            "Word", "name = \"cosine\"", "name = \"cosin\"", "lr_scheduler.name",
            "allowed: constant, linear, cosine, wsd, inverse_sqrt (did you mean \"cosine\"?)"},
        FaultCase{"SizeWithoutUnit", "interval = 5", "interval = 5\nmax_shard_size = 5000000",
                  "checkpoint.max_shard_size",
                  "5000000 has no unit; write a size with its unit, such as \"256 MiB\""},
        FaultCase{"SizeTextWithoutUnit", "interval = 5",
                  "interval = 5\nmax_shard_size = \"5000000\"", "checkpoint.max_shard_size",
                  "write a number and a unit"},
        FaultCase{"TimeWithoutUnit", "max_steps = 10", "max_steps = 10\nmax_time = 90",
                  "training.max_time", "90 has no unit"},
        FaultCase{"TwoLengths", "max_steps = 10", "max_steps = 10\nmax_tokens = 28e9",
                  "training.max_tokens", "the run has 2 lengths, training.max_steps (my.toml:"},
        FaultCase{"LengthAndDuration", "max_steps = 10", "max_steps = 10\nduration = \"1ep\"",
                  "training.max_epochs", "contradiction"},
        FaultCase{"DurationUnit", "max_steps = 10", "duration = \"28e9\"", "training.duration",
                  "is not a length; write a number and its unit"},
        FaultCase{"DurationOfHalfSteps", "max_steps = 10", "duration = \"1.5steps\"",
                  "training.duration", "is not a length"},
        FaultCase{"MicroBatch", "global_batch_size = 8",
                  "global_batch_size = 8\nmicro_batch_size = 3", "training.micro_batch_size",
                  "3 does not divide training.global_batch_size = 8 (my.toml:20); the next smaller "
                  "that does is 2"},
        FaultCase{"WarmupTooLong", "name = \"cosine\"", "name = \"cosine\"\nwarmup_steps = 11",
                  "lr_scheduler.warmup_steps", "11 steps of warm-up exceed the run's 10 steps"},
        FaultCase{"TwoWarmups", "name = \"cosine\"",
                  "name = \"cosine\"\nwarmup_steps = 1\nwarmup_ratio = 0.1",
                  "lr_scheduler.warmup_ratio", "warmup_steps is given as well"},
        FaultCase{"DecayRatioWithoutWsd", "name = \"cosine\"",
                  "name = \"cosine\"\ndecay_ratio = 0.1", "lr_scheduler.decay_ratio",
                  "has no effect: name = \"cosine\" has no decay phase"},
        FaultCase{"MinimumOfConstant", "name = \"cosine\"",
                  "name = \"constant\"\nmin_lr_ratio = 0.1", "lr_scheduler.min_lr_ratio",
                  "has no effect"},
        FaultCase{"MaskingWithoutMlm", "sequence_length = 64",
                  "sequence_length = 64\nmlm_probability = 0.3", "data.mlm_probability",
                  "has no effect: objective = \"clm\" masks no tokens; remove it"},
        FaultCase{"SeedWithoutShuffle", "sequence_length = 64",
                  "sequence_length = 64\nshuffle = false\nshuffle_seed = 3", "data.shuffle_seed",
                  "has no effect"},
        FaultCase{"SetsWithoutInterval", "interval = 5\n",
                  "interval = 5\n[validation]\nsets = [{name = \"a\", path = \"b\"}]",
                  "validation.interval", "is missing: validation.sets", "[validation]"},
        FaultCase{"IntervalWithoutSets", "interval = 5\n",
                  "interval = 5\n[validation]\ninterval = 9", "validation.interval",
                  "has no effect: there is no validation set"},
        FaultCase{"SetsOfOneName", "interval = 5\n",
                  "interval = 5\n[validation]\ninterval = 9\nsets = [{name = \"a\", path = \"b\"}, "
                  "{name = \"a\", path = \"c\"}]",
                  "validation.sets[1].name", "names two validation sets"},
        FaultCase{"WeightOfSome", "sources = [{path = \"data/train\"}]",
                  "sources = [{path = \"a\", weight = 1.0}, {path = \"b\"}]", "data.sources",
                  "some sources have a weight"},
        FaultCase{"DocumentsOfTokens", "sequence_length = 64",
                  "sequence_length = 64\nformat = \"tokens\"\ndocument_mask = true",
                  "data.document_mask", "does not know where documents end"},
        FaultCase{"KeepEveryBetween", "interval = 5", "interval = 5\nkeep_every = 7",
                  "checkpoint.keep_every", "7 is no multiple of checkpoint.interval = 5"},
        FaultCase{"TriggerOfTheRun", "interval = 5", "interval = 5\ntrigger_file = \"checkpoints\"",
                  "checkpoint.trigger_file", "a name that the run itself writes"},
        FaultCase{"TriggerElsewhere", "interval = 5", "interval = 5\ntrigger_file = \"../now\"",
                  "checkpoint.trigger_file", "is no file name"},
        FaultCase{"NoMinutes", "interval = 5", "interval = 5\ninterval_minutes = 0",
                  "checkpoint.interval_minutes", "0 is out of range; allowed: a number above 0"},
        FaultCase{"FullDiskWord", "interval = 5", "interval = 5\non_disk_full = \"prune\"",
                  "checkpoint.on_disk_full", "allowed: continue, prune_then_continue, error"},
        FaultCase{"KeepEveryByTime", "interval = 5",
                  "interval = 0\ninterval_minutes = 5\nkeep_every = 7", "checkpoint.keep_every",
                  "has no effect"},
        FaultCase{"KindOfParameter", "lr = 1e-3", "lr = 1e-3\nno_decay = [\"norm\", \"biass\"]",
                  "optimizer.no_decay[1]",
                  "allowed: bias, norm, embedding (did you mean \"bias\"?)"},
        FaultCase{"KindsAsString", "lr = 1e-3", "lr = 1e-3\nno_decay = \"bias\"",
                  "optimizer.no_decay", "\"bias\" is not a list of bias, norm, embedding"},
        FaultCase{"GroupWithoutMatch", "lr = 1e-3", "lr = 1e-3\nparam_groups = [{lr_scale = 2}]",
                  "optimizer.param_groups[0].match", "is missing"},
        FaultCase{"GroupWithoutEffect", "lr = 1e-3", "lr = 1e-3\nparam_groups = [{match = \"*\"}]",
                  "optimizer.param_groups[0]", "has no effect: it gives neither lr_scale nor"},
        FaultCase{"GroupOfNothing", "lr = 1e-3",
                  "lr = 1e-3\nparam_groups = [{match = \"layers.9.*\", lr_scale = 2}]",
                  "optimizer.param_groups[0].match",
                  "\"layers.9.*\" matches no parameter of the model"},
        FaultCase{"GroupThatFreezes", "lr = 1e-3",
                  "lr = 1e-3\nparam_groups = [{match = \"*\", freeze = true}]",
                  "optimizer.param_groups[0].freeze", "lr_scale = 0"},
        FaultCase{"SignalThatNobodyCatches", "interval = 5\n",
                  "interval = 5\n[fault_tolerance]\npreempt_signals = [\"SIGKILL\"]",
                  "fault_tolerance.preempt_signals[0]",
                  "allowed: SIGTERM, SIGUSR1, SIGUSR2, SIGHUP"},
        FaultCase{"NoRanks", "interval = 5\n", "interval = 5\n[launch]\nranks = 0", "launch.ranks",
                  "0 is out of range; allowed: a whole number in [1, 4096]"},
        FaultCase{"BindWithoutRanks", "interval = 5\n", "interval = 5\n[launch]\nbind = \"none\"",
                  "launch.bind", "starts no ranks without launch.ranks"},
        FaultCase{"StepsOfNoTrace", "interval = 5\n", "interval = 5\n[profiler]\nsteps = [2, 3]",
                  "profiler.steps", "has no effect: enable = false"},
        FaultCase{"OneStepOfATrace", "interval = 5\n",
                  "interval = 5\n[profiler]\nenable = true\nsteps = [3]", "profiler.steps",
                  "holds 1 numbers; write the first and the last step"},
        FaultCase{"TraceBackwards", "interval = 5\n",
                  "interval = 5\n[profiler]\nenable = true\nsteps = [4, 3]", "profiler.steps",
                  "the first step, 4, comes after the last, 3"},
        FaultCase{"TraceOfStepZero", "interval = 5\n",
                  "interval = 5\n[profiler]\nenable = true\nsteps = [0, 3]", "profiler.steps[0]",
                  "0 is out of range"},
        FaultCase{"TraceOfWords", "interval = 5\n",
                  "interval = 5\n[profiler]\nenable = true\nsteps = \"3-4\"", "profiler.steps",
                  "is not a list of whole numbers"},
        FaultCase{"TraceAfterTheEnd", "interval = 5\n",
                  "interval = 5\n[profiler]\nenable = true\nsteps = [11, 12]", "profiler.steps",
                  "the run ends with step 10, before 11"},
        FaultCase{"SequenceBeyondPositions", "sequence_length = 64", "sequence_length = 129",
                  "data.sequence_length", "129 exceeds the model's 128 positions"},
        FaultCase{"ModelShape", "max_position_embeddings = 128", "max_position_embeddings = 0",
                  "model.max_position_embeddings", ""},
        FaultCase{"ModelType", "model_type = \"phi\"", "model_type = \"pih\"", "model.model_type",
                  "did you mean \"phi\"?"},
        FaultCase{"ModelKeyType", "hidden_size = 64", "hidden_size = \"64\"", "model.hidden_size",
                  ""},
        FaultCase{"PretrainedWithoutPath", "init = \"random\"", "init = \"pretrained\"",
                  "model.path", "is missing", "[model]"},
        FaultCase{"OverridesWithoutPath", "hidden_size = 64",
                  "hidden_size = 64\noverrides = {vocab_size = 7}", "model.overrides",
                  "has no effect"},
        FaultCase{"RunNameAsPath", "name = \"small\"", "name = \"a/b\"", "run.name",
                  "cannot name a folder"},
        FaultCase{"UndefinedVariable", "name = \"small\"", "name = \"${TRANCHE_NO_SUCH_VARIABLE}\"",
                  "run.name",
                  "the environment variable TRANCHE_NO_SUCH_VARIABLE of "
                  "${TRANCHE_NO_SUCH_VARIABLE} is not defined"},
        FaultCase{"OpenVariable", "name = \"small\"", "name = \"${HOME\"", "run.name",
                  "${ without }"}),
    [](const auto& info) { return std::string(info.param.name); });

struct NameCase {
  const char* key;
  const char* section;
  const char* tranche;
};

class ForeignName : public testing::TestWithParam<NameCase> {};

TEST_P(ForeignName, IsAnsweredWithTheTrancheName) {
  const std::string text =
      absl::StrCat(kSmallRecipe, "\n[", GetParam().section, "]\n", GetParam().key, " = 1\n");
  const auto recipe = Parse(text);
  ASSERT_FALSE(recipe.ok());
  EXPECT_THAT(std::string(recipe.status().message()),
              HasSubstr(absl::StrCat("unknown key; Tranche's recipe says ", GetParam().tranche)));
}

INSTANTIATE_TEST_SUITE_P(
    Names, ForeignName,
    testing::Values(
        NameCase{"per_device_train_batch_size", "metrics", "training.micro_batch_size"},
        NameCase{"train_micro_batch_size_per_gpu", "metrics", "training.micro_batch_size"},
        NameCase{"num_train_epochs", "metrics", "training.max_epochs"},
        NameCase{"train_iters", "metrics", "training.max_steps"},
        NameCase{"gradient_accumulation_steps", "metrics",
                 "training.micro_batch_size: accumulation"},
        NameCase{"gradient_checkpointing", "metrics", "training.activation_checkpointing"},
        NameCase{"lr_scheduler_type", "metrics", "lr_scheduler.name"},
        NameCase{"save_total_limit", "metrics", "checkpoint.keep_latest_k"},
        NameCase{"seq_len", "metrics", "data.sequence_length"},
        NameCase{"clip_grad", "metrics", "training.max_grad_norm"},
        NameCase{"learning_rate", "metrics", "optimizer.lr"},
        NameCase{"bf16", "metrics", "training.precision = \"bf16\""},
        NameCase{"model_name_or_path", "metrics", "model.path"},
        NameCase{"resume_from_checkpoint", "metrics", "checkpoint.resume"},
        NameCase{"logging_steps", "metrics", "metrics.log_interval"}),
    [](const auto& info) { return std::string(info.param.key); });

TEST(RecipeFaults, ForeignNameAtTheTopOfTheFileIsAnsweredToo) {
  const auto recipe = Parse(absl::StrCat("learning_rate = 1e-4\n", kSmallRecipe));
  ASSERT_FALSE(recipe.ok());
  EXPECT_EQ(recipe.status().message(),
            "my.toml:1: learning_rate: unknown key; Tranche's recipe says optimizer.lr");
}

TEST(RecipeFaults, AreAllReportedInOneRunInTheOrderOfTheFile) {
  std::string text = Edited("name = \"small\"", "nam = \"small\"");
  text = Edited("max_steps = 10", "max_steps = \"x\"", text);
  text = Edited("global_batch_size = 8", "", text);
  text = Edited("interval = 5", "interval = -1", text);
  const auto recipe = Parse(text, {"metrics.log_intervall=3"});
  ASSERT_FALSE(recipe.ok());
  const std::vector<std::string> lines = absl::StrSplit(recipe.status().message(), '\n');
  ASSERT_EQ(lines.size(), 5u) << recipe.status().message();
  EXPECT_THAT(lines[0], StartsWith("my.toml:2: run.nam: unknown key (did you mean \"name\"?)"));
  EXPECT_THAT(lines[1], AllOf(HasSubstr("training.global_batch_size: is missing")));
  EXPECT_THAT(lines[2], HasSubstr("training.max_steps: \"x\" is not a whole number"));
  EXPECT_THAT(lines[3], HasSubstr("checkpoint.interval: -1 is out of range"));
  EXPECT_THAT(
      lines[4],
      StartsWith("--set: metrics.log_intervall: unknown key (did you mean \"log_interval\"?)"));
}

TEST(RecipeFaults, AbsentRequiredKeysAreNamedInAnEmptyRecipe) {
  const auto recipe = Parse("");
  ASSERT_FALSE(recipe.ok());
  for (const char* key : {"data.sequence_length", "data.sources", "training.global_batch_size",
                          "optimizer.lr", "model.path", "training.max_steps"}) {
    EXPECT_THAT(std::string(recipe.status().message()),
                HasSubstr(absl::StrCat("my.toml:1: ", key, ": ")));
  }
}

TEST(RecipeFaults, SyntaxErrorsHaveTheirLine) {
  const struct {
    const char* from;
    const char* to;
  } cases[] = {{"max_steps = 10", "max_steps = "},
               {"max_steps = 10", "max_steps 10"},
               {"max_steps = 10", "max_steps = 10 20"},
               {"name = \"cosine\"", "name = \"cosine"},
               {"interval = 5", "interval = 5\ninterval = 6"},
               {"interval = 5", "interval = [1, 2"},
               {"lr = 1e-3", "lr = 1e"}};
  for (const auto& each : cases) {
    const std::string text = Edited(each.from, each.to);
    const std::vector<std::string> lines = absl::StrSplit(each.to, '\n');
    const auto recipe = Parse(text);
    ASSERT_FALSE(recipe.ok()) << each.to;
    EXPECT_THAT(std::string(recipe.status().message()), StartsWith(absl::StrCat("my.toml:")))
        << each.to;
    EXPECT_THAT(std::string(recipe.status().message()), HasSubstr("not valid TOML")) << each.to;
  }
  const std::string text = Edited("max_steps = 10", "max_steps 10");
  EXPECT_THAT(std::string(Parse(text).status().message()),
              StartsWith(absl::StrCat("my.toml:", LineOf(text, "max_steps 10"), ": ")));
}

TEST(RecipeFaults, MaskedModelAndCausalObjectiveContradict) {
  std::string text = Edited("model_type = \"phi\"", "model_type = \"bert\"");
  EXPECT_THAT(std::string(Parse(text).status().message()),
              HasSubstr("a model of type \"bert\" is trained with \"mlm\""));
  text = Edited("sequence_length = 64", "objective = \"mlm\"\nsequence_length = 64", text);
  EXPECT_THAT(std::string(Parse(text).status().message()),
              HasSubstr("tokenizer.path: is missing: objective = \"mlm\""));
  EXPECT_TRUE(Parse(text, {"tokenizer.path=t"}).ok()) << Parse(text, {"tokenizer.path=t"}).status();
}

class RecipeFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / "recipe_files_test";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "data");
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
  }
  std::string Message(RecipeFiles files) {
    const auto recipe = LoadRecipe(folder_ / "my.toml", {}, files);
    return recipe.ok() ? "ok" : std::string(recipe.status().message());
  }
  std::filesystem::path folder_;
};

TEST_F(RecipeFilesTest, MissingDataIsNamedByPathOnlyWhereTrainingNeedsIt) {
  Write("my.toml", kSmallRecipe);
  EXPECT_EQ(Message(RecipeFiles::kNone), "ok");
  EXPECT_EQ(Message(RecipeFiles::kModel), "ok");
  EXPECT_THAT(
      Message(RecipeFiles::kAll),
      AllOf(HasSubstr(absl::StrCat("no such file: ", (folder_ / "data/train.bin").string())),
            HasSubstr(absl::StrCat("no such file: ", (folder_ / "data/train.idx").string()))));
  Write("data/train.bin", "x");
  Write("data/train.idx", "x");
  EXPECT_EQ(Message(RecipeFiles::kAll), "ok");
}

TEST_F(RecipeFilesTest, ModelFolderAndItsConfigAreRead) {
  std::string text = kSmallRecipe;
  text.replace(text.find("[model]"), text.find("[data]") - text.find("[model]"),
               "[model]\npath = \"m\"\n\n");
  Write("my.toml", text);
  EXPECT_EQ(Message(RecipeFiles::kNone), "ok");
  EXPECT_THAT(Message(RecipeFiles::kModel), HasSubstr("model.path: no such folder: "));
  std::filesystem::create_directories(folder_ / "m");
  EXPECT_THAT(Message(RecipeFiles::kModel), HasSubstr("model.path: no config.json in "));
  Write("m/config.json", R"({"model_type": "phi", "hidden_size": 64, "num_attention_heads": 5})");
  EXPECT_THAT(Message(RecipeFiles::kModel),
              AllOf(HasSubstr("config.json: num_attention_heads"), HasSubstr("64 / 5")));
  Write(
      "m/config.json",
      R"({"model_type": "phi", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 32})");
  EXPECT_THAT(Message(RecipeFiles::kModel),
              HasSubstr("data.sequence_length: 64 exceeds the model's 32 positions"));
  Write("my.toml",
        Edited("path = \"m\"", "path = \"m\"\noverrides = {max_position_embeddings = 64}", text));
  EXPECT_EQ(Message(RecipeFiles::kModel), "ok");
  Write("my.toml", Edited("path = \"m\"", "path = \"m\"\nvocab_size = 64", text));
  EXPECT_THAT(Message(RecipeFiles::kNone),
              HasSubstr("my.toml:6: model.vocab_size: unknown key beside path"));
}

TEST_F(RecipeFilesTest, AbsentRecipeIsNamed) {
  const auto recipe = LoadRecipe(folder_ / "none.toml", {}, RecipeFiles::kNone);
  ASSERT_FALSE(recipe.ok());
  EXPECT_EQ(recipe.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(recipe.status().message()), HasSubstr("none.toml"));
  EXPECT_FALSE(LoadRecipe(folder_, {}, RecipeFiles::kNone).ok()) << "a folder is no recipe";
}

}  // namespace
}  // namespace tranche
