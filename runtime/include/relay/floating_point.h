// How the thread computes with floating-point numbers: a run sees to it that this is what its program says, whatever its caller has set (some
// libraries flush subnormal numbers to zero, in the whole process, when they are loaded), and puts it back.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace relay {

// While one exists, the thread rounds to the nearest number, raises nothing, and takes subnormal numbers for what they are, or (flush) for zero.
class FloatingPointScope {
 public:
  explicit FloatingPointScope(bool flush) : before_(read()) {
    uint64_t wanted = (before_ & ~settings) | standard | (flush ? flushing : 0);
    changed_ = wanted != before_;
    if (changed_) [[unlikely]]
      write(wanted);
  }
  ~FloatingPointScope() {
    if (changed_) [[unlikely]]
      write(before_);
  }
  FloatingPointScope(const FloatingPointScope&) = delete;
  FloatingPointScope& operator=(const FloatingPointScope&) = delete;

 private:
#if defined(__x86_64__)
  // MXCSR: subnormal operands and results are zero, the rounding, which exceptions are masked.
  static constexpr uint64_t flushing = 0x8040, standard = 0x1F80, settings = flushing | 0x6000 | standard;
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t value) { _mm_setcsr(static_cast<uint32_t>(value)); }
#elif defined(__aarch64__)
  // FPCR: subnormal numbers are zero (also halves), the rounding, the default NaN, which exceptions are trapped.
  static constexpr uint64_t flushing = 1u << 24 | 1u << 19, standard = 0, settings = flushing | 3u << 22 | 1u << 25 | 0x9F00u;
  static uint64_t read() {
    uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  static constexpr uint64_t flushing = 0, standard = 0, settings = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif

  uint64_t before_;
  bool changed_;
};

}  // namespace relay
