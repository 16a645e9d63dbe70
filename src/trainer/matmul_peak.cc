#include "trainer/matmul_peak.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/status.h"
#include "tensor/plan_backend.h"

namespace tranche {
namespace {

using Clock = std::chrono::steady_clock;

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

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Products::Products(std::unique_ptr<Backend> backend, Arena arena)
    : backend_(std::move(backend)), arena_(std::move(arena)) {}

absl::StatusOr<Products> Products::Create(DType dtype, int threads) {
  Arena rehearsal = Arena::Rehearsal();
  Allocate(*CreatePlanBackend(threads), dtype, rehearsal);
  TRANCHE_ASSIGN_OR_RETURN(Arena arena, Arena::OnHost(rehearsal.peak()));
  Products products(CreateCpuBackend(threads), std::move(arena));
  products.stream_ = products.backend_->CreateStream("products");
  products.args_ = Allocate(*products.backend_, dtype, products.arena_);
  products.backend_->Fill(*products.stream_, products.args_.a, 0.5f);
  products.backend_->Fill(*products.stream_, products.args_.b, 0.25f);
  products.Seconds(1);
  return products;
}

double Products::Flops() { return 2.0 * kSize * kSize * kSize; }

double Products::Seconds(int count) {
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < count; ++i) backend_->MatMul(*stream_, args_);
  backend_->Synchronize(*stream_);
  return SecondsSince(begin);
}

double Products::Peak() {
  const Clock::time_point start = Clock::now();
  double best = 0;
  do {
    best = std::max(best, Flops() / Seconds(1));
  } while (SecondsSince(start) < 0.3);
  return best;
}

absl::StatusOr<double> MeasureMatMulPeak(DType dtype, int threads) {
  TRANCHE_ASSIGN_OR_RETURN(Products products, Products::Create(dtype, threads));
  return products.Peak();
}

}  // namespace tranche
