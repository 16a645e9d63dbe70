#include "trainer/evaluate.h"

#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/units.h"
#include "nlohmann/json.hpp"

namespace tranche {

absl::StatusOr<EvaluationResult> EvaluateSet(Session& session, const std::string& name,
                                             const Loader& loader, int64_t steps,
                                             const std::function<bool()>& stop) {
  const int64_t available = loader.steps_per_epoch();
  if (steps <= 0 || steps > available) steps = available;
  EvaluationResult result;
  result.name = name;
  HostCounts counts;
  auto& [predicted, sequences, text_bytes, bytes_unknown] = counts.numbers;
  session.BeginEvaluation();
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t round = 0; round < session.Rounds(loader.slots()); ++round) {
      if (stop()) return absl::CancelledError("evaluation was stopped");
      TRANCHE_ASSIGN_OR_RETURN(MicroBatch batch, session.BatchOf(loader, step, round));
      if (batch.num_predicted() == 0) {
        if (session.ranks() == 1) continue;
        batch = EmptyBatch();  // the others may need this rank's part of the weights
      } else {
        predicted += static_cast<double>(batch.num_predicted());
        sequences += static_cast<double>(batch.num_sequences());
        text_bytes += batch.text_bytes;
        bytes_unknown += batch.text_bytes > 0 ? 0 : 1;
      }
      session.Evaluate(std::move(batch));
    }
  }
  const EngineTotals& sums = session.FinishEvaluation(counts).totals;
  TRANCHE_RETURN_IF_ERROR(session.status());
  const auto [all_predicted, all_sequences, all_text_bytes, any_unknown] = sums.numbers;
  result.predicted_tokens = static_cast<int64_t>(all_predicted);
  result.sequences = static_cast<int64_t>(all_sequences);
  if (result.predicted_tokens == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("validation set \"", name, "\": no token of it can be predicted"));
  }
  result.loss = sums.loss_sum / static_cast<double>(result.predicted_tokens);
  result.perplexity = std::exp(result.loss);
  if (any_unknown == 0) {
    result.bits_per_byte = sums.loss_sum / std::numbers::ln2 / all_text_bytes;
  }
  if (loader.options().next_sentence) {
    result.next_sentence_loss = sums.next_sentence_loss_sum / static_cast<double>(result.sequences);
  }
  return result;
}

std::string EvaluationLine(const EvaluationResult& result) {
  std::string line = absl::StrFormat("%s: loss %.4f | perplexity %.2f", result.name, result.loss,
                                     result.perplexity);
  if (result.bits_per_byte)
    absl::StrAppendFormat(&line, " | %.4f bits/byte", *result.bits_per_byte);
  if (result.next_sentence_loss)
    absl::StrAppendFormat(&line, " | nsp %.4f", *result.next_sentence_loss);
  return absl::StrCat(line, " | ", FormatInteger(result.predicted_tokens), " tokens");
}

std::string EvaluationJson(const EvaluationResult& result, int64_t step) {
  nlohmann::ordered_json line = {{"event", "evaluation"},
                                 {"step", step},
                                 {"set", result.name},
                                 {"loss", result.loss},
                                 {"perplexity", result.perplexity}};
  if (result.bits_per_byte) line["bits_per_byte"] = *result.bits_per_byte;
  if (result.next_sentence_loss) line["next_sentence_loss"] = *result.next_sentence_loss;
  line["predicted_tokens"] = result.predicted_tokens;
  return line.dump();
}

}  // namespace tranche
