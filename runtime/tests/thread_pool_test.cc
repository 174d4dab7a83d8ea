// Parallel regions: every index once, whoever runs it; nesting, contention, failures, forks.
#include "relay/processors.h"
#include "relay/thread_pool.h"
#include "region_trials.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "test.h"

using namespace relay;

static relay_kernel_context context(int64_t workers) {
  return relay_kernel_context{parallel_for, nullptr, workers, nullptr, nullptr, 0, 0};
}

struct Marks {
  std::vector<std::atomic<int>> times;
  int64_t grain;
  std::atomic<int64_t> most_worker{0};
  Marks(size_t n, int64_t grain) : times(n), grain(grain) {}
};

static int32_t mark(relay_kernel_context*, void* env, int64_t begin, int64_t end, int64_t worker) {
  auto* marks = static_cast<Marks*>(env);
  CHECK(begin % marks->grain == 0 && begin < end);
  for (int64_t i = begin; i < end; ++i) marks->times[static_cast<size_t>(i)]++;
  int64_t most = marks->most_worker.load();
  while (worker > most && !marks->most_worker.compare_exchange_weak(most, worker)) {
  }
  return 0;
}

TEST(every_index_runs_once) {
  for (int64_t workers : {1, 2, 3, 8})
    for (int64_t n : {0, 1, 7, 64, 1000, 5003})
      for (int64_t grain : {1, 8, 33}) {
        Marks marks(static_cast<size_t>(n), grain);
        auto ctx = context(workers);
        CHECK(parallel_for(&ctx, mark, &marks, n, grain) == 0);
        for (auto& times : marks.times) CHECK(times == 1);
        CHECK(marks.most_worker < workers);
      }
}

TEST(many_regions_in_a_row) {
  auto ctx = context(3);
  for (int round = 0; round < 3000; ++round) {
    Marks marks(50, 1);
    CHECK(parallel_for(&ctx, mark, &marks, 50, 1) == 0);
    for (auto& times : marks.times) CHECK(times == 1);
  }
}

// A piece takes so many microseconds.
static int32_t mark_slowly(relay_kernel_context* ctx, void* env, int64_t begin, int64_t end, int64_t worker) {
  auto until = std::chrono::steady_clock::now() + (end - begin) * std::chrono::microseconds(10);
  while (std::chrono::steady_clock::now() < until) {
  }
  return mark(ctx, env, begin, end, worker);
}

TEST(regions_after_pauses) {
  // Threads sleep after the long pauses: what is short is begun, and often ended, by the caller alone; bursts are told by their past.
  auto ctx = context(3);
  for (int round = 0; round < 40; ++round)
    for (int64_t n : {2, 5, 60}) {
      std::this_thread::sleep_for(std::chrono::microseconds(round % 4 * 300));
      for (int burst = 0; burst < round % 5 + 1; ++burst) {
        Marks marks(static_cast<size_t>(n), 1);
        CHECK(parallel_for(&ctx, round % 2 ? mark : mark_slowly, &marks, n, 1) == 0);
        for (auto& times : marks.times) CHECK(times == 1);
        CHECK(marks.most_worker < 3);
      }
    }
}

static int32_t nest(relay_kernel_context* ctx, void* env, int64_t begin, int64_t end, int64_t worker) {
  struct Inner {
    Marks* marks;
    int64_t outer, worker;
  };
  for (int64_t i = begin; i < end; ++i) {
    Inner inner{static_cast<Marks*>(env), i, worker};
    auto body = [](relay_kernel_context*, void* e, int64_t from, int64_t to, int64_t w) -> int32_t {
      auto* in = static_cast<Inner*>(e);
      CHECK(w == in->worker);  // inline: the same slice of the workspace
      for (int64_t j = from; j < to; ++j) in->marks->times[static_cast<size_t>(in->outer * 10 + j)]++;
      return 0;
    };
    if (int32_t result = ctx->parallel_for(ctx, body, &inner, 10, 1)) return result;
  }
  return 0;
}

TEST(nested_regions_run_inline) {
  Marks marks(100, 1);
  auto ctx = context(4);
  CHECK(parallel_for(&ctx, nest, &marks, 10, 1) == 0);
  for (auto& times : marks.times) CHECK(times == 1);
}

