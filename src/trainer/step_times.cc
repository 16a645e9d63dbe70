#include "trainer/step_times.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/rng.h"
#include "base/status.h"
#include "trainer/rehearsal.h"
#include "trainer/session.h"
#include "trainer/weights.h"

namespace tranche {
namespace {

MicroBatch RandomBatch(const RunSetup& setup) {
  MicroBatch batch = TypicalBatch(setup);
  RandomSequence random(DeriveKey(static_cast<uint64_t>(setup.recipe.run.seed), 1));
  const auto vocabulary = static_cast<uint64_t>(setup.config.vocab_size);
  for (int32_t& id : batch.input_ids) id = static_cast<int32_t>(random.Below(vocabulary));
  for (int32_t& id : batch.labels) id = static_cast<int32_t>(random.Below(vocabulary));
  return batch;
}

}  // namespace

absl::StatusOr<StepTimes> MeasureSteps(const RunSetup& setup, Backend& backend,
                                       const CommGroups& comms, int threads, int64_t warm_up,
                                       int64_t steps) {
  TRANCHE_ASSIGN_OR_RETURN(const Rehearsal rehearsal, Rehearse(setup, true, threads));
  TRANCHE_ASSIGN_OR_RETURN(Arena arena, Arena::OnHost(rehearsal.peak_bytes));
  TRANCHE_ASSIGN_OR_RETURN(const auto session, Session::Create(setup, true, backend, arena, comms));
  TRANCHE_RETURN_IF_ERROR(SetFirstWeights(setup, session->engine(), backend, session->stream()));
  TRANCHE_ASSIGN_OR_RETURN(const auto counter, FlopCounter::Create(setup));

  const MicroBatch batch = RandomBatch(setup);
  const int64_t slots = setup.micro_batches();
  StepTimes times;
  times.arena_bytes = arena.peak();
  times.flops = counter->Count(batch) * static_cast<double>(slots);
  const StepScale scale = {.predicted_tokens = batch.num_predicted() * slots,
                           .sequences = batch.num_sequences() * slots};
  for (int64_t step = 1; step <= warm_up + steps; ++step) {
    if (step == warm_up + 1) session->engine().TakeExposedSeconds();
    const auto start = std::chrono::steady_clock::now();
    session->BeginStep();
    for (int64_t round = 0; round < session->Rounds(slots); ++round) {
      const bool mine = round * session->ranks() + session->rank() < slots;
      StepScale each = scale;
      each.dropout_key = static_cast<uint64_t>(step);
      session->ForwardBackward(mine ? batch : EmptyBatch(), each);
    }
    session->FinishStep(1e-4f, step, 0);
    const Readback& readback = session->Await(0);
    TRANCHE_RETURN_IF_ERROR(session->status());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (step > warm_up) times.seconds.push_back(took.count());
    times.loss = readback.totals.loss_sum / static_cast<double>(scale.predicted_tokens);
  }
  times.exposed = session->engine().TakeExposedSeconds();
  std::sort(times.seconds.begin(), times.seconds.end());
  return times;
}

}  // namespace tranche
