#include "relay/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <new>

#include "relay/clock.h"
#include "relay/floating_point.h"
#include "relay/spinlock.h"
#include "region_trials.h"

namespace relay {
namespace {

// --- the pool ----------------------------------------------------------------------------------------------------

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// The participant number of this thread while it is inside a region, else -1.
thread_local int64_t current_worker = -1;

constexpr int spin_rounds = 2000;  // some tens of microseconds
constexpr int rounds_unseen = 64;  // between two looks at the clock; a few microseconds
// A thread takes this part of the pieces left in a run at once, one at least: few calls, and small pieces where the region ends, so that
// nobody waits long for a thread that is late to start, loses its core or is slower.
constexpr int64_t pieces_per_run = 64, taken_at_once = 16;
constexpr uint64_t piece_mask = 0xffff;
constexpr int64_t patience = 16;  // regions between two moves of threads that are awake
static_assert(pieces_per_run <= static_cast<int64_t>(piece_mask));

// Some neighbours out of a row of things.
struct Stretch {
  int64_t first, count;
};

// Part number `part` of so many nearly equal ones; those that have one more come first.
Stretch part_of(int64_t total, int64_t parts, int64_t part) {
  int64_t share = total / parts, more = total % parts;
  return {part * share + std::min(part, more), share + (part < more)};
}

// Whether threads that sleep are woken. On a virtual machine that takes the caller 12 us (an idle processor is halted), and a thread
// begins 25 us after that: small programs are done by then. So it has to be repaid, by what is left of a region (known from the pieces
// that are done), or by what is to come: a burst of regions is expected to take as long as those before it. Times are nanoseconds, of
// work as one thread does it.
class Waking {
 public:
  // A region begins, and with it a burst if there was none for long.
  void begin(int64_t now) {
    int64_t gap = now - last_;
    if (gap <= shortly) return;
    window_.store(gap <= long_enough ? long_enough : shortly, std::memory_order_relaxed);
    if (gap <= long_enough) return;
    expected_ = (expected_ + spent_) / 2;
    spent_ = 0;
  }
  // With so much of a region done, and left as far as that tells.
  bool is_repaid(int64_t done, int64_t left) const {
    return left >= in_region * cost_ || expected_ - spent_ - done >= in_burst * cost_ || spent_ + done >= unexpected * cost_;
  }
  void has_taken(int64_t time) { cost_ = cost_ == 0 ? std::min(time, most_cost) : (3 * cost_ + std::min(time, most_cost)) / 4; }
  // A region is over, whose work was so much.
  void end(int64_t now, int64_t work) {
    last_ = now;
    spent_ = std::min(spent_ + work, enough * cost_);
  }
  // How long threads stay awake without work: gaps between regions that are a little too long are expected again, too.
  int64_t window() const { return window_.load(std::memory_order_relaxed); }

 private:
  static constexpr int64_t shortly = 50'000, long_enough = 400'000, most_cost = 30'000;
  // So many times what waking costs: later regions are smaller, and what a thread reads is not in its caches.
  static constexpr int64_t in_region = 6, in_burst = 12, unexpected = 16, enough = 32;
  int64_t last_ = 0, cost_ = 0, spent_ = 0, expected_ = 0;
  std::atomic<int64_t> window_{shortly};
};

// One region at a time. Each participant has a run of neighbouring blocks, as many as any other, in pieces which it takes from the
// front: what it reads is one stretch of memory, as the machine's prefetchers and kernels that read ahead expect. Who has none left
// takes the last pieces of another's run, so a thread that comes late, or never, has less to do and nobody waits for it.
//
// A run is one word: the region's generation (upper half), the first piece and the piece behind the last; a thread takes
// pieces by changing it. The region's fields are only rewritten when all its pieces are done, so fields read before a
// piece was won from a word of a generation belong to that generation.
class Pool {
 public:
  // How the next region runs (see `RegionTrials`).
  RegionTrials::Way way(const void* what, int64_t n, int64_t workers) {
    bool awake = threads_ >= workers - 1 && sleepers_.load(std::memory_order_relaxed) == 0;
    return trials_.next(what, n, workers, awake);
  }

