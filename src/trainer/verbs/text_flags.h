// The flags of the verbs that read text: which documents it holds, and what to do with bad ones.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "data/text_reader.h"
#include "trainer/cli.h"

namespace tranche {

// `flags` with the flags that ParseTextFlags reads behind them.
std::vector<Flag> WithTextFlags(std::vector<Flag> flags);
absl::StatusOr<TextOptions> ParseTextFlags(const Arguments& arguments);

// What was replaced, left out or empty, a line each; nothing where all was well.
void PrintTextFaults(const TextStats& stats);

}  // namespace tranche
