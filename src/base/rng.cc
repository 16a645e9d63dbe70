#include "base/rng.h"

#include <bit>
#include <cmath>
#include <numbers>

namespace tranche {

uint64_t DeriveKey(uint64_t seed, uint64_t purpose) {
  const auto block = Philox(seed, purpose, 0x7472616e63686531u);  // a counter no sequence uses
  return (uint64_t{block[1]} << 32) | block[0];
}

uint32_t RandomSequence::Next32() {
  if (used_ == 4) {
    block_ = Philox(key_, counter_++, stream_);
    used_ = 0;
  }
  return block_[static_cast<size_t>(used_++)];
}

uint64_t RandomSequence::Next64() {
  const uint64_t low = Next32();
  return low | (uint64_t{Next32()} << 32);
}

uint64_t RandomSequence::Below(uint64_t bound) {
  const uint64_t limit = -bound % bound;  // 2^64 mod bound: draws below it would be biased
  for (;;) {
    const uint64_t draw = Next64();
    if (draw >= limit) return draw % bound;
  }
}

double RandomSequence::Uniform() { return static_cast<double>(Next64() >> 11) * 0x1p-53; }

double RandomSequence::Normal() {
  const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

uint64_t PermutedIndex(uint64_t index, uint64_t size, uint64_t key) {
  if (size <= 1) return 0;
  // Balanced Feistel over the next even number of bits; values outside [0, size) walk on along
  // their cycle.
  const int half = (std::bit_width(size - 1) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed =
          Philox(key, right, round)[0] | (uint64_t{Philox(key, right, round)[1]} << 32);
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    index = (left << half) | right;
  } while (index >= size);
  return index;
}

}  // namespace tranche
