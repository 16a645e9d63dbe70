// The definition of dropout masks, for every backend: an element's random number is a word of a
// Philox block whose key is that of (seed, step) and whose counter is (token key, element block,
// site). It depends on nothing else, so a replay in backward, in recompute, on another rank or with
// other threads draws the same mask.
//
// Blocks are numbered so that vector code needs no shuffles: 64 elements in a row take 16 blocks;
// block b of them gives the elements b, b + 16, b + 32 and b + 48.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/rng.h"

namespace tranche {

// Attention probabilities are numbered head · 2^22 + index of the key in its segment.
inline constexpr int kDropoutKeyIndexBits = 22;
inline constexpr int64_t kDropoutMaxElements = int64_t{1} << 34;

constexpr uint64_t AttentionDropoutElement(int64_t head, int64_t key_index) {
  return (static_cast<uint64_t>(head) << kDropoutKeyIndexBits) | static_cast<uint64_t>(key_index);
}

// 32 random bits of an element (a column, or AttentionDropoutElement) in [0, kDropoutMaxElements).
constexpr uint32_t DropoutBits(uint64_t key, uint32_t site, uint64_t token_key, uint64_t element) {
  const uint64_t block = element / 64 * 16 + element % 16;
  return Philox(key, token_key, (uint64_t{site} << 32) | block)[element / 16 % 4];
}

// An element is kept where bits >> 8 >= this: UniformFloat(bits) >= probability, in integers.
inline uint32_t DropoutThreshold(float probability) {
  return static_cast<uint32_t>(std::ceil(static_cast<double>(probability) * 0x1p24));
}

}  // namespace tranche
