#include "control_stack.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
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

// Ranges between runs: a short run must not pay for a mapping.
struct Waiting {
  Spinlock lock;
  std::vector<ControlStack::Range> ranges;
  size_t committed = 0;  // by all of them, as far as runs have used them
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

thread_local bool thread_has_ended = false;  // runs may follow in what is destroyed later

// A thread's last range waits for its next run without a lock.
class OwnRange {
 public:
  ~OwnRange() {
    if (range.base != nullptr) munmap(range.base, range.bytes);
    thread_has_ended = true;
  }
  ControlStack::Range range{nullptr, 0, 0};
};
thread_local OwnRange own;

}  // namespace

ControlStack::ControlStack(int64_t limit) : range_{nullptr, static_cast<size_t>(limit), 0} {
  if (!thread_has_ended && own.range.base != nullptr && own.range.bytes == range_.bytes) {
    range_ = std::exchange(own.range, {nullptr, 0, 0});
  } else {
    Waiting& w = waiting();
    std::lock_guard guard(w.lock);
    for (size_t i = w.ranges.size(); i-- > 0;) {
      if (w.ranges[i].bytes != range_.bytes) continue;
      range_ = w.ranges[i];
      w.committed -= range_.committed;
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
  range_.committed = std::max(range_.committed, static_cast<size_t>(highest_ - range_.base));
  if (!thread_has_ended && own.range.base == nullptr && range_.committed <= kept_committed) {
    own.range = range_;
    return;
  }
  Waiting& w = waiting();
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
