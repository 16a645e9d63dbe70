// Element types. bf16 is the upper half of an fp32; conversion rounds to nearest even and keeps NaN
// a NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace tranche {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat64, kInt32, kUInt64 };

constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat64:
    case DType::kUInt64:
      return 8;
  }
  return 0;
}

constexpr absl::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat64:
      return "fp64";
    case DType::kInt32:
      return "int32";
    case DType::kUInt64:
      return "uint64";
  }
  return "?";
}

struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  constexpr explicit BFloat16(float value) {
    const uint32_t raw = std::bit_cast<uint32_t>(value);
    const bool nan = (raw & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(nan ? (raw >> 16) | 0x40u
                                     : (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16);
  }
  constexpr explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<uint64_t> {
  static constexpr DType value = DType::kUInt64;
};

}  // namespace tranche
