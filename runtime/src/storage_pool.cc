#include "relay/storage_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "relay/device.h"
#include "relay/error.h"
#include "relay/spinlock.h"

namespace relay {
namespace {

constexpr int64_t smallest_block = 64;
constexpr int class_count = 128;
constexpr int64_t largest_cached_block = int64_t{1} << 37;
// So many bytes may wait beside as many as there were alive at once before: memory that is new to a process costs many times what it takes
// to write to it, so what a program needs at every call is kept for the next one.
constexpr int64_t cached_bytes_limit = int64_t{256} << 20;
// A block of so many bytes for which none waits takes the place of others that do, where these are more.
constexpr int64_t replacing = int64_t{1} << 20;

// The address sanitizer sees an access outside of a block, or after its end, when blocks are no larger than asked and never kept.
#ifdef __SANITIZE_ADDRESS__
constexpr bool exact_blocks = true;
#else
constexpr bool exact_blocks = false;
#endif

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

// Bytes that a part of the pool may have handed out, or taken back, before the pool's own counts say so.
constexpr int64_t untold_bytes = int64_t{64} << 10;

// Counts of all parts. Threads write them only now and then, because a line that several processors write in turn costs each of
// them more than the allocation.
struct alignas(64) Totals {
  std::atomic<int64_t> live_bytes{0}, peak_bytes{0}, cached_bytes{0};
};

// Blocks that are free, in as many parts as there are likely to be threads at work: each thread takes from one part and gives
// back to it, so that threads seldom meet, and find blocks that are still in their processor's cache.
struct alignas(64) Part {
  Spinlock lock;
  // Not in the totals yet: what is alive more, the most that this has been, what waits more.
  int64_t live = 0, highest = 0, cached = 0;
  int64_t allocations = 0;
  std::atomic<int64_t> waiting_bytes{0};  // in the lists; changed under the lock
  std::vector<void*> free[class_count];

  // What follows wants the lock.
  void* take(int index) {
    std::vector<void*>& blocks = free[index];
    if (blocks.empty()) return nullptr;
    void* data = blocks.back();
    blocks.pop_back();
    add_cached(-class_bytes(index));
    return data;
  }
  void put(void* data, int index) {
    free[index].push_back(data);
    add_cached(class_bytes(index));
  }
  void add_cached(int64_t bytes) {
    cached += bytes;
    waiting_bytes.store(waiting_bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }
  void add_live(int64_t bytes) {
    live += bytes;
    highest = std::max(highest, live);
  }
  void tell(Totals& totals) {
    int64_t before = totals.live_bytes.fetch_add(live, std::memory_order_relaxed);
    for (int64_t peak = totals.peak_bytes.load(std::memory_order_relaxed);
         before + highest > peak &&
         !totals.peak_bytes.compare_exchange_weak(peak, before + highest, std::memory_order_relaxed);) {
    }
    totals.cached_bytes.fetch_add(cached, std::memory_order_relaxed);
    live = highest = cached = 0;
  }
  void tell_much(Totals& totals) {
    if (std::max({std::abs(live), highest, std::abs(cached)}) >= untold_bytes) tell(totals);
  }
};
constexpr uint32_t part_count = 16;

struct Pool {
  Part parts[part_count];
  Totals totals;

  // How many bytes may wait beside those that are alive, by the totals and what a part has not told them, and `more`.
  int64_t may_wait(const Part& part, int64_t more) const {
    int64_t live = totals.live_bytes.load(std::memory_order_relaxed) + part.live + more;
    return cached_bytes_limit + std::max<int64_t>(0, totals.peak_bytes.load(std::memory_order_relaxed) - live);
  }

