#include "trainer/rehearsal.h"

#include <omp.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace tranche {
namespace {

double Flops(const PlanCounts& counts) {
  return static_cast<double>(counts.matmul_flops) + static_cast<double>(counts.attention_flops);
}

constexpr StepScale kOneToken = {.predicted_tokens = 1, .sequences = 1, .dropout_key = 0};

}  // namespace

int UsableThreads() { return omp_get_max_threads(); }

std::string FormatFlops(double flops) {
  const char* const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t prefix = 0;
  for (; flops >= 1000 && prefix + 1 < std::size(prefixes); ++prefix) flops /= 1000;
  return absl::StrFormat("%.3g %sFLOP", flops, prefixes[prefix]);
}

absl::StatusOr<Rehearsal> Rehearse(const RunSetup& setup, bool training, int threads,
                                   const MachineRates& rates) {
  const std::unique_ptr<PlanBackend> backend = CreatePlanBackend(threads);
  Arena arena = Arena::Rehearsal();
  const int ranks = training ? setup.ranks : 1;
  backend->SetRates(rates.device);
  Comm comm(*backend, 0, ranks, rates.collectives);
  TRANCHE_ASSIGN_OR_RETURN(const auto session, Session::Create(setup, training, *backend, arena,
                                                               ranks > 1 ? &comm : nullptr));
  Rehearsal rehearsal;
  if (training) {
    // The second step shows what moves in every step.
    for (int64_t step = 1; step <= (ranks > 1 ? 2 : 1); ++step) {
      comm.ResetCounts();
      const double begin = backend->Seconds(session->stream());
      session->BeginStep();
      for (int64_t pass = 0; pass < session->Rounds(setup.micro_batches()); ++pass) {
        backend->ResetCounts();
        session->ForwardBackward(TypicalBatch(setup), kOneToken);
        rehearsal.micro_batch_flops = Flops(backend->counts());
      }
      session->FinishStep(0, step, 0);
      rehearsal.step_seconds = backend->Seconds(session->stream()) - begin;
    }
    rehearsal.comm = comm.counts();
  } else {
    session->BeginEvaluation();
    session->Evaluate(TypicalBatch(setup));
    rehearsal.micro_batch_flops = Flops(backend->counts());
    session->FinishEvaluation();
  }
  rehearsal.entries = arena.entries();
  rehearsal.peak_bytes = arena.peak();
  for (const MemoryKind kind :
       {MemoryKind::kWeights, MemoryKind::kGradients, MemoryKind::kOptimizer,
        MemoryKind::kActivations, MemoryKind::kWorkspace}) {
    rehearsal.bytes_by_kind.push_back(arena.BytesOf(kind));
  }
  return rehearsal;
}

FlopCounter::FlopCounter(std::unique_ptr<PlanBackend> backend)
    : backend_(std::move(backend)), arena_(Arena::Rehearsal()) {}

FlopCounter::~FlopCounter() = default;

absl::StatusOr<std::unique_ptr<FlopCounter>> FlopCounter::Create(const RunSetup& setup) {
  TrainingRecipe training = setup.recipe.training;
  training.activation_checkpointing = "none";
  TRANCHE_ASSIGN_OR_RETURN(const RunSetup variant, SetUpVariant(setup, training));
  std::unique_ptr<FlopCounter> counter(new FlopCounter(CreatePlanBackend(1)));
  TRANCHE_ASSIGN_OR_RETURN(counter->session_,
                           Session::Create(variant, true, *counter->backend_, counter->arena_));
  return counter;
}

double FlopCounter::Count(const MicroBatch& batch) {
  backend_->ResetCounts();
  session_->ForwardBackward(batch, kOneToken);
  return Flops(backend_->counts());
}

}  // namespace tranche
