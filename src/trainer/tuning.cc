#include "trainer/tuning.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "trainer/matmul_peak.h"
#include "zero/group_layout.h"

namespace tranche {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSmallestBucket = int64_t{64} << 10;
constexpr int64_t kLargestMeasured = int64_t{16} << 20;  // whole array of a collective
constexpr int kTries = 5;
constexpr double kLongSeconds = 0.05;
// Of the matrix-product peak, what a step's products of unequal shapes reach.
constexpr double kProductEfficiency = 0.8;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// All ranks' numbers.
absl::StatusOr<std::vector<double>> OfAll(World& world, absl::string_view name, double mine) {
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           world.Exchange(name, absl::StrFormat("%.9g", mine)));
  std::vector<double> values(texts.size());
  for (size_t r = 0; r < texts.size(); ++r) {
    if (!absl::SimpleAtod(texts[r], &values[r])) {
      return absl::InternalError("a rank's time: " + texts[r]);
    }
  }
  return values;
}

absl::StatusOr<double> Slowest(World& world, absl::string_view name, double mine) {
  TRANCHE_ASSIGN_OR_RETURN(const std::vector<double> all, OfAll(world, name, mine));
  return *std::max_element(all.begin(), all.end());
}

// The array that collectives are measured on, and the part of it that a rank owns.
struct MeasuredArray {
  Arena arena;
  Tensor whole;

  static absl::StatusOr<MeasuredArray> Create(const RunSetup& setup, int p) {
    const int64_t bytes = LargestMeasuredBytes(setup);
    TRANCHE_ASSIGN_OR_RETURN(Arena arena, Arena::OnHost(bytes + Arena::kAlignment));
    const int64_t elements = bytes / 4 / (p * kLineElements) * (p * kLineElements);
    const Tensor whole =
        arena.Allocate("measured", MemoryKind::kWorkspace, DType::kFloat32, 1, elements);
    return MeasuredArray{std::move(arena), whole};
  }
  // On `part` elements a rank.
  void Enqueue(Collective kind, int64_t part, Comm& comm, Stream& stream) const {
    const Tensor all = whole.SliceCols(0, part * comm.size());
    const Tensor mine = all.SliceCols(comm.rank() * part, part);
    if (kind == Collective::kAllGather) {
      comm.AllGather(stream, all, mine);
    } else {
      comm.ReduceScatter(stream, mine, all, /*accumulate=*/false);
    }
  }
};

// Seconds of computing that a byte of each collective costs: products alone, and beside as many
// collectives as take half their time.
absl::Status MeasureCoreCosts(const RunSetup& setup, World& world, Comm& comm, Backend& backend,
                              Products& products, double product_flops, CollectiveCosts* costs) {
  constexpr double kSeconds = 0.04;
  constexpr int kPairs = 3;
  const int count = static_cast<int>(std::ceil(kSeconds * product_flops / Products::Flops()));
  const double half = count * Products::Flops() / product_flops / 2;
  const std::unique_ptr<Stream> stream = backend.CreateStream("tuning", StreamKind::kTransfer);
  const int p = comm.size();
  TRANCHE_ASSIGN_OR_RETURN(const MeasuredArray array, MeasuredArray::Create(setup, p));
  for (const Collective kind : kMeasuredCollectives) {
    CollectiveCost& cost = (*costs)[static_cast<size_t>(kind)];
    const double room = (half - cost.alpha) / std::max(cost.beta, 1e-15) / (4 * (p - 1));
    const int64_t part = std::min<int64_t>(array.whole.cols / p, static_cast<int64_t>(room)) /
                         kLineElements * kLineElements;
    const int64_t bytes = (p - 1) * part * 4;
    const int repeats = part > 0 ? static_cast<int>(half / cost.Seconds(bytes)) : 0;
    double alone = std::numeric_limits<double>::infinity(), beside = alone;
    for (int i = 0; i < kPairs && repeats > 0; ++i) {
      for (double* best : {&alone, &beside}) {
        comm.Barrier(*stream);
        backend.Synchronize(*stream);
        for (int r = 0; r < (best == &beside ? repeats : 0); ++r) {
          array.Enqueue(kind, part, comm, *stream);
        }
        *best = std::min(*best, products.Seconds(count));
        backend.Synchronize(*stream);
        TRANCHE_RETURN_IF_ERROR(comm.status());
      }
    }
    const double lost = repeats > 0 ? std::max(0.0, beside - alone) : 0;
    TRANCHE_ASSIGN_OR_RETURN(
        const std::vector<double> all,
        OfAll(world, absl::StrCat("tuning.core.", CollectiveName(kind)), lost));
    if (repeats == 0) continue;
    const double mean =
        std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
    cost.core = std::min(cost.beta, mean / (static_cast<double>(repeats) * bytes));
  }
  return absl::OkStatus();
}

// Of fp32 gradients.
int64_t LargestGroupBytes(const RunSetup& setup) {
  int64_t largest = 0;
  for (const GroupLayout& group :
       BuildLayout(setup.specs, setup.ranks / setup.replicas, setup.replicas).groups) {
    largest = std::max(largest, group.elements * SizeOf(DType::kFloat32));
  }
  return largest;
}

}  // namespace

int64_t LargestMeasuredBytes(const RunSetup& setup) {
  return std::clamp(LargestGroupBytes(setup), kSmallestBucket, kLargestMeasured);
}

