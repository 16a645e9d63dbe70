// Streams and events keep order, enqueueing never allocates, the arena is the only source of
// memory, and the plan stands in for the backend to the byte.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "count_allocations.h"
#include "tensor/cpu/stream.h"
#include "tensor/plan_backend.h"
#include "tensor_test_util.h"

namespace tranche {
namespace {

using cpu::CpuEvent;
using cpu::CpuStream;

TEST(CpuStream, RunsClosuresInOrderAndBlocksWhereItsRingIsFull) {
  CpuStream stream("test", StreamKind::kCompute, 1);
  int64_t next = 0, disorder = 0;
  const int64_t count = static_cast<int64_t>(20 * CpuStream::kCapacity);
  for (int64_t i = 0; i < count; ++i) {
    stream.Enqueue([&, i] {
      if (i % 1000 == 0) std::this_thread::yield();
      disorder += next++ != i;
    });
  }
  CpuEvent done;
  done.Record(stream);
  done.Synchronize();
  EXPECT_EQ(next, count);
  EXPECT_EQ(disorder, 0);
}

TEST(CpuStream, EndsOnlyWhenItsWorkIsDone) {
  std::atomic<int> ran{0};
  {
    CpuStream stream("test", StreamKind::kCompute, 1);
    for (int i = 0; i < 100; ++i) {
      stream.Enqueue([&] {
        std::this_thread::yield();
        ++ran;
      });
    }
  }
  EXPECT_EQ(ran, 100);
}

TEST(CpuStream, TakesWorkFromManyThreads) {
  CpuStream stream("test", StreamKind::kCompute, 1);
  int64_t sum = 0;  // only the worker writes it
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) stream.Enqueue([&] { ++sum; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  CpuEvent done;
  done.Record(stream);
  done.Synchronize();
  EXPECT_EQ(sum, 8000);
}

// What the kernel will let this thread run before another has its turn; 0 where it does not say.
uint64_t TimeSlice() {
  std::array<uint64_t, 6> attributes = {};  // sched_attr; the fourth word is its runtime
  return syscall(SYS_sched_getattr, 0, attributes.data(), sizeof attributes, 0) == 0 ? attributes[3]
                                                                                     : 0;
}

// Or what other ranks wait for would wait behind a computing thread on the same core.
TEST(CpuStream, AThreadThatMovesDataHasShorterTurnsThanOneThatComputes) {
  std::array<uint64_t, 2> slices = {};
  {
    CpuStream computes("computes", StreamKind::kCompute, 1),
        moves("moves", StreamKind::kTransfer, 1);
    computes.Enqueue([&] { slices[0] = TimeSlice(); });
    moves.Enqueue([&] { slices[1] = TimeSlice(); });
  }
  if (slices[0] == 0) GTEST_SKIP() << "before Linux 6.12 threads have no slices of their own";
  EXPECT_LT(slices[1], slices[0]);
}

TEST(CpuEvent, MakesAStreamWaitForWhatAnotherHadThen) {
  for (int round = 0; round < 200; ++round) {
    CpuStream first("first", StreamKind::kCompute, 1), second("second", StreamKind::kCompute, 1);
    std::atomic<bool> release{false};
    std::atomic<int> order{0};
    int first_at = -1, second_at = -1;
    CpuEvent event;
    first.Enqueue([&] {
      while (!release) std::this_thread::yield();
      first_at = order++;
    });
    event.Record(first);
    event.Wait(second);
    second.Enqueue([&] { second_at = order++; });
    release = true;
    CpuEvent done;
    done.Record(second);
    done.Synchronize();
    ASSERT_EQ(first_at, 0);
    ASSERT_EQ(second_at, 1);
  }
}

TEST(CpuEvent, WaitMeansTheRecordBeforeItEvenWhereTheEventMovesOn) {
  CpuStream first("first", StreamKind::kCompute, 1), second("second", StreamKind::kCompute, 1);
  std::atomic<bool> release{false}, reached{false};
  CpuEvent event;
  first.Enqueue([] {});
  event.Record(first);
  event.Wait(second);
  second.Enqueue([&] { reached = true; });
  first.Enqueue([&] {
    while (!release) std::this_thread::yield();
  });
  event.Record(first);  // later work does not hold the second stream back
  while (!reached) std::this_thread::yield();
  release = true;
  event.Synchronize();
}

TEST(CpuEvent, NeverRecordedIsNothingToWaitForAndOutlivesItsStream) {
  CpuEvent event;
  event.Synchronize();
  {
    CpuStream stream("gone", StreamKind::kCompute, 1);
    stream.Enqueue([] {});
    event.Record(stream);
  }
  event.Synchronize();
  CpuStream stream("other", StreamKind::kCompute, 1);
  event.Wait(stream);
}

// A little of everything that a step does, over and over.
void EnqueueStep(CpuDevice& device, Stream& stream, Stream& other, Event& event,
                 const std::vector<Tensor>& t) {
  Backend& backend = device.backend();
  MatMulArgs product;
  product.a = t[0], product.b = t[1], product.c = t[2];
  product.bias = t[3].SliceRows(0, 1);
  product.activation = Activation::kGelu;
  NormArgs norm;
  norm.weight = norm.bias = t[3].SliceRows(0, 1);
  backend.Fill(stream, t[2], 0);
  backend.MatMul(stream, product);
  backend.Norm(stream, norm, t[2], t[4], t[5]);
  backend.ActivationForward(stream, Activation::kSilu, t[4], t[4]);
  backend.Record(stream, event);
  backend.Wait(other, event);
  backend.Add(other, t[3], t[3]);
  backend.Record(other, event);
  backend.Wait(stream, event);
  backend.Synchronize(event);
}

TEST(CpuBackend, NothingAllocatesInAStep) {
  for (int threads : {1, 2}) {
    CpuDevice device(threads);
    const auto other = device.backend().CreateStream("other");
    const auto event = device.backend().CreateEvent();
    std::vector<Tensor> t;
    for (int i = 0; i < 5; ++i)
      t.push_back(device.Put(Matrix::Random(96, 96, DType::kFloat32, 1), DType::kFloat32));
    t.push_back(device.Make(96, 2, DType::kFloat32));
    EnqueueStep(device, device.stream(), *other, *event, t);
    device.Sync();
    const int64_t before = allocations;
    for (int i = 0; i < 50; ++i) EnqueueStep(device, device.stream(), *other, *event, t);
    device.Sync();
    EXPECT_EQ(allocations - before, 0) << threads << " threads";
  }
}

TEST(CpuBackend, CopiesToAndFromTheHostInStreamOrder) {
  CpuDevice device(1);
  std::vector<float> source(1000), result(1000);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i);
  const Tensor tensor = device.Make(10, 100, DType::kFloat32);
  device.backend().CopyToDevice(device.stream(), tensor, source.data());
  device.backend().Add(device.stream(), tensor, tensor);
  device.backend().CopyToHost(device.stream(), result.data(), tensor);
  device.Sync();
  for (size_t i = 0; i < source.size(); ++i) ASSERT_EQ(result[i], 2 * source[i]);
}

TEST(Arena, GivesAlignedDistinctZeroedMemoryByName) {
  Arena arena = Arena::OnHost(1 << 16).value();
  const Tensor a = arena.Allocate("a", MemoryKind::kWeights, DType::kFloat32, 3, 5);
  const Tensor b = arena.Allocate("b", MemoryKind::kGradients, DType::kBFloat16, 1, 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data) % Arena::kAlignment, 0u);
  EXPECT_EQ(b.data - a.data, Arena::kAlignment);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(a.Row<float>(0)[i], 0);
  EXPECT_EQ(arena.peak(), 2 * Arena::kAlignment);
  EXPECT_EQ(arena.entries()[1].name, "b");
  EXPECT_EQ(arena.BytesOf(MemoryKind::kWeights), Arena::kAlignment);
}

TEST(Arena, RewoundPhasesShareMemoryAndThePeakIsTheLargest) {
  Arena arena = Arena::Rehearsal();
  arena.Allocate("kept", MemoryKind::kWeights, DType::kFloat32, 1, 64);
  const int64_t mark = arena.Mark();
  arena.Allocate("phase a", MemoryKind::kActivations, DType::kFloat32, 1, 64 * 3);
  arena.Rewind(mark);
  arena.Allocate("phase b", MemoryKind::kWorkspace, DType::kFloat32, 1, 64 * 5);
  EXPECT_EQ(arena.peak(), 6 * 256);
  EXPECT_EQ(arena.BytesOf(MemoryKind::kWeights) + arena.BytesOf(MemoryKind::kActivations) +
                arena.BytesOf(MemoryKind::kWorkspace),
            arena.peak());
}

TEST(ArenaDeathTest, RefusesAllocationsAfterSealAndBeyondItsSize) {
  Arena sealed = Arena::Rehearsal();
  sealed.Seal();
  EXPECT_DEATH(sealed.Allocate("late", MemoryKind::kWorkspace, DType::kFloat32, 1, 1),
               "late after the first step");
  Arena small = Arena::OnHost(256).value();
  EXPECT_DEATH(small.Allocate("big", MemoryKind::kWorkspace, DType::kFloat32, 1, 65),
               "big beyond the plan");
}

TEST(Arena, SaysWhatTheMachineHasInsteadOfBeingKilled) {
  const auto arena = Arena::OnHost(int64_t{1} << 45);
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(arena.status().message().find("32 TiB"), absl::string_view::npos) << arena.status();
  EXPECT_NE(arena.status().message().find("available"), absl::string_view::npos) << arena.status();
}

TEST(Plan, ReservesTheSameWorkspaceAsTheBackendItStandsFor) {
  for (int threads : {0, 1, 3, 64}) {
    for (int64_t tokens : {1, 4096, 65536}) {
      WorkspaceLimits limits;
      limits.dtype = DType::kBFloat16;
      limits.max_tokens = tokens;
      limits.max_segments = 8;
      limits.heads = 32;
      limits.head_dim = 80;
      Arena real = Arena::Rehearsal(), planned = Arena::Rehearsal();
      CreateCpuBackend(threads)->ReserveWorkspace(limits, real);
      CreatePlanBackend(threads)->ReserveWorkspace(limits, planned);
      EXPECT_EQ(real.peak(), planned.peak());
      EXPECT_GT(real.BytesOf(MemoryKind::kWorkspace), 0);
    }
  }
}

TEST(Stream, TransfersRunBeforeComputingWhereTheSystemAllowsIt) {
  const auto backend = CreateCpuBackend(1);
  const int usual = ::getpriority(PRIO_PROCESS, 0);
  const auto priority_on = [&](StreamKind kind) {
    const auto stream = backend->CreateStream("asked", kind);
    int priority = 99;
    backend->Call(*stream, [&] { priority = ::getpriority(PRIO_PROCESS, 0); });
    backend->Synchronize(*stream);
    return priority;
  };
  // A thread that tries for itself whether it may.
  bool allowed = false;
  std::thread([&] { allowed = ::setpriority(PRIO_PROCESS, 0, -10) == 0; }).join();
  EXPECT_EQ(priority_on(StreamKind::kTransfer), allowed ? -10 : usual);
  EXPECT_EQ(priority_on(StreamKind::kCompute), usual);
}

TEST(Plan, CountsWithoutTouchingMemory) {
  const auto plan = CreatePlanBackend(1);
  const auto stream = plan->CreateStream("plan");
  Arena arena = Arena::Rehearsal();
  const auto tensor = [&](int64_t rows, int64_t cols) {
    return arena.Allocate("t", MemoryKind::kActivations, DType::kBFloat16, rows, cols);
  };
  MatMulArgs product;
  product.a = tensor(300, 100), product.b = tensor(300, 7), product.c = tensor(100, 7);
  product.transpose_a = true;
  plan->MatMul(*stream, product);
  plan->CopyToDevice(*stream, tensor(10, 10), nullptr);
  plan->CopyToHost(*stream, nullptr, tensor(10, 20));
  AttentionArgs attention;
  attention.heads = 4, attention.kv_heads = 2, attention.head_dim = 8, attention.segments = 1,
  attention.pairs = 55;
  attention.query_offsets = attention.key_offsets =
      arena.Allocate("o", MemoryKind::kActivations, DType::kInt32, 1, 2);
  const Tensor log_sum_exp = arena.Allocate("l", MemoryKind::kActivations, DType::kFloat32, 10, 4);
  plan->Attention(*stream, attention, tensor(10, 32), tensor(10, 16), tensor(10, 16),
                  tensor(10, 32), log_sum_exp);
  EXPECT_EQ(plan->counts().matmul_flops, 2 * 300 * 100 * 7);
  EXPECT_EQ(plan->counts().attention_flops, 4 * 55 * 4 * 8);
  EXPECT_EQ(plan->counts().host_to_device_bytes, 200);
  EXPECT_EQ(plan->counts().device_to_host_bytes, 400);
  EXPECT_EQ(plan->counts().operations, 4);
  plan->ResetCounts();
  EXPECT_EQ(plan->counts().operations, 0);
}

// The same fault is found by both.
TEST(CheckDeathTest, ShapesTypesAndAliasingAreChecked) {
  const auto plan = CreatePlanBackend(1);
  const auto stream = plan->CreateStream("plan");
  Arena arena = Arena::Rehearsal();
  const Tensor x = arena.Allocate("x", MemoryKind::kActivations, DType::kFloat32, 4, 4);
  const Tensor narrow = arena.Allocate("b", MemoryKind::kActivations, DType::kBFloat16, 4, 4);
  MatMulArgs product;
  product.a = x, product.b = x, product.c = x;
  EXPECT_DEATH(plan->MatMul(*stream, product), "lies over input");
  product.b = narrow;
  EXPECT_DEATH(plan->MatMul(*stream, product), "should be fp32");
  EXPECT_DEATH(plan->Add(*stream, x, x.SliceRows(0, 3)), "should be");
  EXPECT_DEATH(
      plan->ActivationForward(*stream, Activation::kGelu, x.SliceRows(0, 3), x.SliceRows(1, 3)),
      "lies partly over");
  EXPECT_DEATH(plan->CopyToHost(*stream, nullptr, x.SliceCols(0, 2)), "contiguous");
  // Columns side by side in one matrix do not touch.
  plan->ActivationForward(*stream, Activation::kGelu, x.SliceCols(0, 2), x.SliceCols(2, 2));
}

}  // namespace
}  // namespace tranche
