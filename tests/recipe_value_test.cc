// Values: where they come from, which wins, how they are written back, and the pages made from
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "recipe_text.h"
#include "trainer/bundled_recipes.h"
#include "trainer/recipe.h"

namespace tranche {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Recipe MustParse(const std::string& text, const std::vector<std::string>& sets = {}) {
  auto recipe = Parse(text, sets);
  EXPECT_TRUE(recipe.ok()) << recipe.status();
  return recipe.ok() ? *std::move(recipe) : Recipe();
}

// What has no default and is not in the small recipe, changed in every section.
std::string FullRecipe() {
  return R"([run]
name = "a-b.c_1"
output_dir = "/tmp/\"quoted\" $${x}/%name"
seed = 9007199254740993

[model]
init = "random"
model_type = "llama"
vocab_size = 512
hidden_size = 64
intermediate_size = 256
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 256
rms_norm_eps = 1e-6
tie_word_embeddings = true

[model.rope_parameters]
rope_type = "llama3"
rope_theta = 500000.0
factor = 8.0
low_freq_factor = 1.0
high_freq_factor = 4.0
original_max_position_embeddings = 128

[tokenizer]
path = "tok"

[data]
format = "megatron"
sequence_length = 64
sources = [{path = "a b", weight = 0.1}, {path = "c", weight = 3}]
validation_fraction = 0.015625
packing = "best_fit"
document_mask = true
eod_loss = false
shuffle_seed = 7

[validation]
interval = 3
steps = 2
sets = [{name = "ünï", path = "../v"}]

[training]
max_tokens = 28e9
max_time = "71h30m"
global_batch_size = 8
micro_batch_size = 2
max_grad_norm = 0
precision = "bf16"
activation_checkpointing = "selective"

[optimizer]
lr = 0.1
betas = [0, 0.999]
eps = 1e-7
weight_decay = 0.3333333333333333
no_decay = []
param_groups = [{match = "layers.0.*", lr_scale = 0.1}, {match = "*.weight", weight_decay = 0}]

[lr_scheduler]
name = "wsd"
warmup_ratio = 0.01
min_lr_ratio = 0.1
decay_ratio = 0.2

[checkpoint]
interval = 5
interval_minutes = 0.1
save_first_step = true
trigger_file = ""
keep_latest_k = 7
keep_every = 10
on_disk_full = "prune_then_continue"
resume = "never"
verify = "none"
export_hf = "every"
max_shard_size = "1234567 B"

[launch]
ranks = 3
oversubscribe = true
bind = "none"

[metrics]
log_interval = 2
jsonl = false
peak_tflops = 312.5

[profiler]
enable = true
steps = [50, 53]

[fault_tolerance]
max_skipped_steps = 0
preempt_signals = []
)";
}

TEST(RecipeValues, ResolvedRecipeReadsBackToTheSameValues) {
  const std::string bert =
      Edited("model_type = \"phi\"", "model_type = \"bert\"",
             Edited("sequence_length = 64",
                    "sequence_length = 64\nobjective = \"mlm\"\nwhole_word_mask = true"));
  const struct {
    std::string text;
    std::vector<std::string> sets;
  } cases[] = {{kSmallRecipe, {}},
               {FullRecipe(), {}},
               {kSmallRecipe, {"training.duration=2.5ep", "run.seed=0"}},
               {bert, {"tokenizer.path=/t"}}};
  for (const auto& each : cases) {
    const Recipe recipe = MustParse(each.text, each.sets);
    const std::string printed = PrintRecipe(recipe);
    const auto again = ParseRecipe(printed, "/elsewhere/resolved.toml", {}, RecipeFiles::kNone);
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << printed;
    EXPECT_TRUE(SameValues(*again, recipe)) << printed << "\n" << PrintRecipe(*again);
  }
}

TEST(RecipeValues, RoundTripComparesEveryField) {
  // A changed value anywhere must not compare equal, or the round trip proves nothing.
  const Recipe recipe = MustParse(FullRecipe());
  for (const char* set :
       {"run.seed=1", "model.hidden_size=128", "tokenizer.path=x",
        "data.sources=[{path='c', weight=1}]", "validation.steps=9", "training.max_grad_norm=2",
        "optimizer.betas=[0.5, 0.6]", "parallelism.zero_stage=2", "lr_scheduler.decay_ratio=0.5",
        "checkpoint.max_shard_size=1MB", "optimizer.no_decay=['norm']", "optimizer.param_groups=[]",
        "checkpoint.trigger_file=x", "fault_tolerance.preempt_signals=['SIGHUP']",
        "metrics.log_interval=3", "launch.ranks=2", "launch.bind=core", "profiler.steps=[50, 54]",
        "fault_tolerance.max_skipped_steps=1"}) {
    EXPECT_FALSE(SameValues(MustParse(FullRecipe(), {set}), recipe)) << set;
  }
}

