#include "control_stack.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "relay/error.h"
#include "relay/spinlock.h"

namespace relay {
namespace {

constexpr size_t kept_committed = size_t{256} << 10;  // of every waiting range
constexpr size_t kept_in_all = size_t{32} << 20;      // by the waiting ranges together: a deep run is often not the last
constexpr size_t most_waiting = 16;

// A place for the range of a thread's last run, which its next one takes; as many as there are likely to be threads at work,
// so that threads seldom meet.
struct alignas(64) Slot {
  Spinlock lock;
  ControlStack::Range range{nullptr, 0, 0};
};
constexpr uint32_t slot_count = 32;

// Ranges between runs: a short run must not pay for a mapping.
struct Waiting {
  Slot slots[slot_count];
  Spinlock lock;
  std::vector<ControlStack::Range> ranges;  // that found no place
  size_t committed = 0;                     // by all of these, as far as runs have used them

  void lock_all() {
    for (Slot& slot : slots) slot.lock.lock();
    lock.lock();
  }
  void unlock_all() {
    lock.unlock();
    for (Slot& slot : slots) slot.lock.unlock();
  }
};

Waiting& waiting() {
  static Waiting* made = [] {
    static Waiting* list;
    list = new Waiting;
    pthread_atfork([] { list->lock_all(); }, [] { list->unlock_all(); }, [] { list->unlock_all(); });
    return list;
  }();
  return *made;
}

Slot& my_slot(Waiting& w) {
  static std::atomic<uint32_t> threads{0};
  thread_local uint32_t mine = threads.fetch_add(1, std::memory_order_relaxed) % slot_count;
  return w.slots[mine];
}

// Gives back what waits: the system has no room for another range.
void unmap_all(Waiting& w) {
  std::vector<ControlStack::Range> all;
  w.lock_all();
  all.swap(w.ranges);
  w.committed = 0;
  for (Slot& slot : w.slots)
    if (slot.range.base != nullptr) all.push_back(std::exchange(slot.range, {nullptr, 0, 0}));
  w.unlock_all();
  for (const ControlStack::Range& range : all) munmap(range.base, range.bytes);
}

std::byte* map(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

}  // namespace

ControlStack::ControlStack(int64_t limit) : range_{nullptr, static_cast<size_t>(limit), 0} {
  Waiting& w = waiting();
  {
    Slot& slot = my_slot(w);
    std::lock_guard guard(slot.lock);
    if (slot.range.base != nullptr && slot.range.bytes == range_.bytes)
      range_ = std::exchange(slot.range, {nullptr, 0, 0});
  }
  if (range_.base == nullptr) {
    std::lock_guard guard(w.lock);
    for (size_t i = w.ranges.size(); i-- > 0;) {
      if (w.ranges[i].bytes != range_.bytes) continue;
      range_ = w.ranges[i];
      w.committed -= range_.committed;
      w.ranges.erase(w.ranges.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  }
  if (range_.base == nullptr) range_.base = map(range_.bytes);
  if (range_.base == nullptr) {
    unmap_all(w);
    range_.base = map(range_.bytes);
  }
  if (range_.base == nullptr)
    fail(Status::out_of_memory, "cannot reserve %zu bytes for the control stack; set a lower limit", range_.bytes);
  highest_ = range_.base;
}

ControlStack::~ControlStack() {
  range_.committed = std::max(range_.committed, static_cast<size_t>(highest_ - range_.base));
  Waiting& w = waiting();
  if (range_.committed <= kept_committed) {
    Slot& slot = my_slot(w);
    std::lock_guard guard(slot.lock);
    if (slot.range.base == nullptr) {
      slot.range = range_;
      return;
    }
  }
  for (;;) {
    {
      std::lock_guard guard(w.lock);
      bool fits = range_.committed <= kept_committed || range_.committed + w.committed <= kept_in_all;
      if (w.ranges.size() < most_waiting && fits) {
        w.committed += range_.committed;
        w.ranges.push_back(range_);
        return;
      }
      if (fits) break;
    }
    madvise(range_.base + kept_committed, range_.bytes - kept_committed, MADV_DONTNEED);
    range_.committed = kept_committed;
  }
  munmap(range_.base, range_.bytes);
}

}  // namespace relay
