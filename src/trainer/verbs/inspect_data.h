// What `tranche inspect` shows of data: a dataset, and the samples of a step as the model gets
// them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "data/loader.h"
#include "data/tokenizer.h"

namespace tranche {

// A dataset (PREFIX, PREFIX.bin, PREFIX.idx, or a file of llm.c): format, type, counts, lengths,
// how it was made and, with a tokenizer (may be null), the pieces of its first document. Checks the
// whole file.
absl::StatusOr<std::string> InspectDataset(const std::string& path, absl::string_view token_dtype,
                                           const Tokenizer* tokenizer);

// Every sample of a step: where it is from, its documents and their borders, its text, labels and
// masks. options.tokenizer may be null: then ids are shown. rows: one line a row (position, id,
// piece, label) instead of running text.
absl::StatusOr<std::string> InspectStep(const LoaderOptions& options, int64_t step, bool rows);

}  // namespace tranche
