// Learning rates over the run, and which parameters have which rate and decay.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/param_spec.h"
#include "model_configs.h"
#include "nlohmann/json.hpp"
#include "optim/schedule.h"
#include "trainer/param_updates.h"

namespace tranche {
namespace {

constexpr ScheduleKind kKinds[] = {ScheduleKind::kConstant, ScheduleKind::kLinear,
                                   ScheduleKind::kCosine, ScheduleKind::kWsd,
                                   ScheduleKind::kInverseSqrt};

TEST(Schedule, EveryRateIsFinitePositiveAndAtMostThePeakAtEveryEdge) {
  for (const ScheduleKind kind : kKinds) {
    for (const int64_t total : {1, 2, 10}) {
      for (const int64_t warmup : {0, 1, 9, 10}) {
        for (const double decay : {0.0, 0.1, 1.0}) {
          const Schedule schedule = {kind, 2e-3, total, warmup, 0.1, decay};
          EXPECT_EQ(schedule.Check().ok(), warmup <= total);
          if (warmup > total) continue;
          for (int64_t step = 1; step <= total; ++step) {
            const double rate = schedule.At(step);
            EXPECT_GT(rate, 0) << step;
            EXPECT_LE(rate, 2e-3) << step;
          }
          EXPECT_DOUBLE_EQ(schedule.At(std::max<int64_t>(1, warmup)), 2e-3);
        }
      }
    }
  }
}

TEST(Schedule, DecayingKindsEndAtTheFloorExactly) {
  for (const ScheduleKind kind :
       {ScheduleKind::kLinear, ScheduleKind::kCosine, ScheduleKind::kWsd}) {
    const Schedule schedule = {kind, 1.0, 100, 10, 0.25, 0.2};
    EXPECT_DOUBLE_EQ(schedule.At(100), 0.25);
    EXPECT_DOUBLE_EQ(schedule.At(5), 0.5);
  }
  EXPECT_DOUBLE_EQ((Schedule{ScheduleKind::kLinear, 1.0, 101, 1, 0.0}.At(51)), 0.5);
  EXPECT_DOUBLE_EQ((Schedule{ScheduleKind::kCosine, 1.0, 101, 1, 0.0}.At(51)), 0.5);
  EXPECT_DOUBLE_EQ((Schedule{ScheduleKind::kWsd, 1.0, 100, 10, 0.0, 0.2}.At(80)), 1.0);
  EXPECT_DOUBLE_EQ((Schedule{ScheduleKind::kWsd, 1.0, 100, 10, 0.0, 0.2}.At(90)), 0.5);
  EXPECT_DOUBLE_EQ((Schedule{ScheduleKind::kInverseSqrt, 1.0, 1000, 10, 0.0}.At(40)), 0.5);
}

TEST(Schedule, APeakOfZeroIsLegal) {
  for (const ScheduleKind kind : kKinds) EXPECT_EQ((Schedule{kind, 0, 5, 2}.At(3)), 0);
}

TEST(ParamGroups, PatternsMatchWholeNamesAndHostileOnesEnd) {
  EXPECT_TRUE(MatchesParam("layers.?.qkv.*", "layers.3.qkv.weight"));
  EXPECT_TRUE(MatchesParam("*", "head.decoder.weight"));
  EXPECT_FALSE(MatchesParam("qkv", "layers.3.qkv.weight"));
  EXPECT_FALSE(MatchesParam("layers.1.*", "layers.11.qkv.weight"));
  EXPECT_FALSE(MatchesParam("", "head.decoder.weight"));
  std::string hostile;
  for (int i = 0; i < 16; ++i) hostile += "*?";
  EXPECT_FALSE(MatchesParam(hostile + "x", "layers.11.attention_output.weight"));
}

// Names of the parameters of one architecture that decay under optimizer.no_decay.
std::set<std::string> Decaying(const std::vector<ParamSpec>& specs,
                               const std::vector<std::string>& no_decay) {
  std::vector<ParamSpec> updated = specs;
  OptimizerRecipe optimizer;
  optimizer.no_decay = no_decay;
  SetParamUpdates(optimizer, &updated);
  std::set<std::string> names;
  for (const ParamSpec& spec : updated) {
    if (spec.decay) names.insert(spec.name);
  }
  return names;
}

TEST(NoDecay, LeavesExactlyTheMatricesByDefaultAndEachKindIsItsOwnInEveryArchitecture) {
  for (const auto& [name, text] : TinyConfigs(0)) {
    const auto config = ParseModelConfig(nlohmann::ordered_json::parse(text), name);
    ASSERT_TRUE(config.ok()) << config.status();
    const std::vector<ParamSpec> specs = BuildParamSpecs(*config);
    std::set<std::string> matrices, layers_and_head;
    for (const ParamSpec& spec : specs) {
      if (spec.parts[0].shape.size() > 1) {
        matrices.insert(spec.name);
        if (spec.group > 0) layers_and_head.insert(spec.name);
      }
    }
    EXPECT_EQ(Decaying(specs, OptimizerRecipe().no_decay), matrices) << name;
    EXPECT_EQ(Decaying(specs, {"bias", "norm", "embedding"}), layers_and_head) << name;
    EXPECT_EQ(Decaying(specs, {}).size(), specs.size()) << name;
    // A norm is a vector of the start value 1, or the bias behind one.
    for (const std::string& kept : Decaying(specs, {"norm"})) {
      const auto spec = std::find_if(specs.begin(), specs.end(),
                                     [&](const ParamSpec& each) { return each.name == kept; });
      EXPECT_NE(spec->init, InitKind::kOnes) << kept;
    }
  }
}

}  // namespace
}  // namespace tranche
