// The 64-bit checksum of executable files: every byte counts, and it reads memory at several bytes per cycle.
#pragma once

#include <cstddef>
#include <cstdint>

namespace relay {

uint64_t checksum(const void* data, size_t bytes, uint64_t seed = 0);

// The same of bytes that come one piece after the other; how many there will be is told first.
class Checksum {
 public:
  explicit Checksum(uint64_t bytes, uint64_t seed = 0);
  void update(const void* data, size_t bytes);
  uint64_t finish() const;

 private:
  uint64_t total_, lanes_[4];
  unsigned char rest_[32];  // of a stripe that is not whole yet
  size_t held_ = 0;
};

}  // namespace relay
