// The engine over several ranks: a stage, a bucket, overlap, recompute and residency change memory
// and time, never numbers.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <set>

#include "gtest/gtest.h"
#include "zero/residency.h"
#include "zero_world.h"

namespace tranche {
namespace {

struct Variant {
  int stage = 0;
  int64_t bucket_bytes = std::numeric_limits<int64_t>::max();
  bool overlap = true;
  int layer_slots = 2;
  const char* level = "none";

  std::string Name() const {
    return absl::StrCat("stage ", stage, ", bucket ", bucket_bytes, overlap ? "" : ", no overlap",
                        ", ", layer_slots, " layer slots, recompute ", level);
  }
};

WorldResult Train(ModelKind kind, const std::string& precision, int64_t micro_batches, int ranks,
                  const Variant& variant, int64_t steps = 3) {
  RunSetup setup = WorldSetup(kind, precision, variant.level, 2 * micro_batches, 2);
  setup.engine.zero_stage = variant.stage;
  setup.engine.bucket_bytes = variant.bucket_bytes;
  setup.engine.overlap = variant.overlap;
  setup.engine.layer_slots = variant.layer_slots;
  return TrainWorld(setup, ranks, steps);
}

const Variant kVariants[] = {
    {.stage = 1},
    {.stage = 2},
    {.stage = 3},
    {.stage = 0, .bucket_bytes = 256},
    {.stage = 1, .bucket_bytes = 256, .level = "full"},
    {.stage = 2, .bucket_bytes = 3000, .overlap = false},
    {.stage = 3, .bucket_bytes = 5000, .layer_slots = 3, .level = "selective"},
    {.stage = 3, .bucket_bytes = 9000, .overlap = false, .level = "full"},
    {.stage = 3, .layer_slots = 4},
    {.stage = 1, .bucket_bytes = 7777, .overlap = false},
};

TEST(ZeroEngine, EveryWayOfShardingGivesTheSameBits) {
  for (const ModelKind kind : {ModelKind::kPhi, ModelKind::kBert}) {
    for (const char* precision : {"fp32", "bf16"}) {
      for (const int ranks : {2, 3, 5}) {
        // As many micro-batches as ranks: one each.
        const WorldResult reference = Train(kind, precision, ranks, ranks, {});
        ASSERT_EQ(reference.totals.size(), 3u);
        EXPECT_LT(reference.controls[0][1], 1) << "clipping acts";
        for (const Variant& variant : kVariants) {
          EXPECT_TRUE(Train(kind, precision, ranks, ranks, variant).SameNumbers(reference))
              << precision << ", " << ranks << " ranks, " << variant.Name();
        }
      }
    }
  }
}

TEST(ZeroEngine, WithAccumulationTheStagesAgreeInPairsToTheBitAndAcrossThemToRounding) {
  // Seven micro-batches on three ranks: three passes, of which some ranks' last is empty.
  const auto train = [](const Variant& variant) {
    return Train(ModelKind::kBert, "fp32", 7, 3, variant);
  };
  const WorldResult whole = train({.stage = 0}), sharded = train({.stage = 2});
  EXPECT_TRUE(train({.stage = 1, .bucket_bytes = 2000}).SameNumbers(whole));
  EXPECT_TRUE(train({.stage = 3, .bucket_bytes = 4000}).SameNumbers(sharded));
  EXPECT_TRUE(train({.stage = 3, .layer_slots = 4}).SameNumbers(sharded));
  for (size_t step = 0; step < whole.totals.size(); ++step) {
    EXPECT_NEAR(sharded.totals[step].loss_sum, whole.totals[step].loss_sum,
                1e-5 * whole.totals[step].loss_sum);
    EXPECT_NEAR(sharded.controls[step][0], whole.controls[step][0], 1e-5 * whole.controls[step][0]);
  }
}

TEST(ZeroEngine, AnyNumberOfRanksTrainsTheSameModel) {
  const WorldResult one = Train(ModelKind::kPhi, "fp32", 8, 1, {});
  for (const int ranks : {2, 3, 4, 5, 7, 8}) {
    const WorldResult many = Train(ModelKind::kPhi, "fp32", 8, ranks, {.stage = 1});
    for (size_t step = 0; step < one.totals.size(); ++step) {
      EXPECT_NEAR(many.totals[step].loss_sum, one.totals[step].loss_sum,
                  1e-5 * one.totals[step].loss_sum)
          << ranks;
      EXPECT_NEAR(many.controls[step][0], one.controls[step][0], 1e-5 * one.controls[step][0]);
    }
    EXPECT_NEAR(many.evaluated, one.evaluated, 1e-5 * one.evaluated);
    for (size_t i = 0; i < one.state.at("master").size(); ++i) {
      for (size_t j = 0; j < one.state.at("master")[i].size(); ++j) {
        // An update is at most about the learning rate, 1e-2; NaN where ownership is wrong.
        ASSERT_NEAR(many.state.at("master")[i][j], one.state.at("master")[i][j], 1e-3) << ranks;
      }
    }
  }
}

TEST(ZeroEngine, ReplicasOfShardedGroupsTrainTheSameModel) {
  // Twelve micro-batches on six ranks: two passes, three replicas of two ranks or two of three.
  const WorldResult one = Train(ModelKind::kBert, "fp32", 12, 1, {});
  for (const int replicas : {2, 3}) {
    WorldResult first;
    for (const int stage : {0, 1, 2, 3}) {
      RunSetup setup = WorldSetup(ModelKind::kBert, "fp32", "none", 24, 2);
      setup.ranks = 6;
      setup.replicas = replicas;
      setup.engine.zero_stage = stage;
      setup.engine.bucket_bytes = 5000;
      const WorldResult many = TrainWorld(setup, 6, 3);
      for (size_t step = 0; step < one.totals.size(); ++step) {
        EXPECT_NEAR(many.totals[step].loss_sum, one.totals[step].loss_sum,
                    1e-5 * one.totals[step].loss_sum)
            << replicas << " replicas, stage " << stage;
        EXPECT_NEAR(many.controls[step][0], one.controls[step][0], 1e-5 * one.controls[step][0]);
      }
      for (const auto& values : many.state.at("master")) {
        for (const float value : values) ASSERT_FALSE(std::isnan(value)) << "not owned once";
      }
      // What two replicas move: their own share, and each element once more among themselves.
      const Rehearsal plan = *Rehearse(setup, /*training=*/true, 1);
      EXPECT_EQ(many.last_step.bytes, plan.comm.bytes);
      EXPECT_EQ(many.arena_bytes, plan.peak_bytes);
      if (stage == 0) first = many;
      if (stage == 1) {
        EXPECT_TRUE(many.SameNumbers(first));
      }
    }
  }
}

TEST(ZeroEngine, HostCountsAreAddedOverRanks) {
  for (const int stage : {0, 3}) {
    const WorldResult result = Train(ModelKind::kPhi, "fp32", 3, 3, {.stage = stage}, 1);
    EXPECT_EQ(result.totals[0].requests, 3u);
    EXPECT_EQ(result.totals[0].numbers, (std::array<double, 4>{0 + 1 + 2, 0, 0, 3}));
  }
}

int64_t PaddedElements(const RunSetup& setup, int ranks) {
  int64_t elements = 0;
  for (const GroupLayout& group : BuildLayout(setup.specs, ranks).groups) {
    elements += group.elements;
  }
  return elements;
}

TEST(ZeroEngine, SendsTheBytesOfTheFormulas) {
  for (const char* precision : {"fp32", "bf16"}) {
    const int64_t weight = precision == std::string("fp32") ? 4 : 2;
    for (const int ranks : {2, 3, 5}) {
      for (const int passes : {1, 3}) {
        const RunSetup setup =
            WorldSetup(ModelKind::kPhi, precision, "none", 2 * ranks * passes, 2);
        const int64_t share = PaddedElements(setup, ranks) / ranks * (ranks - 1);
        const int64_t sums = (ranks - 1) * Engine::kRecordWords * 8;
        const auto sent = [&](int stage, int layer_slots) {
          return Train(ModelKind::kPhi, precision, ranks * passes, ranks,
                       {.stage = stage, .bucket_bytes = 4000, .layer_slots = layer_slots})
              .last_step;
        };
        for (const int stage : {0, 1, 2, 3}) {
          const CommCounts counts = sent(stage, /*layer_slots=*/4);  // everything stays
          const int64_t reductions = stage >= 2 ? passes : 1;
          EXPECT_EQ(counts.bytes[static_cast<size_t>(Collective::kReduceScatter)],
                    reductions * 4 * share);
          // Stage 0 gathers the reduced gradients, the others the updated weights.
          EXPECT_EQ(counts.bytes[static_cast<size_t>(Collective::kAllGather)],
                    (stage == 0 ? 4 : weight) * share + sums)
              << "stage " << stage;
        }
        // Two of four layers have a place: on every pass the backward finds two and the next
        // forward two; the embeddings and the head stay.
        const RunSetup& shape = setup;
        const Layout layout = BuildLayout(shape.specs, ranks);
        const int64_t layer = layout.groups[1].elements / ranks * (ranks - 1) * weight;
        EXPECT_EQ(sent(3, 2).bytes[static_cast<size_t>(Collective::kAllGather)],
                  weight * share + sums + (passes * 4 - 2) * layer)
            << passes;
      }
    }
  }
}

TEST(ZeroEngine, ThePlanKnowsEveryStagesBytes) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const int ranks : {2, 3, 5}) {
      for (int stage = 0; stage < 4; ++stage) {
        RunSetup setup = WorldSetup(ModelKind::kBert, precision, "none", 2 * ranks * 2, 2);
        setup.ranks = ranks;
        setup.engine.zero_stage = stage;
        setup.engine.bucket_bytes = 4000;
        const Rehearsal plan = *Rehearse(setup, /*training=*/true, 1);
        const WorldResult run = TrainWorld(setup, ranks, 3);
        EXPECT_EQ(run.arena_bytes, plan.peak_bytes) << "stage " << stage << ", " << ranks;
        EXPECT_EQ(run.last_step.bytes, plan.comm.bytes);
        EXPECT_EQ(run.last_step.calls, plan.comm.calls);
        // Rajbhandari et al., section 5: what is sharded shrinks as 1/p.
        const int64_t elements = PaddedElements(setup, ranks);
        const int64_t states = elements * (precision == std::string("fp32") ? 8 : 12);
        EXPECT_EQ(plan.bytes_by_kind[static_cast<size_t>(MemoryKind::kOptimizer)],
                  stage >= 1 ? states / ranks : states);
      }
    }
  }
}

