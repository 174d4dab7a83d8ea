// Element types: a one-byte code, its name, its width. The list is dtypes.def.
#pragma once

#include <cstdint>
#include <string_view>

namespace relay {

enum class DType : uint8_t {
#define DTYPE(code, name, bits, kind) name##_ = code,
#include "../../dtypes.def"
#undef DTYPE
};

enum class DTypeKind : uint8_t { boolean, sint, uint, ieee, brain };

struct DTypeInfo {
  const char* name;
  uint8_t bits;
  DTypeKind kind;
};

inline constexpr DTypeInfo dtype_table[] = {
#define DTYPE(code, name, bits, kind) {#name, bits, DTypeKind::kind},
#include "../../dtypes.def"
#undef DTYPE
};

inline constexpr uint32_t dtype_count = sizeof(dtype_table) / sizeof(dtype_table[0]);

// In an entry's parameter list: any element type, or not a tensor at all.
inline constexpr uint8_t any_dtype = 255;

inline const DTypeInfo& info(DType dtype) { return dtype_table[static_cast<uint8_t>(dtype)]; }
inline const char* dtype_name(DType dtype) { return info(dtype).name; }
inline uint32_t bits(DType dtype) { return info(dtype).bits; }

// Bytes that one element takes when it stands alone (a scalar register): sub-byte elements take one.
inline uint32_t scalar_bytes(DType dtype) { return (bits(dtype) + 7) / 8; }

// Bytes of n packed elements, or -1 when that does not fit an int64.
inline int64_t packed_bytes(DType dtype, int64_t n) {
  int64_t total_bits;
  if (__builtin_mul_overflow(n, static_cast<int64_t>(bits(dtype)), &total_bits)) {
    int64_t bytes;  // only wide types can get here with a byte count that still fits
    return __builtin_mul_overflow(n, static_cast<int64_t>(bits(dtype) / 8), &bytes) || bits(dtype) < 8 ? -1 : bytes;
  }
  return total_bits / 8 + (total_bits % 8 != 0);
}

// The code for a name such as "float32", or -1.
inline int dtype_from_name(std::string_view text) {
  for (uint32_t code = 0; code < dtype_count; ++code)
    if (text == dtype_table[code].name) return static_cast<int>(code);
  return -1;
}

}  // namespace relay
