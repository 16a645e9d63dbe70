#include "trainer/matmul_peak.h"

#include <algorithm>
#include <chrono>

#include "base/status.h"
#include "tensor/backend.h"
#include "tensor/plan_backend.h"

namespace tranche {
namespace {

constexpr int64_t kSize = 1024;

MatMulArgs Allocate(Backend& backend, DType dtype, Arena& arena) {
  const auto square = [&](const char* name) {
    return arena.Allocate(name, MemoryKind::kWorkspace, dtype, kSize, kSize);
  };
  MatMulArgs args{.a = square("a"), .b = square("b"), .c = square("c"), .transpose_b = true};
  backend.ReserveWorkspace(
      {.dtype = dtype, .max_tokens = kSize, .max_segments = 1, .heads = 1, .head_dim = 64}, arena);
  return args;
}

}  // namespace

absl::StatusOr<double> MeasureMatMulPeak(DType dtype, int threads) {
  Arena rehearsal = Arena::Rehearsal();
  Allocate(*CreatePlanBackend(threads), dtype, rehearsal);
  TRANCHE_ASSIGN_OR_RETURN(Arena arena, Arena::OnHost(rehearsal.peak()));
  const std::unique_ptr<Backend> backend = CreateCpuBackend(threads);
  const std::unique_ptr<Stream> stream = backend->CreateStream("peak");
  const MatMulArgs args = Allocate(*backend, dtype, arena);
  backend->Fill(*stream, args.a, 0.5f);
  backend->Fill(*stream, args.b, 0.25f);
  backend->MatMul(*stream, args);
  backend->Synchronize(*stream);

  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const Clock::time_point start = Clock::now();
  double best = 0;
  do {
    const Clock::time_point begin = Clock::now();
    backend->MatMul(*stream, args);
    backend->Synchronize(*stream);
    best = std::max(best, 2.0 * kSize * kSize * kSize / seconds_since(begin));
  } while (seconds_since(start) < 0.3);
  return best;
}

}  // namespace tranche
