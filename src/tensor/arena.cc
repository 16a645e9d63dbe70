#include "tensor/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/units.h"

namespace tranche {
namespace {

// Rehearsal tensors start here: not null, so that defined() holds, and never mapped.
constexpr uintptr_t kRehearsalBase = 1 << 12;

// The number behind `format` in a line of a file of the system; the largest where it is not there.
int64_t ReadNumber(const char* path, const char* format) {
  std::FILE* file = std::fopen(path, "r");
  if (file == nullptr) return INT64_MAX;
  int64_t number = INT64_MAX;
  char line[256];
  while (std::fgets(line, sizeof(line), file) != nullptr &&
         std::sscanf(line, format, &number) != 1) {
  }
  std::fclose(file);
  return number;
}

}  // namespace

int64_t AvailableHostMemory() {
  const int64_t kibibytes = ReadNumber("/proc/meminfo", "MemAvailable: %" SCNd64 " kB");
  const int64_t container = ReadNumber("/sys/fs/cgroup/memory.max", "%" SCNd64);
  return std::min(kibibytes == INT64_MAX ? INT64_MAX : kibibytes * 1024, container);
}

namespace {

absl::Status NotEnough(int64_t capacity, absl::string_view why) {
  const int64_t available = AvailableHostMemory();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the run needs ", FormatBytes(capacity), " of memory and the machine has not got it: ", why,
      available == INT64_MAX ? "" : absl::StrCat("; available are ", FormatBytes(available))));
}

}  // namespace

absl::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kWeights:
      return "weights";
    case MemoryKind::kGradients:
      return "gradients";
    case MemoryKind::kOptimizer:
      return "optimizer";
    case MemoryKind::kActivations:
      return "activations";
    case MemoryKind::kWorkspace:
      return "workspace";
  }
  return "?";
}

Arena Arena::Rehearsal() {
  Arena arena;
  arena.capacity_ = INT64_MAX;
  return arena;
}

absl::StatusOr<Arena> Arena::OnHost(int64_t capacity) {
  // The system hands out more than it has and kills whoever touches it: ask first.
  if (capacity > AvailableHostMemory()) return NotEnough(capacity, "too little is free");
  const size_t size = static_cast<size_t>(std::max<int64_t>(capacity, kAlignment));
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return NotEnough(capacity, std::strerror(errno));
  ::madvise(memory, size, MADV_HUGEPAGE);
  if (::madvise(memory, size, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    const int error = errno;
    ::munmap(memory, size);
    return NotEnough(capacity, std::strerror(error));
  }
  Arena arena;
  arena.base_ = static_cast<std::byte*>(memory);
  arena.capacity_ = capacity;
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      capacity_(other.capacity_),
      used_(other.used_),
      peak_(other.peak_),
      sealed_(other.sealed_),
      entries_(std::move(other.entries_)) {}

Arena::~Arena() {
  if (base_ != nullptr)
    ::munmap(base_, static_cast<size_t>(std::max<int64_t>(capacity_, kAlignment)));
}

Tensor Arena::Allocate(absl::string_view name, MemoryKind kind, DType dtype, int64_t rows,
                       int64_t cols) {
  TRANCHE_CHECK(!sealed_) << "allocation of " << std::string(name) << " after the first step";
  TRANCHE_CHECK(rows >= 0 && cols >= 0) << std::string(name);
  const int64_t bytes = (rows * cols * SizeOf(dtype) + kAlignment - 1) / kAlignment * kAlignment;
  TRANCHE_CHECK_LE(used_ + bytes, capacity_)
      << "allocation of " << std::string(name) << " beyond the plan";
  entries_.push_back({std::string(name), kind, used_, bytes});
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that nothing reads
  std::byte* base = base_ != nullptr ? base_ : reinterpret_cast<std::byte*>(kRehearsalBase);
  std::byte* address = base + used_;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return MakeTensor(address, dtype, rows, cols);
}

void Arena::Rewind(int64_t mark) {
  TRANCHE_CHECK(mark >= 0 && mark <= used_);
  used_ = mark;
}

int64_t Arena::BytesOf(MemoryKind kind) const {
  // A rewound region belongs to whoever reached furthest over it, and where two reach the same
  // byte, to the first.
  int64_t covered = 0, sum = 0;
  std::vector<const Entry*> ordered;
  for (const Entry& entry : entries_) ordered.push_back(&entry);
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const Entry* a, const Entry* b) { return a->offset < b->offset; });
  for (const Entry* entry : ordered) {
    const int64_t end = entry->offset + entry->bytes;
    if (end <= covered) continue;
    if (entry->kind == kind) sum += end - std::max(covered, entry->offset);
    covered = end;
  }
  return sum;
}

}  // namespace tranche
