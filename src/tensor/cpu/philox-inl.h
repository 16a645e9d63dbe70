// Philox4x32-10 (base/rng.h) on vectors: one counter per lane. See tensor/dropout_mask.h for what
// the counters are.
#if defined(TRANCHE_TENSOR_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRANCHE_TENSOR_CPU_PHILOX_INL_H_
#undef TRANCHE_TENSOR_CPU_PHILOX_INL_H_
#else
#define TRANCHE_TENSOR_CPU_PHILOX_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tranche::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using WordTag = hn::ScalableTag<uint32_t>;
using WordVec = hn::Vec<WordTag>;

// High and low halves of the 64-bit products a·b per 32-bit lane.
HWY_INLINE void MulWide(WordVec a, WordVec b, WordVec& high, WordVec& low) {
#if HWY_TARGET == HWY_SCALAR  // has no operation across lanes
  const uint64_t product = uint64_t{a.raw} * b.raw;
  high.raw = static_cast<uint32_t>(product >> 32);
  low.raw = static_cast<uint32_t>(product);
#else
  const WordTag d;
  const hn::Repartition<uint64_t, WordTag> d64;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a))), b);
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
#endif
}

// c0..c3: the counter, low word first, replaced by the four words of the block.
HWY_INLINE void PhiloxRounds(uint64_t key, WordVec& c0, WordVec& c1, WordVec& c2, WordVec& c3) {
  const WordTag d;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  const auto m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    WordVec high0, low0, high1, low1;
    MulWide(c0, m0, high0, low0);
    MulWide(c2, m1, high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, k0));
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, k1));
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// Lanes that are kept get `kept`, the others 0.
template <class D>
HWY_INLINE hn::Vec<D> DropoutFactor(D d, WordVec bits, uint32_t threshold, float kept) {
  const hn::RebindToSigned<D> di;
  const auto uniform = hn::BitCast(di, hn::ShiftRight<8>(bits));
  const auto dropped = hn::Lt(uniform, hn::Set(di, static_cast<int32_t>(threshold)));
  return hn::IfThenZeroElse(hn::RebindMask(d, dropped), hn::Set(d, kept));
}

}  // namespace HWY_NAMESPACE
}  // namespace tranche::cpu
HWY_AFTER_NAMESPACE();

#endif