  int32_t run_alone(relay_kernel_context* context, relay_parallel_body body, void* env, int64_t n) {
    int64_t start = now_ns();
    int32_t result = body(context, env, 0, n, 0);
    trials_.took_alone(now_ns() - start);
    return result;
  }

  int32_t run(relay_kernel_context* context, relay_parallel_body body, void* env, int64_t n, int64_t grain, int64_t workers,
              RegionTrials::Way way) {
    start_threads(workers - 1);
    int64_t start = now_ns();
    waking_.begin(start);
    bool repaid = waking_.is_repaid(0, 0), alone = !repaid && !way.wakes && sleepers_.load(std::memory_order_relaxed) >= threads_;
    uint64_t before = done_.load(std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    body_.store(body, std::memory_order_relaxed);
    env_.store(env, std::memory_order_relaxed);
    n_.store(n, std::memory_order_relaxed);
    grain_.store(grain, std::memory_order_relaxed);
    workers_.store(workers, std::memory_order_relaxed);
    result_.store(0, std::memory_order_relaxed);
    uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
    // What the caller begins alone is all in its own run.
    int64_t blocks = blocks_of(n, grain), runs = alone ? 1 : workers, pieces = 0;
    shared_out_.store(runs, std::memory_order_relaxed);
    for (int64_t w = 0; w < workers; ++w) {
      int64_t own = w < runs ? pieces_of(part_of(blocks, runs, w).count) : 0;
      runs_[static_cast<size_t>(w)].word.store(static_cast<uint64_t>(generation) << 32 | static_cast<uint64_t>(own),
                                               std::memory_order_release);
      pieces += own;
    }
    generation_.store(generation, std::memory_order_seq_cst);
    int64_t mine = alone ? work_alone(pieces, start) : 0;
    if (mine < pieces) {
      bool wakes = (repaid || alone || way.wakes) && sleepers_.load(std::memory_order_seq_cst) > 0;
      keep_off_this_cpu(wakes);
      if (wakes) start += wake();
      mine += work(0);
    }
    int64_t end = now_ns(), all = (end - start) * pieces / std::max<int64_t>(mine, 1);
    waking_.end(end, all);
    auto others = static_cast<uint64_t>(pieces - mine);
    for (int spins = 0; done_.load(std::memory_order_acquire) != before + others;) {
      if (++spins < spin_rounds)
        cpu_relax();
      else
        sched_yield();
    }
    if (way.measured) trials_.took_shared(now_ns() - start, all);
    return result_.load(std::memory_order_relaxed);
  }

  bool try_lock() { return !busy_.exchange(true, std::memory_order_acquire); }
  void unlock() { busy_.store(false, std::memory_order_release); }

 private:
  int64_t wake() {  // gives how long it took
    int64_t start = now_ns();
    futex_wake(generation_);
    int64_t time = now_ns() - start;
    waking_.has_taken(time);
    return time;
  }

  // The caller's pieces, as long as the others are not worth waking for what is left of them. Gives how many it has done.
  int64_t work_alone(int64_t pieces, int64_t start) {
    int64_t mine = 0;
    for (;;) {
      int64_t taken = take(0, 0);
      mine += taken;
      if (taken == 0 || mine >= pieces) return mine;
      int64_t done = now_ns() - start;
      if (waking_.is_repaid(done, done * (pieces - mine) / mine)) return mine;
    }
  }

  void start_threads(int64_t wanted) {
    for (; threads_ < std::min(wanted, max_threads - 1); ++threads_) {
      auto* start = new Start{this, threads_ + 1};
      pthread_attr_t attributes;
      pthread_attr_init(&attributes);
      pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
      // Signals belong to the embedding program's threads.
      sigset_t all, old;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &old);
      int failed = pthread_create(&handles_[static_cast<size_t>(threads_)], &attributes, enter, start);
      pthread_sigmask(SIG_SETMASK, &old, nullptr);
      pthread_attr_destroy(&attributes);
      if (failed) {  // the pieces are then run by those there are
        delete start;
        return;
      }
    }
  }

