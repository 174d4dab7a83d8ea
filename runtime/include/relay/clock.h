#pragma once

#include <time.h>

#include <cstdint>

namespace relay {

// Nanoseconds of a clock that never goes back.
inline int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
}

}  // namespace relay
