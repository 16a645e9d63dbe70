// The command line: verbs, their flags, help, and errors that name the nearest right flag.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tranche {

struct Flag {
  std::string name;   // without the dashes: "set"
  std::string value;  // what stands for its value in help: "KEY=VALUE"; empty for a switch
  std::string help;   // one sentence
  bool repeated = false;
};

class Arguments {
 public:
  bool Has(absl::string_view flag) const;  // given at least once
  std::string Get(absl::string_view flag,
                  absl::string_view otherwise = "") const;  // the last value given
  std::vector<std::string> GetAll(absl::string_view flag) const;
  absl::StatusOr<int64_t> GetInt(absl::string_view flag, int64_t otherwise, int64_t low,
                                 int64_t high) const;
  absl::StatusOr<double> GetDouble(absl::string_view flag, double otherwise, double low,
                                   double high) const;
  // The value of the word given; of the first choice where none was.
  template <typename Value>
  absl::StatusOr<Value> GetOneOf(absl::string_view flag,
                                 const std::vector<std::pair<std::string, Value>>& choices) const {
    std::vector<std::string> words;
    for (const auto& [word, value] : choices) words.push_back(word);
    const absl::StatusOr<size_t> choice = GetChoice(flag, words);
    if (!choice.ok()) return choice.status();
    return choices[*choice].second;
  }
  const std::vector<std::string>& positionals() const { return positionals_; }

 private:
  friend absl::StatusOr<Arguments> ParseArguments(const struct Verb& verb,
                                                  absl::Span<const std::string> words);
  absl::StatusOr<size_t> GetChoice(absl::string_view flag,
                                   const std::vector<std::string>& words) const;

  std::vector<std::pair<std::string, std::string>> flags_;
  std::vector<std::string> positionals_;
};

struct Verb {
  std::string name;     // "train", "tokenizer train"
  std::string summary;  // one line for `tranche --help`
  std::string usage;    // "RECIPE [flags]": what follows the verb
  std::string example;  // one real command line
  std::vector<Flag> flags;
  int min_positionals = 0;
  int max_positionals = 0;                           // -1: any number
  int (*run)(const Arguments& arguments) = nullptr;  // returns an ExitCode
};

// "--flag value", "--flag=value", "--" ends the flags. Wrong flags and counts are errors that name
// what is allowed.
absl::StatusOr<Arguments> ParseArguments(const Verb& verb, absl::Span<const std::string> words);

// Prints "error: MESSAGE" to stderr and returns kExitBadInput for InvalidArgument, NotFound,
// FailedPrecondition, OutOfRange and AlreadyExists, kExitPeerFailed for Aborted, else kExitFailed.
int ReportError(const absl::Status& status);

// Every verb is defined beside its work in trainer/verbs/*.cc as a function `Verb XxxVerb()` and
// listed in trainer/verbs/verbs.h.
}  // namespace tranche