  void tell_all() {
    for (Part& part : parts) {
      std::lock_guard guard(part.lock);
      part.tell(totals);
    }
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

// A block of a class that waits in another part than `mine`.
void* take_from_others(Pool& p, uint32_t mine, int index) {
  for (uint32_t i = 1; i < part_count; ++i) {
    Part& part = p.parts[(mine + i) % part_count];
    if (part.waiting_bytes.load(std::memory_order_relaxed) < class_bytes(index)) continue;
    std::lock_guard guard(part.lock);
    if (void* data = part.take(index)) return data;
  }
  return nullptr;
}

// Gives waiting blocks back to the device, the largest first, until no more than `most` bytes wait.
void give_back(int32_t device_index, int64_t most) {
  Pool& p = pool(device_index);
  p.tell_all();
  for (int index = class_count - 1; index >= 0; --index) {
    for (Part& part : p.parts) {
      for (;;) {
        void* data = nullptr;
        {
          std::lock_guard guard(part.lock);
          if (p.totals.cached_bytes.load(std::memory_order_relaxed) <= most) return;
          data = part.take(index);
          part.tell(p.totals);
        }
        if (data == nullptr) break;
        device(device_index).deallocate(data, class_bytes(index));
      }
    }
  }
}

// Gives back what may not wait any more once `bytes` more are alive.
void make_room(int32_t device_index, Part& part, int64_t bytes) {
  Pool& p = pool(device_index);
  int64_t most;
  {
    std::lock_guard guard(part.lock);
    most = p.may_wait(part, bytes);
    if (p.totals.cached_bytes.load(std::memory_order_relaxed) + part.cached <= most) return;
  }
  give_back(device_index, most);
}

}  // namespace

Block pool_allocate(int32_t device_index, int64_t bytes) {
  Pool& p = pool(device_index);
  bool cached = !exact_blocks && bytes <= largest_cached_block;
  int index = cached ? size_class(bytes) : 0;
  int64_t size = cached ? class_bytes(index) : bytes;
  uint32_t mine = my_part();
  Part& part = p.parts[mine];
  auto counted = [&] {
    part.add_live(size);
    ++part.allocations;
    part.tell_much(p.totals);
  };
  if (cached) {
    std::lock_guard guard(part.lock);
    if (void* data = part.take(index)) {
      counted();
      return {data, size};
    }
  }
  void* data = cached ? take_from_others(p, mine, index) : nullptr;
  if (data == nullptr) {
    if (cached && size >= replacing) make_room(device_index, part, size);
    data = device(device_index).allocate(size);
    if (data == nullptr) {
      pool_trim(device_index);
      data = device(device_index).allocate(size);
    }
  }
  if (data == nullptr)
    fail(Status::out_of_memory, "out of memory: %lld bytes on device %s", static_cast<long long>(bytes),
         device(device_index).name());
  std::lock_guard guard(part.lock);
  counted();
  return {data, size};
}

void pool_free(int32_t device_index, Block block) {
  Pool& p = pool(device_index);
  Part& part = p.parts[my_part()];
  {
    std::lock_guard guard(part.lock);
    part.add_live(-block.bytes);
    bool keep = !exact_blocks && block.bytes <= largest_cached_block &&
                p.totals.cached_bytes.load(std::memory_order_relaxed) + part.cached + block.bytes <= p.may_wait(part, 0);
    if (keep) part.put(block.data, size_class(block.bytes));
    part.tell_much(p.totals);
    if (keep) return;
  }
  device(device_index).deallocate(block.data, block.bytes);
}

PoolStatistics pool_statistics(int32_t device_index) {
  Pool& p = pool(device_index);
  PoolStatistics found{};
  for (Part& part : p.parts) {
    std::lock_guard guard(part.lock);
    part.tell(p.totals);
    found.allocations += part.allocations;
  }
  found.live_bytes = p.totals.live_bytes.load();
  found.peak_bytes = p.totals.peak_bytes.load();
  found.cached_bytes = p.totals.cached_bytes.load();
  return found;
}

void pool_reset_peak(int32_t device_index) {
  Pool& p = pool(device_index);
  p.tell_all();
  p.totals.peak_bytes.store(p.totals.live_bytes.load());
}

void pool_trim(int32_t device_index) { give_back(device_index, 0); }

}  // namespace relay