TEST(ZeroEngine, PaddingIsUnderAThousandthOnRealModels) {
  for (const char* name : {"phi2-continue", "bert-2.5b", "bert-base", "phi-125m"}) {
    const auto recipe = LoadRecipe(absl::StrCat(TRANCHE_SOURCE_DIR "/recipes/", name, ".toml"), {},
                                   RecipeFiles::kNone);
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    const auto setup = SetUpRun(*recipe, /*with_tokenizer=*/false);
    ASSERT_TRUE(setup.ok()) << setup.status();
    const double elements = static_cast<double>(TotalElements(setup->specs));
    for (const int ranks : {2, 3, 5, 8, 16, 20, 64}) {
      EXPECT_LT(static_cast<double>(PaddedElements(*setup, ranks)), 1.001 * elements)
          << name << " on " << ranks;
    }
  }
}

TEST(ZeroEngine, BucketsAndPartsCutEveryGroupOnLinesWithoutGaps) {
  const RunSetup setup = WorldSetup(ModelKind::kBert, "fp32", "none", 2, 2);
  for (const int ranks : {1, 2, 3, 5, 7, 1000}) {
    for (const int64_t bucket : {int64_t{1}, int64_t{640}, int64_t{1000}, int64_t{1} << 40}) {
      const Layout layout = BuildLayout(setup.specs, ranks, /*replicas=*/1, bucket);
      for (const GroupLayout& group : layout.groups) {
        int64_t end = 0;
        for (const Range& each : group.buckets) {
          EXPECT_EQ(each.begin, end);
          EXPECT_GT(each.size, 0);
          EXPECT_LE(each.size, std::max<int64_t>(bucket, ranks * kLineElements));
          int64_t part_end = each.begin;
          for (int rank = 0; rank < ranks; ++rank) {
            const Range part = layout.Part(each, rank);
            EXPECT_EQ(part.begin, part_end);
            EXPECT_EQ(part.begin % kLineElements, 0);
            part_end = part.end();
          }
          EXPECT_EQ(part_end, each.end());
          end = each.end();
        }
        EXPECT_EQ(end, group.elements);
      }
    }
  }
}

