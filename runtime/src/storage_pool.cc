#include "relay/storage_pool.h"

#include <pthread.h>

#include <bit>
#include <mutex>
#include <vector>

#include "relay/device.h"
#include "relay/error.h"
#include "relay/spinlock.h"

namespace relay {
namespace {

constexpr int64_t smallest_block = 64;
constexpr int64_t largest_cached_block = int64_t{64} << 20;
constexpr int64_t cached_bytes_limit = int64_t{256} << 20;
constexpr int class_count = 96;  // far beyond largest_cached_block

// Class sizes: 64, 80, 96, 112, 128, 160, ... : four per power of two, from 64 on.
int size_class(int64_t bytes) {
  if (bytes <= smallest_block) return 0;
  uint64_t n = static_cast<uint64_t>(bytes) - 1;
  int exponent = 63 - std::countl_zero(n);  // 2^exponent <= n
  int quarter = static_cast<int>((n >> (exponent - 2)) & 3);
  return (exponent - 6) * 4 + quarter + 1;
}

int64_t class_bytes(int index) {
  if (index == 0) return smallest_block;
  int exponent = (index - 1) / 4 + 6, quarter = (index - 1) % 4;
  return (int64_t{1} << exponent) + (int64_t{quarter + 1} << (exponent - 2));
}

struct Pool {
  Spinlock lock;
  std::vector<void*> free[class_count];
  PoolStatistics statistics{};
};

Pool& pool(int32_t device) {
  static Pool* pools = [] {
    auto* made = new Pool[device_count];
    static Pool* for_fork;
    for_fork = made;
    // A child starts with one thread: no other may hold a lock at the moment of the fork.
    pthread_atfork(
        [] {
          for (int i = 0; i < device_count; ++i) for_fork[i].lock.lock();
        },
        [] {
          for (int i = 0; i < device_count; ++i) for_fork[i].lock.unlock();
        },
        [] {
          for (int i = 0; i < device_count; ++i) for_fork[i].lock.unlock();
        });
    return made;
  }();
  return pools[device];
}

}  // namespace

Block pool_allocate(int32_t device_index, int64_t bytes) {
  Pool& p = pool(device_index);
  bool cached = bytes <= largest_cached_block;
  int index = cached ? size_class(bytes) : 0;
  int64_t size = cached ? class_bytes(index) : bytes;
  void* data = nullptr;
  {
    std::lock_guard guard(p.lock);
    if (cached && !p.free[index].empty()) {
      data = p.free[index].back();
      p.free[index].pop_back();
      p.statistics.cached_bytes -= size;
    }
    p.statistics.live_bytes += size;
    p.statistics.allocations++;
    if (p.statistics.live_bytes > p.statistics.peak_bytes) p.statistics.peak_bytes = p.statistics.live_bytes;
  }
  if (data == nullptr) {
    data = device(device_index).allocate(size);
    if (data == nullptr) {
      pool_trim(device_index);
      data = device(device_index).allocate(size);
    }
    if (data == nullptr) {
      std::lock_guard guard(p.lock);
      p.statistics.live_bytes -= size;
      p.statistics.allocations--;
    }
  }
  if (data == nullptr)
    fail(Status::out_of_memory, "out of memory: %lld bytes on device %s", static_cast<long long>(bytes),
         device(device_index).name());
  return {data, size};
}

void pool_free(int32_t device_index, Block block) {
  Pool& p = pool(device_index);
  {
    std::lock_guard guard(p.lock);
    p.statistics.live_bytes -= block.bytes;
    if (block.bytes <= largest_cached_block && p.statistics.cached_bytes + block.bytes <= cached_bytes_limit) {
      p.free[size_class(block.bytes)].push_back(block.data);
      p.statistics.cached_bytes += block.bytes;
      return;
    }
  }
  device(device_index).deallocate(block.data, block.bytes);
}

PoolStatistics pool_statistics(int32_t device_index) {
  Pool& p = pool(device_index);
  std::lock_guard guard(p.lock);
  return p.statistics;
}

void pool_reset_peak(int32_t device_index) {
  Pool& p = pool(device_index);
  std::lock_guard guard(p.lock);
  p.statistics.peak_bytes = p.statistics.live_bytes;
}

void pool_trim(int32_t device_index) {
  Pool& p = pool(device_index);
  for (int index = 0; index < class_count; ++index) {
    std::vector<void*> blocks;
    {
      std::lock_guard guard(p.lock);
      blocks.swap(p.free[index]);
      p.statistics.cached_bytes -= class_bytes(index) * static_cast<int64_t>(blocks.size());
    }
    for (void* block : blocks) device(device_index).deallocate(block, class_bytes(index));
  }
}

}  // namespace relay