  // Threads must not be put behind the caller, which goes on working: schedulers like to wake a thread where it was woken from, and
  // notice the idle CPU only milliseconds later. Callers that take turns on several CPUs do not move the threads each time.
  void keep_off_this_cpu(bool now) {
    ++since_;
    int here = sched_getcpu();
    if (here < 0 || (here == avoided_ && threads_ == placed_) || !(now || since_ >= patience)) return;
    since_ = 0;
    cpu_set_t others;
    if (sched_getaffinity(0, sizeof others, &others) != 0) return;
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) == 0) return;
    for (int64_t t = 0; t < threads_; ++t)
      pthread_setaffinity_np(handles_[static_cast<size_t>(t)], sizeof others, &others);
    avoided_ = here;
    placed_ = threads_;
  }

  struct Start {
    Pool* pool;
    int64_t worker;
  };
  static void* enter(void* argument) {
    auto* start = static_cast<Start*>(argument);
    Start copy = *start;
    delete start;
    copy.pool->serve(copy.worker);
    return nullptr;
  }

  [[noreturn]] void serve(int64_t worker) {
    uint32_t seen = 0;
    for (;;) {
      uint32_t now = generation_.load(std::memory_order_acquire);
      int64_t since = now == seen ? now_ns() : 0;
      for (int spins = 1; now == seen; ++spins) {
        cpu_relax();
        now = generation_.load(std::memory_order_acquire);
        if (spins % rounds_unseen != 0) continue;
        if (now_ns() - since > waking_.window()) break;
        if (spins > spin_rounds) sched_yield();  // somebody else may have work
      }
      if (now == seen) {
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        if (generation_.load(std::memory_order_seq_cst) == seen) futex_wait(generation_, seen);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        continue;
      }
      seen = now;
      prefetch_for_write(&runs_[static_cast<size_t>(worker)]);
      work(worker);
    }
  }

  struct alignas(64) Run {
    std::atomic<uint64_t> word{0};
  };

  static int64_t blocks_of(int64_t n, int64_t grain) { return (n - 1) / grain + 1; }
  static int64_t pieces_of(int64_t blocks) { return std::min(blocks, pieces_per_run); }

  // Takes and runs pieces until there are none: the worker's own from the front, then those of others from the back. Gives how many
  // were the caller's; the others tell the caller of theirs before they look at another's run, which may be the last thing it waits for.
  int64_t work(int64_t worker) {
    int64_t mine = 0, workers = workers_.load(std::memory_order_relaxed);
    for (int64_t turn = 0, owner = worker; turn < workers && worker < workers; ++turn, owner = owner + 1 < workers ? owner + 1 : 0) {
      int64_t done = 0;
      while (int64_t taken = take(owner, worker)) done += taken;
      if (worker == 0)
        mine += done;
      else if (done > 0)
        done_.fetch_add(static_cast<uint64_t>(done), std::memory_order_release);
      workers = workers_.load(std::memory_order_relaxed);
    }
    return mine;
  }