// The fewest gathers for a walk when the future is known: whoever is needed last goes.
int64_t OptimalGathers(const std::vector<int>& walk, int slots) {
  std::set<int> present;
  int64_t gathers = 0;
  for (size_t at = 0; at < walk.size(); ++at) {
    if (present.count(walk[at]) > 0) continue;
    ++gathers;
    if (static_cast<int>(present.size()) == slots) {
      const auto next_use = [&](int group) {
        return std::find(walk.begin() + static_cast<ptrdiff_t>(at), walk.end(), group);
      };
      // The one in use now cannot go: its successor is gathered beside it.
      int victim = -1;
      for (const int group : present) {
        if (at > 0 && group == walk[at - 1]) continue;
        if (victim < 0 || next_use(group) > next_use(victim)) victim = group;
      }
      present.erase(victim);
    }
    present.insert(walk[at]);
  }
  return gathers;
}

TEST(Residency, GathersNoMoreThanNeededOnTheWalkUpAndDownTheLayers) {
  for (const int layers : {1, 2, 3, 7, 12}) {
    for (int slots = 2; slots <= layers + 1; ++slots) {
      std::vector<int> walk;
      for (int pass = 0; pass < 3; ++pass) {
        for (int g = 1; g <= layers; ++g) walk.push_back(g);
        for (int g = layers; g >= 1; --g) walk.push_back(g);
      }
      Residency residency(layers + 2, slots);
      int64_t gathers = 0;
      for (size_t at = 0; at < walk.size(); ++at) {
        if (residency.SlotOf(walk[at]) < 0) {
          ++gathers;
          ASSERT_GE(residency.Place(walk[at]), 2);
        }
        if (at > 0) residency.Unpin(walk[at - 1]);
        residency.Pin(walk[at]);
      }
      EXPECT_EQ(gathers, OptimalGathers(walk, slots)) << layers << " layers, " << slots;
    }
  }
}

}  // namespace
}  // namespace tranche