absl::StatusOr<std::vector<CollectiveTime>> MeasureCollectives(const RunSetup& setup, World& world,
                                                               Comm& comm, Backend& backend) {
  const int p = comm.size();
  const std::unique_ptr<Stream> stream = backend.CreateStream("tuning", StreamKind::kTransfer);
  TRANCHE_ASSIGN_OR_RETURN(const MeasuredArray array, MeasuredArray::Create(setup, p));
  const int64_t most = array.whole.cols;
  std::vector<CollectiveTime> times;
  for (const Collective kind : kMeasuredCollectives) {
    for (int64_t n = p * kLineElements; n <= most; n = n < most ? std::min(most, 4 * n) : n + 1) {
      const int64_t part = n / p / kLineElements * kLineElements;
      double best = std::numeric_limits<double>::infinity();
      for (int i = 0; i < kTries; ++i) {
        comm.Barrier(*stream);
        backend.Synchronize(*stream);
        const Clock::time_point begin = Clock::now();
        array.Enqueue(kind, part, comm, *stream);
        backend.Synchronize(*stream);
        const double seconds = SecondsSince(begin);
        TRANCHE_RETURN_IF_ERROR(comm.status());
        best = std::min(best, seconds);
      }
      TRANCHE_ASSIGN_OR_RETURN(
          const double slowest,
          Slowest(world, absl::StrCat("tuning.", CollectiveName(kind), ".", n), best));
      times.push_back({kind, (p - 1) * part * 4, slowest});
      if (slowest > kLongSeconds) break;
    }
  }
  return times;
}

CollectiveCosts FitCosts(const std::vector<CollectiveTime>& times) {
  CollectiveCosts costs;
  for (int kind = 0; kind < kNumCollectives; ++kind) {
    // Least squares of (alpha + beta x - t) / sqrt(t): small sizes tell the latency, and large ones
    // are not lost for it where a link lets the first bytes pass faster.
    double w = 0, wx = 0, wxx = 0, wt = 0, wxt = 0;
    for (const CollectiveTime& time : times) {
      if (static_cast<int>(time.kind) != kind) continue;
      const double x = static_cast<double>(time.bytes), weight = 1 / time.seconds;
      w += weight, wx += weight * x, wxx += weight * x * x;
      wt += weight * time.seconds, wxt += weight * x * time.seconds;
    }
    const double determinant = w * wxx - wx * wx;
    if (determinant <= 0) continue;
    CollectiveCost& cost = costs[static_cast<size_t>(kind)];
    cost.alpha = (wt * wxx - wxt * wx) / determinant;
    cost.beta = (w * wxt - wx * wt) / determinant;
    if (cost.alpha < 0) cost = {0, wxt / wxx};
    if (cost.beta < 0) cost = {wt / w, 0};
  }
  return costs;
}

absl::StatusOr<MachineRates> MeasureRates(const RunSetup& setup, World& world, Comm& comm,
                                          Backend& backend, int threads,
                                          const CollectiveCosts& costs) {
  MachineRates rates;
  rates.collectives = costs;
  TRANCHE_ASSIGN_OR_RETURN(Products products, Products::Create(setup.engine.dtype, threads));
  TRANCHE_ASSIGN_OR_RETURN(const double per_flop,
                           Slowest(world, "tuning.products", 1 / products.Peak()));
  rates.device.matmul_flops = kProductEfficiency / per_flop;
  TRANCHE_RETURN_IF_ERROR(
      MeasureCoreCosts(setup, world, comm, backend, products, 1 / per_flop, &rates.collectives));

  const std::unique_ptr<Stream> stream = backend.CreateStream("tuning");
  constexpr int64_t kElements = int64_t{8} << 20;
  TRANCHE_ASSIGN_OR_RETURN(Arena arena, Arena::OnHost(2 * 4 * kElements));
  const auto allocate = [&](const char* name) {
    return arena.Allocate(name, MemoryKind::kWorkspace, DType::kFloat32, 1, kElements);
  };
  const Tensor from = allocate("from"), to = allocate("to");
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    const Clock::time_point begin = Clock::now();
    backend.Copy(*stream, to, from);
    backend.Synchronize(*stream);
    best = std::min(best, SecondsSince(begin));
  }
  TRANCHE_ASSIGN_OR_RETURN(const double slowest, Slowest(world, "tuning.memory", best));
  rates.device.memory_bytes = 2 * 4 * static_cast<double>(kElements) / slowest;
  return rates;
}

absl::StatusOr<std::vector<BucketChoice>> PredictBuckets(const RunSetup& setup, int threads,
                                                         const MachineRates& rates) {
  const int64_t largest = LargestGroupBytes(setup);
  // A variant of the run of which only the bucket changes.
  TRANCHE_ASSIGN_OR_RETURN(RunSetup variant, SetUpVariant(setup, setup.recipe.training));
  std::vector<BucketChoice> choices;
  for (int64_t bytes = kSmallestBucket;; bytes *= 2) {
    variant.engine.bucket_bytes = bytes;
    TRANCHE_ASSIGN_OR_RETURN(const Rehearsal rehearsal, Rehearse(variant, true, threads, rates));
    int64_t collectives = 0;
    for (const int64_t calls : rehearsal.comm.calls) collectives += calls;
    choices.push_back({bytes, rehearsal.step_seconds, collectives});
    if (bytes >= largest) return choices;
  }
}

const BucketChoice& BestBucket(const std::vector<BucketChoice>& choices) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const BucketChoice& choice : choices) shortest = std::min(shortest, choice.step_seconds);
  const auto best = std::find_if(choices.rbegin(), choices.rend(), [&](const BucketChoice& choice) {
    return choice.step_seconds <= 1.01 * shortest;
  });
  return *best;
}

}  // namespace tranche
