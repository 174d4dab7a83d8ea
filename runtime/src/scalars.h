// Operations on unboxed scalars: one element of a dtype, with the meaning that kernels and the interpreter give it (the
// operations of relay.te.scalar, by the same names).
//
// Integers wrap. Division by zero gives 0, and so does a remainder; shifting by the width or more shifts everything out.
// Float minimum and maximum pass nan on. Conversion of a float to an integer truncates and saturates, nan becomes 0.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "relay/dtype.h"
#include "relay/error.h"
#include "relay/value.h"

namespace relay::scalar {

template <class T>
inline T element(uint64_t bits) {
  if constexpr (std::is_same_v<T, bool>) {
    return (bits & 1) != 0;
  } else {
    T x;
    std::memcpy(&x, &bits, sizeof(T));
    return x;
  }
}
template <class T>
inline uint64_t bits_of(T x) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(T));
  return bits;
}

template <class T>
inline constexpr bool is_bool = std::is_same_v<T, bool>;
template <class T>
inline constexpr bool is_float = std::is_floating_point_v<T>;
template <class T>
inline constexpr bool is_integer = std::is_integral_v<T> && !is_bool<T>;

// Calls f with a zero of the dtype's type.
template <class F>
auto with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::bool_: return f(bool{});
    case DType::int8_: return f(int8_t{});
    case DType::int16_: return f(int16_t{});
    case DType::int32_: return f(int32_t{});
    case DType::int64_: return f(int64_t{});
    case DType::uint8_: return f(uint8_t{});
    case DType::uint16_: return f(uint16_t{});
    case DType::uint32_: return f(uint32_t{});
    case DType::uint64_: return f(uint64_t{});
    case DType::float32_: return f(float{});
    case DType::float64_: return f(double{});
    default: fail(Status::failed, "there is no arithmetic on unboxed scalars of %s", dtype_name(dtype));
  }
}

template <class T>
[[noreturn]] T no_operation() {
  fail(Status::failed, "there is no such operation on scalars of this dtype");
}

// In the unsigned type of full width, where nothing overflows, and back.
template <class T, class F>
inline T wrapped(T a, T b, F f) {
  return static_cast<T>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
}

// A divisor for which the machine does not trap: 1 for 0, and for -1 where the quotient does not fit (it wraps to a then).
template <class T>
inline T safe_divisor(T a, T b) {
  if (b == 0) return 1;
  if constexpr (std::is_signed_v<T>)
    if (b == -1 && a == std::numeric_limits<T>::min()) return 1;
  return b;
}

// --- two operands -------------------------------------------------------------------------------------------------

