// The storage pool: one per device. Freed blocks wait in free lists, one per size class (four classes per power of
// two), and are handed out again. What waits and what is alive are together no more than 256 MiB above what was alive at
// once before: a program's large tensors are in the memory that they were in at the call before, and other ones take
// their place. Threads have their own lists, as far as there are enough, and take from each other's before they ask the
// device.
#pragma once

#include <cstdint>

namespace relay {

struct PoolStatistics {
  int64_t live_bytes;    // in blocks that are in use
  int64_t peak_bytes;    // the most that live_bytes has been; where threads allocate at the same time, within 64 KiB for each
  int64_t cached_bytes;  // in blocks that wait
  int64_t allocations;   // blocks handed out so far
};

struct Block {
  void* data;
  int64_t bytes;  // at least what was asked
};

// A block of at least `bytes`, aligned to 64. Throws Error(out_of_memory).
Block pool_allocate(int32_t device, int64_t bytes);
void pool_free(int32_t device, Block block);

PoolStatistics pool_statistics(int32_t device);
void pool_reset_peak(int32_t device);
// Gives all waiting blocks back to the device.
void pool_trim(int32_t device);

}  // namespace relay
