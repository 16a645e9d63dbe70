// What a run says about a step: one line for people and one JSON object for machines, from the same
// numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tranche {

struct StepReport {
  enum class Outcome {
    kUpdated,
    kNonFinite,  // the update was skipped: the loss or a gradient was not finite
    kNoTargets,  // nothing to predict in the whole global batch: no update
  };
  int64_t step = 0;  // from 1
  int64_t total_steps = 0;
  Outcome outcome = Outcome::kUpdated;
  double loss = 0;  // nats per predicted token
  std::optional<double> next_sentence_loss;
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  int64_t step_tokens = 0;     // rows that went through the model
  int64_t step_predicted = 0;  // of them with a loss
  int64_t total_tokens = 0;    // since the first step of the run
  double seconds = 0;          // of this step
  double data_seconds = 0;     // of them, the host was getting data
  double model_flops = 0;      // of this step, without recompute
  double peak_flops = 0;       // per second: what mfu is a share of; 0: unknown
  int64_t memory_bytes = 0;    // of the arena
  int64_t skipped_steps = 0;   // so far, both kinds
  double eta_seconds = 0;
};

// "step 1200/7121 (16.9%) | loss 1.8342 | grad_norm 0.412 | lr 8.41e-05 | tok/s 96.3k | mfu 34.1% |
// mem 61.2 GiB | data 0.4% | step 40.8s | tokens 4.72B | skipped 0 | eta 2d19h"
std::string StepLine(const StepReport& report);
// One line of metrics.jsonl, without its newline. Numbers read back to the same bits; what is not
// finite is null.
std::string StepJson(const StepReport& report);

}  // namespace tranche
