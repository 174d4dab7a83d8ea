// Whether a small region of a kernel takes less time on several threads than on its caller alone. The work decides that, how far apart
// cores are, and what else the machine does: two cores that share a cache do 2 microseconds of work in 1.4, and need 4 while another
// guest of the machine has one of them. So it is tried: from time to time a region is measured both ways, and then runs the better
// way. Regions are told apart by their code and how many indexes they have. Nothing that they compute depends on it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace relay {

class RegionTrials {
 public:
  struct Way {
    bool alone;
    bool measured;  // `took_shared` or `took_alone` is to be told
    bool wakes;     // threads that sleep: they are needed for a trial
  };

  // How a region runs next: `what` it is, and for how many threads. `awake`: none of these sleeps. Asleep, they are seldom woken for a
  // trial: nobody else may wake them, and what was found in a bad moment would stay.
  Way next(const void* what, int64_t n, int64_t workers, bool awake) {
    Region& region = current(what, n, workers);
    if (region.calls > 0) {
      --region.calls;
      return {region.alone, false, false};
    }
    if (!awake) {
      bool wakes = region.alone && ++region.waited >= patience;
      if (wakes) region.waited = 0;
      return {region.alone && !wakes, false, wakes};
    }
    return {region.trials >= trials, true, false};
  }

  // The region that `next` was last asked of took so many nanoseconds; `work`: what all of it takes its caller, as far as the caller's own
  // part tells. (It does not tell enough: threads that have one core between them halve each other's speed.)
  void took_shared(int64_t time, int64_t work) {
    Region& region = *current_;
    region.shared = region.trials == 0 ? time : std::min(region.shared, time);
    region.work = region.trials == 0 ? work : std::min(region.work, work);
    if (++region.trials == trials && region.work > small) region.decide(false);
  }
  void took_alone(int64_t time) {
    Region& region = *current_;
    region.by_itself = region.trials == trials ? time : std::min(region.by_itself, time);
    // Threads that stay awake for little slow down what else the caller does, where they have one core between them.
    if (++region.trials == 2 * trials) region.decide(7 * region.by_itself <= 8 * region.shared);
  }

 private:
  static constexpr int32_t trials = 3;     // each way
  static constexpr int32_t between = 300;    // calls from one trial to the next
  static constexpr int32_t patience = 4000;  // calls more, after which threads that sleep are woken for it
  static constexpr int64_t small = 12'000;  // nanoseconds of work: what is more is worth sharing
  struct Region {
    const void* what = nullptr;
    int64_t n = 0, workers = 0, shared = 0, work = 0, by_itself = 0;
    int32_t calls = 0, trials = 0, waited = 0;  // left until it is tried, done, and calls that a trial waits for threads to be awake
    bool alone = false;

    void decide(bool is_alone) {
      alone = is_alone;
      trials = waited = 0;
      calls = between;
    }
  };

  Region& current(const void* what, int64_t n, int64_t workers) {
    uint64_t key = (reinterpret_cast<uintptr_t>(what) >> 4 ^ static_cast<uint64_t>(n) << 20 ^ static_cast<uint64_t>(workers) << 40) *
                   0x9e3779b97f4a7c15;
    current_ = &regions_[key >> 56];
    if (current_->what != what || current_->n != n || current_->workers != workers) {
      *current_ = Region{};
      current_->what = what, current_->n = n, current_->workers = workers;
    }
    return *current_;
  }

  std::array<Region, 256> regions_;
  Region* current_ = nullptr;
};

}  // namespace relay
