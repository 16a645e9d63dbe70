// What is compared of small runs on one rank or several.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ranked_run.h"

namespace tranche {

struct Variant {
  int ranks;
  std::vector<std::string> sets;
};

inline Result Train(const SmallRun& run, const std::string& output, const Variant& variant) {
  Program program(WordsOnRanks(run, output, variant.ranks, variant.sets),
                  run.File(output + ".log"));
  const int code = program.Wait();
  return {code, program.Output()};
}

// The steps' losses and norms as they were printed, and the exported weights.
struct Outcome {
  std::map<int64_t, std::string> steps;
  std::string weights;

  bool operator==(const Outcome&) const = default;
};

inline Outcome OutcomeOf(const SmallRun& run, const std::string& output) {
  const std::string weights = Slurp(run.File(output + "/export/model.safetensors"));
  return {run.Steps(output), weights.empty() ? "" : Hash128(weights)};
}

inline Outcome MustTrain(const SmallRun& run, const std::string& output, Variant variant) {
  variant.sets.push_back("checkpoint.export_hf=last");
  const Result result = Train(run, output, variant);
  EXPECT_EQ(result.code, 0) << result.output;
  Outcome outcome = OutcomeOf(run, output);
  EXPECT_FALSE(outcome.weights.empty());
  return outcome;
}

inline double LossOf(const std::string& step) { return std::stod(step); }
inline double TokensOf(const std::string& step) { return std::stod(step.substr(step.rfind(' '))); }
inline double NormOf(const std::string& step) { return std::stod(step.substr(step.find(' '))); }

}  // namespace tranche
