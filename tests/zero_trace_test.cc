// The trace of a run of several ranks: what is in it, and what it shows.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "train_test_run.h"

namespace tranche {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr int kCompute = 0, kCommunication = 1, kWaiting = 2;
constexpr int kSteps = 3;  // of each trace

struct Span {
  int track = 0;
  std::string name;
  double begin = 0, end = 0;
  int64_t bytes = 0;
};

// By rank, in the order in which they began.
using Trace = std::map<int, std::vector<Span>>;

Trace Read(const std::string& path) {
  Trace trace;
  const Json json = Json::parse(Slurp(path), nullptr, false);
  EXPECT_TRUE(json.is_object() && json["traceEvents"].is_array()) << path;
  if (!json.is_object()) return trace;
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"], duration = event["dur"];
    EXPECT_GE(duration, 0);
    trace[event["pid"]].push_back(
        {event["tid"], event["name"], begin, begin + duration, event["args"]["bytes"]});
  }
  for (auto& [rank, spans] : trace) {
    std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
  }
  return trace;
}

std::vector<Span> Named(const std::vector<Span>& spans, const std::string& name) {
  std::vector<Span> found;
  for (const Span& span : spans) {
    if (span.name == name) found.push_back(span);
  }
  return found;
}

Result Launch(const SmallRun& run, const std::string& output, std::vector<std::string> sets) {
  sets.insert(sets.end(), {"profiler.enable=true", "parallelism.bucket_size=1GB",
                           absl::StrCat("run.output_dir=", run.File(output))});
  std::vector<std::string> words = {"launch", "-n", "2", "--oversubscribe", run.recipe_path()};
  for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
  return run.Call(words);
}

// Times since 1970 in microseconds as a double: to a quarter of one.
constexpr double kClock = 1;

// Spans of one track may lie inside one another; they never overlap otherwise.
void ExpectNested(const std::vector<Span>& spans, int track, bool nested_allowed) {
  std::vector<double> open;
  for (const Span& span : spans) {
    if (span.track != track) continue;
    while (!open.empty() && open.back() <= span.begin + kClock) open.pop_back();
    EXPECT_TRUE(nested_allowed || open.empty()) << span.name;
    EXPECT_TRUE(open.empty() || span.end <= open.back() + kClock) << span.name;
    open.push_back(span.end);
  }
}

TEST(ZeroTrace, HoldsEveryGroupOfTheStepsAskedForAndOfNoOthers) {
  const SmallRun run(/*steps=*/6);
  const char* const groups[] = {"embeddings", "layers.0", "layers.1", "head"};
  for (const int stage : {1, 3}) {
    for (const bool overlap : {true, false}) {
      SCOPED_TRACE(absl::StrCat("stage ", stage, overlap ? " overlap" : ""));
      const std::string output = absl::StrCat("run", stage, overlap);
      const Result result =
          Launch(run, output,
                 {"profiler.steps=[2, 4]", absl::StrCat("parallelism.zero_stage=", stage),
                  absl::StrCat("parallelism.overlap=", overlap ? "true" : "false")});
      ASSERT_EQ(result.code, 0) << result.output;
      EXPECT_THAT(result.output, HasSubstr("trace of 3 steps"));
      const std::string folder = run.File(output + "/trace/");
      const Trace all = Read(folder + "all.json");
      ASSERT_EQ(all.size(), 2u);
      for (const auto& [rank, spans] : all) {
        const Trace own = Read(absl::StrCat(folder, "rank-", rank, ".json"));
        ASSERT_EQ(own.size(), 1u);
        ASSERT_EQ(own.begin()->first, rank);
        EXPECT_EQ(own.begin()->second.size(), spans.size());
        // Four micro-batches, two on each rank.
        const int reductions = stage < 2 ? kSteps : 2 * kSteps;
        for (const std::string group : groups) {
          SCOPED_TRACE(absl::StrCat("rank ", rank, " ", group));
          const auto count = [&](const char* what) {
            return static_cast<int>(Named(spans, absl::StrCat(what, " ", group)).size());
          };
          const bool head = group == "head";
          EXPECT_EQ(count("forward"), head ? 0 : 2 * kSteps);
          EXPECT_EQ(count("backward"), head ? 0 : 2 * kSteps);
          EXPECT_EQ(count("forward and backward"), head ? 2 * kSteps : 0);
          EXPECT_EQ(count("update"), kSteps);
          EXPECT_EQ(count("reduce-scatter"), reductions);
          EXPECT_EQ(count("all-gather"), kSteps);
          for (const Span& span : Named(spans, "reduce-scatter " + group)) {
            EXPECT_GT(span.bytes, 0);
          }
        }
        EXPECT_EQ(Named(spans, "all-gather the sums over ranks").size(), size_t{kSteps});
        for (const int track : {kCompute, kCommunication, kWaiting}) {
          ExpectNested(spans, track, /*nested_allowed=*/track == kCompute);
        }
      }
    }
  }
}

