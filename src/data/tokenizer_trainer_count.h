// Counts the pieces that text is cut into, on all cores.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/tokenizer_trainer.h"

namespace tranche {

struct PieceCounts {
  std::vector<std::pair<std::string, int64_t>> pieces;  // sorted by bytes
  int64_t documents = 0, text_bytes = 0;
};

// Cuts one document; called from many threads.
using DocumentCutter = std::function<void(absl::string_view document,
                                          absl::FunctionRef<void(absl::string_view piece)> sink)>;

absl::StatusOr<PieceCounts> CountPieces(const DocumentSource& source, const DocumentCutter& cut,
                                        int threads,
                                        absl::FunctionRef<void(int64_t text_bytes)> progress);

}  // namespace tranche
