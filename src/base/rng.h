// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). A number is a function of (key, counter) alone, so
// results do not depend on threads, ranks, restarts or call order.
#pragma once

#include <array>
#include <cstdint>

namespace tranche {

// 128 random bits for a 64-bit key and a 128-bit counter.
constexpr std::array<uint32_t, 4> Philox(uint64_t key, uint64_t counter_low,
                                         uint64_t counter_high) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0,
                   n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1), c3 = static_cast<uint32_t>(p0), c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// Derives a key for a named purpose from a seed, so that e.g. masking and shuffling draw from
// unrelated sequences.
uint64_t DeriveKey(uint64_t seed, uint64_t purpose);

// Uniform in [0, 1) from 32 bits (24 of them are used: exact in float).
constexpr float UniformFloat(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

// A sequence under one key, for host code that draws many numbers in a fixed order.
class RandomSequence {
 public:
  explicit RandomSequence(uint64_t key, uint64_t stream = 0) : key_(key), stream_(stream) {}
  uint32_t Next32();
  uint64_t Next64();
  uint64_t Below(uint64_t bound);  // uniform in [0, bound), bound >= 1, without modulo bias
  double Uniform();                // [0, 1), 53 bits
  double Normal();                 // standard normal (Box-Muller)

 private:
  uint64_t key_, stream_, counter_ = 0;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;
};

// A pseudo-random permutation of [0, size) by a Feistel network with cycle walking: element i is
// computed directly, in O(1) memory. This is how shuffled order stays a function of (seed, index).
// size >= 1, index in [0, size).
uint64_t PermutedIndex(uint64_t index, uint64_t size, uint64_t key);

}  // namespace tranche