TEST(contended_regions_run_inline) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      auto ctx = context(2);
      for (int round = 0; round < 300; ++round) {
        Marks marks(40, 4);
        CHECK(parallel_for(&ctx, mark, &marks, 40, 4) == 0);
        for (auto& times : marks.times) CHECK(times == 1);
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST(a_late_thread_is_not_waited_for) {
  // Whoever has the first index holds on to it until all others are done: they must be taken from its run. Threads that sleep, as they do
  // where this one was not run for a while, are not woken for so little: the caller has all indexes then, and it is tried again.
  struct Env {
    Marks marks{32, 1};
    std::atomic<int> others{0};
    std::atomic<bool> given_up{false};
  };
  auto body = [](relay_kernel_context*, void* e, int64_t begin, int64_t end, int64_t) -> int32_t {
    auto* env = static_cast<Env*>(e);
    for (int64_t i = begin; i < end; ++i) env->marks.times[static_cast<size_t>(i)]++;
    env->others += static_cast<int>(end - begin) - (begin == 0);
    auto late = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (begin == 0 && env->others != 31 && !env->given_up) {
      std::this_thread::yield();
      env->given_up = end > 1 || std::chrono::steady_clock::now() > late;
    }
    if (begin == 0 && end > 1) env->given_up = true;
    return 0;
  };
  auto ctx = context(2);
  bool taken = false;
  for (int attempt = 0; attempt < 20 && !taken; ++attempt) {
    Marks before(100000, 1);
    CHECK(parallel_for(&ctx, mark, &before, 100000, 1) == 0);
    Env env;
    CHECK(parallel_for(&ctx, body, &env, 32, 1) == 0);
    for (auto& times : env.marks.times) CHECK(times == 1);
    taken = !env.given_up;
  }
  CHECK(taken);
}

// A region whose indexes take the caller a microsecond each, and others as many as `factor` says.
struct Uneven {
  int factor;
  std::atomic<int> by_others{0};
};
static int32_t unevenly(relay_kernel_context*, void* env, int64_t begin, int64_t end, int64_t worker) {
  auto* uneven = static_cast<Uneven*>(env);
  int factor = worker == 0 ? 1 : uneven->factor;
  auto until = std::chrono::steady_clock::now() + (end - begin) * factor * std::chrono::nanoseconds(1000);
  while (std::chrono::steady_clock::now() < until) {
  }
  if (worker != 0) uneven->by_others++;
  return 0;
}

TEST(small_regions_run_where_they_take_less_time) {
  // But for the trials, and for what is decided while other processes have the processors: so it is tried again.
  auto ctx = context(2);
  bool alone = false;
  for (int attempt = 0; attempt < 20 && !alone; ++attempt) {
    Uneven costs{20};
    for (int call = 0; call < 1000; ++call) CHECK(parallel_for(&ctx, unevenly, &costs, 2, 1) == 0);
    alone = costs.by_others < 100;
  }
  CHECK(alone);
}

TEST(trials_of_regions) {
  using Trials = RegionTrials;
  int what = 0;
  // What a region takes: shared, alone. What was chosen for so many calls, threads being awake or not.
  auto chosen = [&](Trials& trials, int64_t n, int64_t shared, int64_t alone, int calls, bool awake = true) {
    int by_itself = 0;
    for (int call = 0; call < calls; ++call) {
      Trials::Way way = trials.next(&what, n, 2, awake);
      by_itself += way.alone;
      if (way.measured) way.alone ? trials.took_alone(alone) : trials.took_shared(shared, 2 * alone);
    }
    return by_itself;
  };
  Trials trials;
  CHECK(chosen(trials, 1, 1400, 2300, 1000) < 20);
  CHECK(chosen(trials, 2, 2400, 2300, 1000) > 980);
  CHECK(chosen(trials, 2, 20'000, 2300, 1000) > 980);
  CHECK(chosen(trials, 2, 1400, 2300, 2000) < 500);  // what was found does not stay
  CHECK(chosen(trials, 3, 9'000, 8'000, 1000) == 0);  // large ones are not tried alone
  CHECK(chosen(trials, 4, 1400, 2300, 1000, false) == 0);
  // Found in a bad moment, after which all threads sleep: they are woken in the end, and it is found again.
  CHECK(chosen(trials, 5, 2400, 2300, 100) > 90);
  int calls = 0;
  while (!trials.next(&what, 5, 2, false).wakes && calls < 10'000) ++calls;
  CHECK(calls > 1000 && calls < 10'000);
  CHECK(chosen(trials, 5, 1400, 2300, 1000) < 20);
  for (int64_t n = 10; n < 2000; ++n) chosen(trials, n, 2400, 2300, 6);  // more than are remembered
  CHECK(chosen(trials, 2, 2400, 2300, 1000) > 980);
}

TEST(a_failure_is_reported) {
  auto body = [](relay_kernel_context*, void*, int64_t begin, int64_t, int64_t) -> int32_t {
    return begin == 0 ? 7 : 0;
  };
  auto ctx = context(4);
  CHECK(parallel_for(&ctx, body, nullptr, 100, 1) == 7);
  Marks marks(10, 1);
  CHECK(parallel_for(&ctx, mark, &marks, 10, 1) == 0);
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow a process that forks with threads
TEST(a_forked_child_makes_its_own_threads) {
  auto ctx = context(3);
  Marks before(100, 1);
  parallel_for(&ctx, mark, &before, 100, 1);
  pid_t child = fork();
  Marks marks(100, 1);
  bool ok = parallel_for(&ctx, mark, &marks, 100, 1) == 0 &&
            std::all_of(marks.times.begin(), marks.times.end(), [](auto& times) { return times == 1; });
  if (child == 0) _exit(ok ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(ok && status == 0);
}
#endif

TEST(there_is_at_least_one_thread) { CHECK(available_threads() >= 1 && available_threads() <= max_threads); }

TEST(processors_that_share_a_core_are_known) {
  namespace fs = std::filesystem;
  fs::path folder = fs::temp_directory_path() / ("relay_processors_" + std::to_string(getpid()));
  const char* lists[] = {"0,2", "1", "0,2", nullptr, "4-5", "4-5"};
  for (int i = 0; i < 6; ++i) {
    fs::path where = folder / ("cpu" + std::to_string(i)) / "topology";
    fs::create_directories(where);
    if (lists[i] != nullptr) std::ofstream(where / "thread_siblings_list") << lists[i] << "\n";
  }
  CHECK((cores_of(7, folder.string()) == std::vector<int>{0, 1, 0, 3, 4, 4, 6}));
  fs::remove_all(folder);
}