  // Takes pieces of a run, and runs them; gives how many.
  int64_t take(int64_t owner, int64_t worker) {
    std::atomic<uint64_t>& run = runs_[static_cast<size_t>(owner)].word;
    uint64_t word = run.load(std::memory_order_acquire);
    for (;;) {
      relay_kernel_context* context = context_.load(std::memory_order_relaxed);
      relay_parallel_body body = body_.load(std::memory_order_relaxed);
      void* env = env_.load(std::memory_order_relaxed);
      int64_t n = n_.load(std::memory_order_relaxed), grain = grain_.load(std::memory_order_relaxed);
      int64_t workers = workers_.load(std::memory_order_relaxed), runs = shared_out_.load(std::memory_order_relaxed);
      if (worker >= workers) return 0;
      auto first = static_cast<int64_t>(word >> 16 & piece_mask), last = static_cast<int64_t>(word & piece_mask);
      if (first >= last) return 0;
      int64_t taken = std::max<int64_t>(1, (last - first) / taken_at_once);
      uint64_t next = owner == worker ? word + (static_cast<uint64_t>(taken) << 16) : word - static_cast<uint64_t>(taken);
      if (!run.compare_exchange_weak(word, next, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      if (result_.load(std::memory_order_relaxed) != 0) return taken;  // the rest is not run
      if (owner != worker) first = last - taken;
      Stretch whole = part_of(blocks_of(n, grain), runs, owner);
      int64_t pieces = pieces_of(whole.count);
      Stretch begin = part_of(whole.count, pieces, first), end = part_of(whole.count, pieces, first + taken - 1);
      int64_t from = whole.first + begin.first, to = whole.first + end.first + end.count;
      current_worker = worker;
      FloatingPointScope computes(context->flush_subnormals != 0);  // the caller's settings are not the thread's
      int32_t result = body(context, env, from * grain, std::min(n, to * grain), worker);
      current_worker = -1;
      int32_t none = 0;
      if (result != 0) result_.compare_exchange_strong(none, result, std::memory_order_relaxed);
      return taken;
    }
  }

  std::atomic<bool> busy_{false};
  // Guarded by busy_: the threads, the CPU that they were last kept off, and how many were.
  int64_t threads_ = 0;
  std::array<pthread_t, max_threads> handles_{};
  int avoided_ = -1;
  int64_t placed_ = 0;
  int64_t since_ = 0;  // regions since
  Waking waking_;
  RegionTrials trials_;
  std::array<Run, max_threads> runs_;
  // What a thread needs to begin is one line, written by the caller alone: it comes with the generation that the thread waits for.
  // (With the fields in a line of their own a region takes a fifth longer to begin and end.)
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<int32_t> result_{0};
  std::atomic<relay_kernel_context*> context_{nullptr};
  std::atomic<relay_parallel_body> body_{nullptr};
  std::atomic<void*> env_{nullptr};
  std::atomic<int64_t> n_{0}, grain_{1}, workers_{0}, shared_out_{1};
  alignas(64) std::atomic<uint64_t> done_{0};  // pieces by others than the caller, of all regions
  alignas(64) std::atomic<int32_t> sleepers_{0};
};

Pool& pool() {
  static Pool* made = [] {
    static Pool* pool;
    pool = new Pool;
    // The child has none of the threads, and perhaps half a region: it begins anew in the same place.
    pthread_atfork(nullptr, nullptr, [] {
      new (pool) Pool;
      current_worker = -1;
    });
    return pool;
  }();
  return *made;
}

}  // namespace

int32_t parallel_for(relay_kernel_context* context, relay_parallel_body body, void* env, int64_t n, int64_t grain) {
  return parallel_for(context, body, env, n, grain, reinterpret_cast<const void*>(body));
}

int32_t parallel_for(relay_kernel_context* context, relay_parallel_body body, void* env, int64_t n, int64_t grain, const void* what) {
  if (n <= 0) return 0;
  grain = std::max<int64_t>(grain, 1);
  if (current_worker >= 0) return body(context, env, 0, n, current_worker);  // nested: this worker's own slice
  int64_t workers = std::min(context->num_workers, max_threads);
  if (workers <= 1 || n <= grain) return body(context, env, 0, n, 0);
  Pool& p = pool();
  if (!p.try_lock()) return body(context, env, 0, n, 0);
  RegionTrials::Way way = p.way(what, n, workers);
  if (way.alone && !way.measured) {
    p.unlock();
    return body(context, env, 0, n, 0);
  }
  int32_t result = way.alone ? p.run_alone(context, body, env, n) : p.run(context, body, env, n, grain, workers, way);
  p.unlock();
  return result;
}

}  // namespace relay