// How many reductions of a layer and backward passes of the layer below it, over all layers, steps
// and ranks, were under way at the same time.
int ReductionsUnderBackward(const Trace& trace, int layers) {
  int under = 0;
  for (const auto& [rank, spans] : trace) {
    for (int layer = 1; layer < layers; ++layer) {
      const auto reductions = Named(spans, absl::StrCat("reduce-scatter layers.", layer));
      const auto below = Named(spans, absl::StrCat("backward layers.", layer - 1));
      EXPECT_EQ(reductions.size(), size_t{kSteps});
      EXPECT_EQ(below.size(), size_t{kSteps});
      for (size_t i = 0; i < std::min(reductions.size(), below.size()); ++i) {
        if (reductions[i].begin + kClock < below[i].end &&
            reductions[i].end > below[i].begin + kClock) {
          ++under;
        }
      }
    }
  }
  return under;
}

TEST(ZeroTrace, ReductionOfALayerRunsUnderBackwardOfTheOneBelowIt) {
  // Large enough that a layer's backward outlasts a switch of threads, also on shared cores.
  const SmallRun run(/*steps=*/4, /*hidden=*/256);
  constexpr int kLayers = 4;
  for (const bool overlap : {true, false}) {
    const std::string output = absl::StrCat("run", overlap);
    // One micro-batch on each rank a step.
    const Result result =
        Launch(run, output,
               {"profiler.steps=[2, 4]", "training.micro_batch_size=4",
                absl::StrCat("model.num_hidden_layers=", kLayers),
                absl::StrCat("parallelism.overlap=", overlap ? "true" : "false")});
    ASSERT_EQ(result.code, 0) << result.output;
    const Trace all = Read(run.File(output + "/trace/all.json"));
    ASSERT_EQ(all.size(), 2u);
    const int pairs = 2 * kSteps * (kLayers - 1);
    if (overlap) {
      // Where ranks share their cores the communication's thread may come late, but not always.
      EXPECT_GE(ReductionsUnderBackward(all, kLayers), 1) << "of " << pairs;
    } else {
      EXPECT_EQ(ReductionsUnderBackward(all, kLayers), 0);
    }
  }
}

TEST(ZeroTrace, OfARunThatEndsEarlierIsOfTheStepsItHad) {
  const SmallRun run(/*steps=*/3);
  const Result result = Launch(run, "run", {"profiler.steps=[2, 9]"});
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("trace of 2 steps"));
  EXPECT_EQ(Read(run.File("run/trace/all.json")).size(), 2u);
  // Nor does it come back with a run that starts anew.
  const Result anew = run.Train("run", {"--overwrite"});
  ASSERT_EQ(anew.code, 0) << anew.output;
  EXPECT_FALSE(std::filesystem::exists(run.File("run/trace")));
}

}  // namespace
}  // namespace tranche
