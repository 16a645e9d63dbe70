#include "trainer/rehearsal.h"

#include <omp.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "trainer/memory_use.h"
#include "zero/placement.h"

namespace tranche {
namespace {

double Flops(const PlanCounts& counts) {
  return static_cast<double>(counts.matmul_flops) + static_cast<double>(counts.attention_flops);
}

// Passes of a step after which each does what the one before it did.
constexpr int64_t kRehearsedPasses = 4;

// Adds `more` passes: each what `longer` has more than `shorter`, which has one pass less.
void Extend(const Rehearsal& shorter, int64_t more, Rehearsal* longer) {
  for (size_t kind = 0; kind < kNumCollectives; ++kind) {
    int64_t &calls = longer->comm.calls[kind], &bytes = longer->comm.bytes[kind];
    calls += more * (calls - shorter.comm.calls[kind]);
    bytes += more * (bytes - shorter.comm.bytes[kind]);
  }
  longer->step_seconds += static_cast<double>(more) * (longer->step_seconds - shorter.step_seconds);
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
  const int replicas = training ? setup.replicas : 1;
  Comm world(*backend, 0, ranks, rates.collectives);
  Comm shards(*backend, 0, ranks / replicas, rates.collectives);
  Comm copies(*backend, 0, replicas, rates.collectives);
  CommGroups comms;
  if (ranks > 1)
    comms = {&world, replicas > 1 ? &shards : &world, replicas > 1 ? &copies : nullptr};
  TRANCHE_ASSIGN_OR_RETURN(const auto session,
                           Session::Create(setup, training, *backend, arena, comms));
  Rehearsal rehearsal;
  if (training) {
    const MicroBatch batch = TypicalBatch(setup);
    const auto step = [&](int64_t passes) {
      comms.ResetCounts();
      const double begin = backend->Seconds(session->stream());
      session->engine().BeginStep(session->stream(), passes);
      for (int64_t pass = 0; pass < passes; ++pass) {
        backend->ResetCounts();
        session->ForwardBackward(batch, kOneToken);
        rehearsal.micro_batch_flops = Flops(backend->counts());
      }
      session->FinishStep(0, /*step=*/1, /*slot=*/0);
      rehearsal.comm = comms.counts();
      rehearsal.step_seconds = backend->Seconds(session->stream()) - begin;
    };
    const int64_t passes = session->Rounds(setup.micro_batches());
    step(1);  // the second shows what moves in every step
    if (passes <= kRehearsedPasses) {
      step(passes);
    } else {
      step(kRehearsedPasses - 1);
      const Rehearsal shorter = rehearsal;
      step(kRehearsedPasses);
      Extend(shorter, passes - kRehearsedPasses, &rehearsal);
    }
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

absl::Status SettleResidency(int ranks_here, int threads, RunSetup* setup) {
  if (setup->recipe.parallelism.reshard_after_forward != "auto" ||
      !Placement::OfStage(setup->engine.zero_stage).weights_sharded) {
    return absl::OkStatus();
  }
  const int64_t free = AvailableHostMemory() / ranks_here / 2;
  const int layers = static_cast<int>(setup->config.num_layers);
  for (int slots = layers; slots > 2; slots = slots * 3 / 4) {
    setup->engine.layer_slots = slots;
    TRANCHE_ASSIGN_OR_RETURN(const Rehearsal plan, Rehearse(*setup, /*training=*/true, threads));
    if (plan.peak_bytes <= free) return absl::OkStatus();
  }
  setup->engine.layer_slots = 2;
  return absl::OkStatus();
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
