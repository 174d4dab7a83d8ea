#include "relay/storage_pool.h"

#include <pthread.h>

#include <atomic>
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

// Blocks that are free, in as many parts as there are likely to be threads at work: each thread takes from one part and gives
// back to it, so that threads seldom meet, and find blocks that are still in their processor's cache.
struct alignas(64) Part {
  Spinlock lock;
  std::vector<void*> free[class_count];
};
constexpr uint32_t part_count = 16;

struct Pool {
  Part parts[part_count];
  alignas(64) std::atomic<int64_t> live_bytes{0};
  std::atomic<int64_t> peak_bytes{0}, allocations{0};
  alignas(64) std::atomic<int64_t> cached_bytes{0};

  void* take(Part& part, int index) {
    std::vector<void*>& blocks = part.free[index];
    if (blocks.empty()) return nullptr;
    void* data = blocks.back();
    blocks.pop_back();
    cached_bytes.fetch_sub(class_bytes(index), std::memory_order_relaxed);
    return data;
  }
};

Pool& pool(int32_t device) {
  static Pool* pools = [] {
    auto* made = new Pool[device_count];
    static Pool* for_fork;
    for_fork = made;
    // A child starts with one thread: no other may hold a lock at the moment of the fork.
    pthread_atfork(
        [] {
          for (int i = 0; i < device_count; ++i)
            for (Part& part : for_fork[i].parts) part.lock.lock();
        },
        [] {
          for (int i = 0; i < device_count; ++i)
            for (Part& part : for_fork[i].parts) part.lock.unlock();
        },
        [] {
          for (int i = 0; i < device_count; ++i)
            for (Part& part : for_fork[i].parts) part.lock.unlock();
        });
    return made;
  }();
  return pools[device];
}

uint32_t my_part() {
  static std::atomic<uint32_t> threads{0};
  thread_local uint32_t mine = threads.fetch_add(1, std::memory_order_relaxed) % part_count;
  return mine;
}

// A cached block of a class: this thread's, or another's before the device is asked.
void* take_cached(Pool& p, int index) {
  uint32_t mine = my_part();
  {
    std::lock_guard guard(p.parts[mine].lock);
    if (void* data = p.take(p.parts[mine], index)) return data;
  }
  if (p.cached_bytes.load(std::memory_order_relaxed) < class_bytes(index)) return nullptr;
  for (uint32_t i = 1; i < part_count; ++i) {
    Part& part = p.parts[(mine + i) % part_count];
    std::lock_guard guard(part.lock);
    if (void* data = p.take(part, index)) return data;
  }
  return nullptr;
}

}  // namespace

Block pool_allocate(int32_t device_index, int64_t bytes) {
  Pool& p = pool(device_index);
  bool cached = bytes <= largest_cached_block;
  int index = cached ? size_class(bytes) : 0;
  int64_t size = cached ? class_bytes(index) : bytes;
  void* data = cached ? take_cached(p, index) : nullptr;
  if (data == nullptr) {
    data = device(device_index).allocate(size);
    if (data == nullptr) {
      pool_trim(device_index);
      data = device(device_index).allocate(size);
    }
  }
  if (data == nullptr)
    fail(Status::out_of_memory, "out of memory: %lld bytes on device %s", static_cast<long long>(bytes),
         device(device_index).name());
  int64_t live = p.live_bytes.fetch_add(size, std::memory_order_relaxed) + size;
  p.allocations.fetch_add(1, std::memory_order_relaxed);
  for (int64_t peak = p.peak_bytes.load(std::memory_order_relaxed);
       live > peak && !p.peak_bytes.compare_exchange_weak(peak, live, std::memory_order_relaxed);) {
  }
  return {data, size};
}

void pool_free(int32_t device_index, Block block) {
  Pool& p = pool(device_index);
  p.live_bytes.fetch_sub(block.bytes, std::memory_order_relaxed);
  if (block.bytes <= largest_cached_block &&
      p.cached_bytes.load(std::memory_order_relaxed) + block.bytes <= cached_bytes_limit) {
    p.cached_bytes.fetch_add(block.bytes, std::memory_order_relaxed);
    Part& part = p.parts[my_part()];
    std::lock_guard guard(part.lock);
    part.free[size_class(block.bytes)].push_back(block.data);
    return;
  }
  device(device_index).deallocate(block.data, block.bytes);
}

PoolStatistics pool_statistics(int32_t device_index) {
  Pool& p = pool(device_index);
  PoolStatistics found;
  found.live_bytes = p.live_bytes.load();
  found.peak_bytes = p.peak_bytes.load();
  found.cached_bytes = p.cached_bytes.load();
  found.allocations = p.allocations.load();
  return found;
}

void pool_reset_peak(int32_t device_index) {
  Pool& p = pool(device_index);
  p.peak_bytes.store(p.live_bytes.load());
}

void pool_trim(int32_t device_index) {
  Pool& p = pool(device_index);
  for (Part& part : p.parts) {
    for (int index = 0; index < class_count; ++index) {
      std::vector<void*> blocks;
      {
        std::lock_guard guard(part.lock);
        blocks.swap(part.free[index]);
      }
      p.cached_bytes.fetch_sub(class_bytes(index) * static_cast<int64_t>(blocks.size()), std::memory_order_relaxed);
      for (void* block : blocks) device(device_index).deallocate(block, class_bytes(index));
    }
  }
}

}  // namespace relay
