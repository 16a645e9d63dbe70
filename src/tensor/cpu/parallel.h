// Loops over chunks in an OpenMP team. Chunks are cut by `grain` alone, so what a chunk computes
// never depends on the number of threads, and are handed out dynamically, so a slow core holds
// nobody up.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tranche::cpu {

// Elements that are worth a task of their own in loops that are bound by memory.
inline constexpr int64_t kElementGrain = 16384;

// Rows of `cols` elements that make a task.
inline int64_t RowGrain(int64_t cols) {
  return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, cols));
}

// Calls body(begin, end) for [0, count) in chunks of `grain`.
template <typename Body>
void ParallelFor(int64_t count, int64_t grain, int threads, const Body& body) {
  const int64_t chunks = (count + grain - 1) / grain;
  if (threads <= 1 || chunks <= 1) {
    for (int64_t c = 0; c < chunks; ++c) body(c * grain, std::min(count, (c + 1) * grain));
    return;
  }
  const int team = static_cast<int>(std::min<int64_t>(threads, chunks));
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
  for (int64_t c = 0; c < chunks; ++c) body(c * grain, std::min(count, (c + 1) * grain));
}

}  // namespace tranche::cpu
