// The clocks of a plan's streams: how long what overlaps takes.
#include <gtest/gtest.h>

#include "tensor/arena.h"
#include "tensor/plan_backend.h"

namespace tranche {
namespace {

TEST(Plan, TransfersTakeFromWhatComputesBesideThemAndFromNothingThatWaits) {
  const auto plan = CreatePlanBackend(1);
  plan->SetRates({.matmul_flops = 1e30, .memory_bytes = 400});  // a copy of `x` takes a second
  const auto compute = plan->CreateStream("compute");
  const auto transfers = plan->CreateStream("transfers", StreamKind::kTransfer);
  const auto event = plan->CreateEvent();
  Arena arena = Arena::Rehearsal();
  const Tensor x = arena.Allocate("x", MemoryKind::kActivations, DType::kFloat32, 1, 50);
  const Tensor y = arena.Allocate("y", MemoryKind::kActivations, DType::kFloat32, 1, 50);
  plan->Copy(*compute, y, x);
  EXPECT_DOUBLE_EQ(plan->Seconds(*compute), 1);

  plan->Spend(*transfers, 4, 0.5);
  EXPECT_DOUBLE_EQ(plan->Seconds(*transfers), 4);
  plan->Copy(*compute, y, x);
  plan->Copy(*compute, y, x);
  EXPECT_DOUBLE_EQ(plan->Seconds(*compute), 3.5) << "0.5 longer, once";

  // Computing that waits for the transfer loses nothing to it.
  plan->Spend(*transfers, 4, 0.5);
  plan->Record(*transfers, *event);
  plan->Wait(*compute, *event);
  EXPECT_DOUBLE_EQ(plan->Seconds(*compute), 8);
  plan->Copy(*compute, y, x);
  EXPECT_DOUBLE_EQ(plan->Seconds(*compute), 9);

  // In the computing stream itself its seconds are all that it takes.
  plan->Spend(*compute, 1, 0.5);
  plan->Copy(*compute, y, x);
  EXPECT_DOUBLE_EQ(plan->Seconds(*compute), 11);
}

}  // namespace
}  // namespace tranche
