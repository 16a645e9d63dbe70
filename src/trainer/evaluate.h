// The loss on a validation set.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "data/loader.h"
#include "trainer/session.h"

namespace tranche {

struct EvaluationResult {
  std::string name;
  double loss = 0;                      // nats per predicted token
  double perplexity = 0;                // e^loss
  std::optional<double> bits_per_byte;  // where the data says how many bytes its tokens stand for
  std::optional<double> next_sentence_loss;
  int64_t predicted_tokens = 0;
  int64_t sequences = 0;
};

// The first `steps` global batches of the loader, which has one epoch; 0: all of it. `stop` is
// asked between micro-batches: Cancelled where it says true. FailedPrecondition where nothing in
// the set can be predicted.
absl::StatusOr<EvaluationResult> EvaluateSet(Session& session, const std::string& name,
                                             const Loader& loader, int64_t steps,
                                             const std::function<bool()>& stop);

// "wiki: loss 4.5931 | perplexity 98.80 | 2.190 bits/byte | 12,345 tokens"
std::string EvaluationLine(const EvaluationResult& result);
// One line of metrics.jsonl.
std::string EvaluationJson(const EvaluationResult& result, int64_t step);

}  // namespace tranche
