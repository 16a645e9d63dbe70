// The one source of device memory. Everything is allocated by name before the first step; after
// that the arena is sealed and a request is a programmer's error. The same calls on a rehearsal
// arena (no memory behind it) give the same offsets, which is how `plan` knows the bytes of a run.
//
// Allocation is a bump of 256-byte lines. Buffers that are never alive at the same time share
// memory by Mark and Rewind:
//
//   const int64_t mark = arena.Mark();
//   ... allocate what phase A needs ...
//   arena.Rewind(mark);
//   ... allocate what phase B needs: it lies over phase A's ...
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tensor/tensor.h"

namespace tranche {

enum class MemoryKind : uint8_t { kWeights, kGradients, kOptimizer, kActivations, kWorkspace };
absl::string_view MemoryKindName(MemoryKind kind);

// What the machine can still give without swapping, by its own estimate (free memory and what it
// can reclaim), and at most what a container may have at all; INT64_MAX where it does not say.
int64_t AvailableHostMemory();

class Arena {
 public:
  static constexpr int64_t kAlignment = 256;

  struct Entry {
    std::string name;
    MemoryKind kind;
    int64_t offset;
    int64_t bytes;  // rounded up to kAlignment
  };

  // No memory: tensors get addresses that nobody may touch.
  static Arena Rehearsal();
  // `capacity` bytes of host memory, mapped, backed by huge pages where the system gives them, and
  // touched, so that the first step does not pay for page faults. ResourceExhausted, with the
  // amount available, where the machine has not enough.
  static absl::StatusOr<Arena> OnHost(int64_t capacity);

  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&&) = delete;
  ~Arena();

  // Contents are undefined on a fresh rewound region and zero otherwise.
  Tensor Allocate(absl::string_view name, MemoryKind kind, DType dtype, int64_t rows, int64_t cols);

  int64_t Mark() const { return used_; }
  void Rewind(int64_t mark);
  void Seal() { sealed_ = true; }

  int64_t peak() const { return peak_; }
  int64_t capacity() const { return capacity_; }
  bool rehearsal() const { return base_ == nullptr; }
  const std::vector<Entry>& entries() const { return entries_; }
  // Bytes of the peak by kind: each byte of [0, peak) counts for the first entry that covers it.
  int64_t BytesOf(MemoryKind kind) const;

 private:
  Arena() = default;
  std::byte* base_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
  int64_t peak_ = 0;
  bool sealed_ = false;
  std::vector<Entry> entries_;
};

}  // namespace tranche
