// The product of all that may change memory and time and never numbers, by the real program on real
// ranks: a few seeded shardings of every setting, or as many as TRANCHE_SOAK says
// (tests/soak/matrix: all).
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "zero_run.h"

namespace tranche {
namespace {

using Sets = std::vector<std::string>;

constexpr int64_t kSteps = 3;
constexpr double kMaxGradNorm = 0.2;
constexpr char kMeasuredBucket[] = "parallelism.bucket_size=measured";  // left out of the recipe

// What numbers do depend on.
struct Setting {
  int ranks;
  std::string precision;
  std::string model_type;
};

std::string Name(const Setting& setting) {
  return absl::StrCat(setting.ranks, "_ranks_", setting.precision, "_", setting.model_type);
}

void PrintTo(const Setting& setting, std::ostream* out) { *out << Name(setting); }

std::vector<Setting> AllSettings() {
  std::vector<Setting> settings;
  for (const int ranks : {2, 3, 4, 5}) {
    for (const char* precision : {"fp32", "bf16"}) {
      for (const char* model_type : {"phi", "bert"}) {
        settings.push_back({ranks, precision, model_type});
      }
    }
  }
  return settings;
}

std::vector<Sets> AllShardings(const std::vector<int>& stages) {
  std::vector<Sets> shardings;
  for (const int stage : stages) {
    const Sets reshards = stage < 3 ? Sets{"auto"} : Sets{"auto", "true", "false"};
    for (const std::string& reshard : reshards) {
      for (const char* recompute : {"none", "selective", "full"}) {
        for (const char* overlap : {"true", "false"}) {
          for (const char* bucket : {"'1 GiB'", "'1 B'", "'9999 B'", "measured"}) {
            shardings.push_back({absl::StrCat("parallelism.zero_stage=", stage),
                                 absl::StrCat("parallelism.reshard_after_forward=", reshard),
                                 absl::StrCat("training.activation_checkpointing=", recompute),
                                 absl::StrCat("parallelism.overlap=", overlap),
                                 absl::StrCat("parallelism.bucket_size=", bucket)});
          }
        }
      }
    }
  }
  return shardings;
}

// Others in every setting, the same in every run.
std::vector<Sets> SomeShardings(const Setting& setting, const std::vector<int>& stages,
                                size_t count) {
  std::vector<Sets> shardings = AllShardings(stages);
  const std::string name = Name(setting);
  std::seed_seq seed(name.begin(), name.end());
  std::mt19937 random(seed);
  std::shuffle(shardings.begin(), shardings.end(), random);
  const char* const asked = std::getenv("TRANCHE_SOAK");
  if (asked != nullptr) count = static_cast<size_t>(std::atoi(asked));
  shardings.resize(std::min(count, shardings.size()));
  return shardings;
}

const std::vector<int> kStages = {0, 1, 2, 3};
const std::vector<int> kStagePairs[] = {{0, 1}, {2, 3}};
constexpr size_t kSome = 2, kSomeOfAPair = 1;

TEST(ZeroMatrixSample, HasEveryValueOfEveryAxis) {
  std::set<std::string> all, some, some_accumulating;
  for (const Sets& sharding : AllShardings(kStages)) all.insert(sharding.begin(), sharding.end());
  for (const Setting& setting : AllSettings()) {
    for (const Sets& sharding : SomeShardings(setting, kStages, kSome)) {
      some.insert(sharding.begin(), sharding.end());
    }
    for (const std::vector<int>& pair : kStagePairs) {
      for (const Sets& sharding : SomeShardings(setting, pair, kSomeOfAPair)) {
        some_accumulating.insert(sharding.begin(), sharding.end());
      }
    }
  }
  EXPECT_EQ(some, all);
  EXPECT_EQ(some_accumulating, all);
}

// A masked model with a tied head in place of the causal one.
void MakeBert(const SmallRun& run) {
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (char letter = 'a'; letter <= 'z'; ++letter) vocabulary += std::string(1, letter) + "\n";
  run.dir().Write("tokenizer/vocab.txt", vocabulary);
  run.dir().Write("recipe.toml", absl::StrReplaceAll(Slurp(run.recipe_path()),
                                                     {{"\"phi\"", "\"bert\""},
                                                      {"resid_pdrop", "hidden_dropout_prob"},
                                                      {"[data]",
                                                       "[tokenizer]\npath = \"tokenizer\"\n[data]\n"
                                                       "objective = \"mlm\""}}));
}

class ZeroMatrix : public ::testing::TestWithParam<Setting> {
 protected:
  ZeroMatrix() : run_(kSteps) {
    if (GetParam().model_type == "bert") MakeBert(run_);
  }

  // Clipping acts on every step.
  Outcome Train(const Sets& sharding, int64_t global_batch_size, int64_t micro_batch_size) {
    Sets sets = {absl::StrCat("training.global_batch_size=", global_batch_size),
                 absl::StrCat("training.micro_batch_size=", micro_batch_size),
                 absl::StrCat("training.precision=", GetParam().precision),
                 absl::StrCat("training.max_grad_norm=", kMaxGradNorm),
                 // More than the two that have a place where weights are resharded.
                 "model.num_hidden_layers=4",
                 // So that none is measured, which takes longer than the run.
                 "metrics.peak_tflops=1"};
    for (const std::string& set : sharding) {
      if (set != kMeasuredBucket) sets.push_back(set);
    }
    const Outcome outcome =
        MustTrain(run_, absl::StrCat("run", ++trained_), {GetParam().ranks, sets});
    EXPECT_EQ(outcome.steps.size(), static_cast<size_t>(kSteps));
    for (const auto& [step, line] : outcome.steps) EXPECT_GT(NormOf(line), kMaxGradNorm) << step;
    return outcome;
  }

  SmallRun run_;
  int trained_ = 0;
};

TEST_P(ZeroMatrix, WithAMicroBatchARankEveryShardingGivesTheSameBits) {
  const auto train = [&](const Sets& sharding) { return Train(sharding, 2 * GetParam().ranks, 2); };
  const Outcome reference = train(AllShardings(kStages)[0]);
  for (const Sets& sharding : SomeShardings(GetParam(), kStages, kSome)) {
    EXPECT_EQ(train(sharding), reference) << absl::StrJoin(sharding, " ");
  }
}

TEST_P(ZeroMatrix, WithUnequalAccumulationStagesAgreeInPairsToTheBitAndAcrossThemToRounding) {
  // Seven sequences, so that some ranks' last pass is empty.
  const auto train = [&](const Sets& sharding) { return Train(sharding, 7, 1); };
  std::vector<Outcome> references;
  for (const std::vector<int>& pair : kStagePairs) {
    references.push_back(train(AllShardings(pair)[0]));
    for (const Sets& sharding : SomeShardings(GetParam(), pair, kSomeOfAPair)) {
      EXPECT_EQ(train(sharding), references.back()) << absl::StrJoin(sharding, " ");
    }
  }
  for (const auto& [step, line] : references[0].steps) {
    const std::string& other = references[1].steps.at(step);
    EXPECT_NEAR(LossOf(other), LossOf(line), 1e-5 * LossOf(line)) << step;
    EXPECT_NEAR(NormOf(other), NormOf(line), 1e-5 * NormOf(line)) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, ZeroMatrix, ::testing::ValuesIn(AllSettings()),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace tranche
