#include "control_stack.h"

#include <pthread.h>
#include <sys/mman.h>

#include <mutex>
#include <vector>

#include "relay/error.h"
#include "relay/spinlock.h"

namespace relay {
namespace {

constexpr size_t kept_committed = size_t{256} << 10;  // of a waiting range
constexpr size_t most_waiting = 16;

// Ranges between runs: a short run must not pay for a mapping.
struct Waiting {
  Spinlock lock;
  std::vector<ControlStack::Range> ranges;
};

Waiting& waiting() {
  static Waiting* made = [] {
    static Waiting* list;
    list = new Waiting;
    pthread_atfork([] { list->lock.lock(); }, [] { list->lock.unlock(); }, [] { list->lock.unlock(); });
    return list;
  }();
  return *made;
}

}  // namespace

ControlStack::ControlStack(int64_t limit) : range_{nullptr, static_cast<size_t>(limit)} {
  {
    Waiting& w = waiting();
    std::lock_guard guard(w.lock);
    for (size_t i = w.ranges.size(); i-- > 0;) {
      if (w.ranges[i].bytes != range_.bytes) continue;
      range_ = w.ranges[i];
      w.ranges.erase(w.ranges.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  }
  if (range_.base == nullptr) {
    void* base =
        mmap(nullptr, range_.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
      fail(Status::out_of_memory, "cannot reserve %zu bytes for the control stack; set a lower limit", range_.bytes);
    range_.base = static_cast<std::byte*>(base);
  }
  highest_ = range_.base;
}

ControlStack::~ControlStack() {
  auto used = static_cast<size_t>(highest_ - range_.base);
  if (used > kept_committed) madvise(range_.base + kept_committed, range_.bytes - kept_committed, MADV_DONTNEED);
  {
    Waiting& w = waiting();
    std::lock_guard guard(w.lock);
    if (w.ranges.size() < most_waiting) {
      w.ranges.push_back(range_);
      return;
    }
  }
  munmap(range_.base, range_.bytes);
}

}  // namespace relay