TEST(RecipeValues, EveryPrintedValueTellsItsOrigin) {
  const std::string text = Edited("interval = 5", "interval = 5\n\n[metrics]\njsonl = false");
  const std::string printed = PrintRecipe(MustParse(text, {"optimizer.lr=2e-3"}));
  EXPECT_THAT(printed, HasSubstr(absl::StrCat("# my.toml:", LineOf(text, "jsonl"))));
  EXPECT_THAT(printed, testing::ContainsRegex("lr = 0\\.002 +# --set"));
  EXPECT_THAT(printed, testing::ContainsRegex("weight_decay = 0\\.1 +# default"));
  EXPECT_THAT(printed, testing::ContainsRegex(absl::StrCat(
                           "hidden_size = 64 +# my\\.toml:", LineOf(text, "hidden_size"), "\n")));
  for (const auto line : absl::StrSplit(printed, '\n')) {
    if (!absl::StrContains(line, " = ")) continue;
    EXPECT_THAT(std::string(line), HasSubstr("  # "));
  }
  EXPECT_THAT(printed, Not(HasSubstr("mlm_probability")))
      << "what has no effect is not part of the resolved recipe";
}

TEST(RecipeValues, SetBeatsFileBeatsDefault) {
  EXPECT_EQ(MustParse(kSmallRecipe).optimizer.weight_decay, 0.1);
  const std::string text = Edited("lr = 1e-3", "lr = 1e-3\nweight_decay = 0.2");
  EXPECT_EQ(MustParse(text).optimizer.weight_decay, 0.2);
  EXPECT_EQ(MustParse(text, {"optimizer.weight_decay=0.3"}).optimizer.weight_decay, 0.3);
  EXPECT_EQ(MustParse(text, {"optimizer.weight_decay=0.3", "optimizer.weight_decay=0.4"})
                .optimizer.weight_decay,
            0.4);
}

TEST(RecipeValues, SetTakesTomlAndBareText) {
  const Recipe recipe = MustParse(
      kSmallRecipe,
      {"training.precision=bf16", "run.name=7", "metrics.jsonl = false",
       "data.sources=[{path = \"/x\", weight = 2}, {path = '/y', weight = 1}]",
       "model.rope_theta=5000.0", "checkpoint.max_shard_size=1 GiB", "run.output_dir=/o/a=b"});
  EXPECT_EQ(recipe.training.precision, "bf16");
  EXPECT_EQ(recipe.run.name, "7");
  EXPECT_FALSE(recipe.metrics.jsonl);
  ASSERT_EQ(recipe.data.sources.size(), 2u);
  EXPECT_EQ(recipe.data.sources[1].path, "/y");
  EXPECT_EQ(recipe.model.config["rope_theta"], 5000.0);
  EXPECT_EQ(recipe.checkpoint.max_shard_size.value, int64_t{1} << 30);
  EXPECT_EQ(recipe.run.output_dir, "/o/a=b");
  for (const char* wrong : {"training", "training.max_steps", "max_steps=3", "=3", ".=3",
                            "training.=3", "training.max_steps.x=3"}) {
    const auto refused = Parse(kSmallRecipe, {wrong});
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_THAT(std::string(refused.status().message()), StartsWith("--set: ")) << wrong;
  }
}

TEST(RecipeValues, LengthGivenBySetReplacesTheFilesWhateverItsUnit) {
  for (const char* set : {"training.max_tokens=5120", "training.duration=5120tok",
                          "training.duration=5.12e3 tokens"}) {
    const Recipe recipe = MustParse(kSmallRecipe, {set});
    EXPECT_FALSE(recipe.training.max_steps.has_value());
    EXPECT_EQ(recipe.training.max_tokens, 5120);
    EXPECT_EQ(recipe.Origin("training.max_tokens"), "--set");
  }
  EXPECT_FALSE(Parse(kSmallRecipe, {"training.max_tokens=5", "training.max_epochs=1"}).ok());
}