struct Add {
  template <class T>
  static T run(T a, T b) {
    if constexpr (is_bool<T>) return a || b;
    else if constexpr (is_float<T>) return a + b;
    else return wrapped(a, b, [](uint64_t x, uint64_t y) { return x + y; });
  }
};
struct Sub {
  template <class T>
  static T run(T a, T b) {
    if constexpr (is_bool<T>) return a != b;
    else if constexpr (is_float<T>) return a - b;
    else return wrapped(a, b, [](uint64_t x, uint64_t y) { return x - y; });
  }
};
struct Mul {
  template <class T>
  static T run(T a, T b) {
    if constexpr (is_bool<T>) return a && b;
    else if constexpr (is_float<T>) return a * b;
    else return wrapped(a, b, [](uint64_t x, uint64_t y) { return x * y; });
  }
};
struct Truncdiv {
  template <class T>
  static T run(T a, T b) {
    if constexpr (is_bool<T>) return no_operation<T>();
    else if constexpr (is_float<T>) return std::trunc(a / b);
    else return b == 0 ? T{0} : static_cast<T>(a / safe_divisor(a, b));
  }
};
struct Div {
  template <class T>
  static T run(T a, T b) {
    if constexpr (is_float<T>) return a / b;
    else return Truncdiv::run(a, b);
  }
};
struct Truncmod {
  template <class T>
  static T run(T a, T b) {
    if constexpr (!is_integer<T>) return no_operation<T>();
    else return b == 0 ? T{0} : static_cast<T>(a % safe_divisor(a, b));
  }
};
struct Floordiv {
  template <class T>
  static T run(T a, T b) {
    if constexpr (is_float<T>) {
      return std::floor(a / b);
    } else {
      T quotient = Truncdiv::run(a, b);
      if constexpr (std::is_signed_v<T> && is_integer<T>)
        if (b != 0 && (a < 0) != (b < 0) && Truncmod::run(a, b) != 0) --quotient;
      return quotient;
    }
  }
};
struct Mod {
  template <class T>
  static T run(T a, T b) {
    T rest = Truncmod::run(a, b);
    if constexpr (std::is_signed_v<T> && is_integer<T>)
      if (rest != 0 && (rest < 0) != (b < 0)) rest = static_cast<T>(rest + b);
    return rest;
  }
};
struct Min {
  template <class T>
  static T run(T a, T b) {
    if constexpr (is_float<T>)
      if (a != a) return a;
    return a < b ? a : b;
  }
};
struct Max {
  template <class T>
  static T run(T a, T b) {
    if constexpr (is_float<T>)
      if (a != a) return a;
    return a > b ? a : b;
  }
};
struct And {
  template <class T>
  static T run(T a, T b) {
    if constexpr (is_float<T>) return no_operation<T>();
    else return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T run(T a, T b) {
    if constexpr (is_float<T>) return no_operation<T>();
    else return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T run(T a, T b) {
    if constexpr (is_float<T>) return no_operation<T>();
    else return static_cast<T>(a ^ b);
  }
};
// Whether a shift is by the width or more, or by a negative amount.
template <class T>
inline bool outside(T amount) {
  return static_cast<uint64_t>(amount) >= 8 * sizeof(T);
}
struct Shl {
  template <class T>
  static T run(T a, T b) {
    if constexpr (!is_integer<T>) return no_operation<T>();
    else return outside(b) ? T{0} : static_cast<T>(static_cast<uint64_t>(a) << b);
  }
};
struct Shr {
  template <class T>
  static T run(T a, T b) {
    if constexpr (!is_integer<T>) return no_operation<T>();
    else if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> (outside(b) ? T{8 * sizeof(T) - 1} : b));
    else return outside(b) ? T{0} : static_cast<T>(a >> b);
  }
};
// By squaring. Of negative powers only those of 1 and -1 are integers; the others truncate to 0.
struct Pow {
  template <class T>
  static T run(T a, T b) {
    if constexpr (!is_integer<T>) {
      return no_operation<T>();
    } else {
      if constexpr (std::is_signed_v<T>)
        if (b < 0 && a != 1 && a != -1) return 0;
      uint64_t result = 1, base = static_cast<uint64_t>(a);
      for (auto rest = static_cast<std::make_unsigned_t<T>>(b); rest != 0; rest >>= 1, base *= base)
        if (rest & 1) result *= base;
      return static_cast<T>(result);
    }
  }
};

// --- comparisons --------------------------------------------------------------------------------------------------

struct Eq {
  template <class T>
  static bool run(T a, T b) { return a == b; }
};
struct Ne {
  template <class T>
  static bool run(T a, T b) { return a != b; }
};
struct Lt {
  template <class T>
  static bool run(T a, T b) { return a < b; }
};
struct Le {
  template <class T>
  static bool run(T a, T b) { return a <= b; }
};
struct Gt {
  template <class T>
  static bool run(T a, T b) { return a > b; }
};
struct Ge {
  template <class T>
  static bool run(T a, T b) { return a >= b; }
};

// --- one operand --------------------------------------------------------------------------------------------------

struct Neg {
  template <class T>
  static T run(T a) {
    if constexpr (is_float<T>) return -a;
    else if constexpr (is_bool<T>) return a;
    else return static_cast<T>(uint64_t{0} - static_cast<uint64_t>(a));
  }
};
struct Abs {
  template <class T>
  static T run(T a) {
    if constexpr (is_float<T>) return std::fabs(a);
    else if constexpr (std::is_signed_v<T>) return a < 0 ? Neg::run(a) : a;
    else return a;
  }
};
struct Not {
  template <class T>
  static T run(T a) {
    if constexpr (is_float<T>) return no_operation<T>();
    else if constexpr (is_bool<T>) return !a;
    else return static_cast<T>(~a);
  }
};
struct Sign {
  template <class T>
  static T run(T a) {
    if constexpr (is_float<T>) return a != a ? a : a == 0 ? T{0} : std::copysign(T{1}, a);
    else return static_cast<T>(a > 0 ? 1 : a == 0 ? 0 : -1);
  }
};
struct Floor {
  template <class T>
  static T run(T a) {
    if constexpr (is_float<T>) return std::floor(a);
    else return a;
  }
};
struct Ceil {
  template <class T>
  static T run(T a) {
    if constexpr (is_float<T>) return std::ceil(a);
    else return a;
  }
};
struct Round {
  template <class T>
  static T run(T a) {
    if constexpr (is_float<T>) return std::nearbyint(a);  // to even: nothing here changes the rounding mode
    else return a;
  }
};
struct Trunc {
  template <class T>
  static T run(T a) {
    if constexpr (is_float<T>) return std::trunc(a);
    else return a;
  }
};
struct Sqrt {
  template <class T>
  static T run(T a) {
    if constexpr (is_float<T>) return std::sqrt(a);
    else return no_operation<T>();
  }
};
struct Isnan {
  template <class T>
  static bool run(T a) { return a != a; }
};
struct Isinf {
  template <class T>
  static bool run(T a) {
    if constexpr (is_float<T>) return std::fabs(a) == std::numeric_limits<T>::infinity();
    else return false;
  }
};
struct Isfinite {
  template <class T>
  static bool run(T a) {
    if constexpr (is_float<T>) return std::fabs(a) < std::numeric_limits<T>::infinity();
    else return true;
  }
};

// --- conversion ---------------------------------------------------------------------------------------------------

template <class To, class From>
To converted(From a) {
  if constexpr (is_bool<To>) {
    return a != From{0};
  } else if constexpr (is_float<From> && is_integer<To>) {
    constexpr auto low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max();
    if (a != a) return 0;
    // The limits as floats may be rounded away from zero, to what does not fit.
    return a <= static_cast<From>(low) ? low : a >= static_cast<From>(high) ? high : static_cast<To>(a);
  } else {
    return static_cast<To>(a);
  }
}

// --- on payloads: dtypes that are common in line, the others behind a call ----------------------------------------

template <class Operation>
[[gnu::noinline]] uint64_t binary_of_any(DType dtype, uint64_t a, uint64_t b) {
  return with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    return bits_of(Operation::run(element<T>(a), element<T>(b)));
  });
}
template <class Operation>
inline uint64_t binary(DType dtype, uint64_t a, uint64_t b) {
  if (dtype == DType::int64_) return bits_of(Operation::run(static_cast<int64_t>(a), static_cast<int64_t>(b)));
  if (dtype == DType::float32_) return bits_of(Operation::run(element<float>(a), element<float>(b)));
  return binary_of_any<Operation>(dtype, a, b);
}

template <class Operation>
[[gnu::noinline]] uint64_t unary_of_any(DType dtype, uint64_t a) {
  return with_type(dtype, [&](auto zero) { return bits_of(Operation::run(element<decltype(zero)>(a))); });
}

inline uint64_t cast(DType from, DType to, uint64_t a) {
  return with_type(from, [&](auto source) {
    return with_type(to, [&](auto target) {
      return bits_of(converted<decltype(target)>(element<decltype(source)>(a)));
    });
  });
}

}  // namespace relay::scalar
