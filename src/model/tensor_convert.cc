#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "model/safetensors.h"
#include "tensor/dtype.h"

namespace tranche {
namespace {

constexpr int64_t kBlock = 1024;

// Branch-free so that compilers vectorise it. Shifting a half's bits into place gives 2^-112 of its
// value, subnormals included.
float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u;
  return std::bit_cast<float>(sign | (magnitude >= 0x0f800000u ? special : finite));
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x1ffu);  // a NaN stays one
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // 65520 and above round to infinity
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14 the half is subnormal: adding 0.5 puts its last bit at the float's last bit,
    // rounding on the way.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

template <typename From, typename To, typename Convert>
void ConvertBlock(const void* from, void* to, int64_t count, Convert convert) {
  From in[kBlock];
  To out[kBlock];
  std::memcpy(in, from, count * sizeof(From));
  for (int64_t i = 0; i < count; ++i) out[i] = convert(in[i]);
  std::memcpy(to, out, count * sizeof(To));
}

void ToFloat(const void* from, TensorType type, float* to, int64_t count) {
  switch (type) {
    case TensorType::kF64:
      return ConvertBlock<double, float>(from, to, count,
                                         [](double x) { return static_cast<float>(x); });
    case TensorType::kBF16:
      return ConvertBlock<uint16_t, float>(
          from, to, count, [](uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); });
    case TensorType::kF16:
      return ConvertBlock<uint16_t, float>(from, to, count, HalfToFloat);
    default:
      std::memcpy(to, from, count * sizeof(float));
  }
}

void FromFloat(const float* from, TensorType type, void* to, int64_t count) {
  switch (type) {
    case TensorType::kF64:
      return ConvertBlock<float, double>(from, to, count,
                                         [](float x) { return static_cast<double>(x); });
    case TensorType::kBF16:
      return ConvertBlock<float, uint16_t>(from, to, count,
                                           [](float x) { return BFloat16(x).bits; });
    case TensorType::kF16:
      return ConvertBlock<float, uint16_t>(from, to, count, FloatToHalf);
    default:
      std::memcpy(to, from, count * sizeof(float));
  }
}

}  // namespace

void ConvertElements(const void* from, TensorType from_type, void* to, TensorType to_type,
                     int64_t count) {
  TRANCHE_CHECK(IsFloat(from_type) && IsFloat(to_type))
      << Name(from_type) << " to " << Name(to_type);
  const int64_t from_size = BitsOf(from_type) / 8, to_size = BitsOf(to_type) / 8;
  if (from_type == to_type) {
    if (count > 0) std::memcpy(to, from, count * from_size);
    return;
  }
  float block[kBlock];
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t n = std::min(kBlock, count - i);
    ToFloat(static_cast<const char*>(from) + i * from_size, from_type, block, n);
    FromFloat(block, to_type, static_cast<char*>(to) + i * to_size, n);
  }
}

}  // namespace tranche