TEST(RecipeValues, DurationsAndUnitsMeanWhatTheySay) {
  EXPECT_EQ(MustParse(Edited("max_steps = 10", "duration = \"7121steps\"")).training.max_steps,
            7121);
  EXPECT_EQ(MustParse(Edited("max_steps = 10", "duration = \"28e9tok\"")).training.max_tokens,
            28'000'000'000);
  EXPECT_EQ(MustParse(Edited("max_steps = 10", "duration = \"0.5 ep\"")).training.max_epochs, 0.5);
  EXPECT_EQ(MustParse(Edited("max_steps = 10", "max_tokens = 28e9")).training.max_tokens,
            28'000'000'000);
  EXPECT_EQ(MustParse(Edited("max_steps = 10", "max_steps = 10\nmax_time = \"71h30m\""))
                .training.max_time->value,
            257400);
  EXPECT_EQ(MustParse(Edited("interval = 5", "interval = 5\nmax_shard_size = \"256 MiB\""))
                .checkpoint.max_shard_size.value,
            268435456);
}

TEST(RecipeValues, WarmUpMayBeAllOfTheRun) {
  for (const char* name : {"constant", "linear", "cosine", "wsd", "inverse_sqrt"}) {
    const std::string text =
        Edited("name = \"cosine\"", absl::StrCat("name = \"", name, "\"\nwarmup_steps = 10"));
    EXPECT_TRUE(Parse(text).ok()) << Parse(text).status();
  }
}

TEST(RecipeValues, PathsResolveAgainstTheRecipeAndSetsAgainstTheCurrentFolder) {
  const std::string here = std::filesystem::current_path().string();
  const std::string text =
      Edited("name = \"small\"", "name = \"small\"\noutput_dir = \"../runs/%name\"");
  auto recipe = ParseRecipe(text, "/some/where/my.toml", {}, RecipeFiles::kNone);
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(recipe->data.sources[0].path, "/some/where/data/train");
  EXPECT_EQ(recipe->run.output_dir, "/some/runs/small");
  recipe = ParseRecipe(text, "/some/where/my.toml", {"run.output_dir=out", "tokenizer.path=/t/x"},
                       RecipeFiles::kNone);
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(recipe->run.output_dir, here + "/out");
  EXPECT_EQ(recipe->tokenizer.path, "/t/x");
  EXPECT_EQ(MustParse(kSmallRecipe).run.output_dir, here + "/runs/small");
}

TEST(RecipeValues, VariablesAndNamesAreExpanded) {
  ASSERT_EQ(setenv("TRANCHE_TEST_ROOT", "/corpora/of/data", 1), 0);
  ASSERT_EQ(setenv("SLURM_JOB_ID", "4711", 1), 0);
  const std::string text =
      Edited("path = \"data/train\"", "path = \"${TRANCHE_TEST_ROOT}/$${x}/train\"",
             Edited("name = \"small\"", "name = \"small-%jobid\""));
  const Recipe recipe = MustParse(text);
  EXPECT_EQ(recipe.data.sources[0].path, "/corpora/of/data/${x}/train");
  EXPECT_EQ(recipe.run.name, "small-4711");
  EXPECT_THAT(recipe.run.output_dir, testing::EndsWith("/runs/small-4711"));
  unsetenv("SLURM_JOB_ID");
}

TEST(RecipeValues, TokenizerIsTheModelsUnlessGiven) {
  std::string text = kSmallRecipe;
  text.replace(text.find("[model]"), text.find("[data]") - text.find("[model]"),
               "[model]\npath = \"/m\"\n\n");
  EXPECT_EQ(MustParse(text).tokenizer.path, "/m");
  EXPECT_EQ(MustParse(text, {"tokenizer.path=/t"}).tokenizer.path, "/t");
}

TEST(RecipeValues, ModelKeysKeepOrderTypesAndLines) {
  const std::string text =
      Edited("hidden_size = 64",
             "hidden_size = 64\nrope_parameters = {rope_type = \"default\", rope_theta = 5e4}");
  const Recipe recipe = MustParse(text);
  EXPECT_EQ(recipe.model.config.begin().key(), "model_type");
  EXPECT_TRUE(recipe.model.config["hidden_size"].is_number_integer());
  EXPECT_TRUE(recipe.model.config["rope_parameters"]["rope_theta"].is_number_float());
  EXPECT_EQ(recipe.Origin("model.hidden_size"),
            absl::StrCat("my.toml:", LineOf(text, "hidden_size")));
}

TEST(RecipeValues, BundledRecipesAreTheFilesAndPassTheStrictCheck) {
  const std::string folder = JoinPath(TRANCHE_SOURCE_DIR, "recipes");
  const auto names = ListDir(folder);
  ASSERT_TRUE(names.ok()) << names.status();
  std::vector<std::string> bundled;
  for (const BundledRecipe& recipe : BundledRecipes())
    bundled.push_back(absl::StrCat(recipe.name, ".toml"));
  EXPECT_EQ(bundled, *names);
  for (const std::string& name : *names) {
    const auto recipe = LoadRecipe(JoinPath(folder, name), {}, RecipeFiles::kNone);
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    const auto again =
        ParseRecipe(PrintRecipe(*recipe), "/elsewhere/resolved.toml", {}, RecipeFiles::kNone);
    ASSERT_TRUE(again.ok()) << name << "\n" << again.status();
    EXPECT_TRUE(SameValues(*recipe, *again)) << name;
    EXPECT_THAT(ReadFile(JoinPath(folder, name)).value(), StartsWith("# "))
        << "the first line says what it is for";
  }
}

TEST(RecipeValues, ReferencePageIsWhatTheCodePrints) {
  EXPECT_EQ(ReadFile(JoinPath(TRANCHE_SOURCE_DIR, "docs/recipe.md")).value_or(""),
            RecipeReference())
      << "run: tranche recipes reference > docs/recipe.md";
}

}  // namespace
}  // namespace tranche
