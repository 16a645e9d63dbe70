// Small runs of the real program on one rank or several: how they are started, and what is
// compared.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "train_test_run.h"

namespace tranche {

struct Variant {
  int ranks;
  std::vector<std::string> sets;
};

inline std::vector<std::string> Words(const SmallRun& run, const std::string& output,
                                      const Variant& variant) {
  std::vector<std::string> words = run.Words(output, variant.sets);
  if (variant.ranks > 1) {
    words[0] = "launch";
    words.insert(words.end(),
                 {absl::StrCat("--ranks=", variant.ranks), "--oversubscribe", "--bind=none",
                  absl::StrCat("--log-dir=", run.File(output + ".logs"))});
  }
  return words;
}

inline Result Train(const SmallRun& run, const std::string& output, const Variant& variant) {
  Program program(Words(run, output, variant), run.File(output + ".log"));
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
