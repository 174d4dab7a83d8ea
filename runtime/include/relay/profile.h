// What happens while profiling is on: whole runs, the calls of kernels in them with their sizes, and the pieces of parallel
// regions that each thread runs for a kernel.
//
// A run notes its own events without locks, in memory of its own, and hands them to the executable's profile when it
// ends. Where profiling is off a run has no recorder, and nothing is looked at but that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "relay/kernel.h"

namespace relay {

enum class EventKind : int32_t { run = 0, call = 1, piece = 2 };

struct Event {
  EventKind kind;
  int32_t kernel;      // its number; of a run: the function's
  int32_t worker;      // of a piece: the participant that ran it; else 0
  int32_t run;         // which run of the profile
  int64_t begin, end;  // nanoseconds of the clock now_ns
  int64_t sizes;       // of a call: where its sizes begin in the profile's; else 0
};
static_assert(sizeof(Event) == 40);

// The events of one run, while it lasts.
class Recorder {
 public:
  Recorder(uint32_t function, int64_t workers, int64_t begin);

  // A call of a kernel begins: pieces from here on are its.
  void enter(int32_t kernel) { kernel_ = kernel; }
  void leave(int64_t begin, int64_t end, const int64_t* sizes, uint32_t count);

  // In place of the context's parallel_for: the same, with its pieces noted. `self` finds the recorder of a context.
  static int32_t parallel_for(Recorder* self, relay_kernel_context* context, relay_parallel_body body, void* env,
                              int64_t n, int64_t grain);

 private:
  friend class Profile;
  // A thread's own pieces, away from others' cache lines.
  struct alignas(64) Lane {
    std::vector<Event> events;
    uint64_t dropped = 0;
  };
  static void note(Lane& lane, const Event& event) noexcept;

  Event run_;
  int32_t kernel_ = -1;
  Lane calls_;
  std::vector<int64_t> sizes_;
  std::vector<Lane> pieces_;  // by participant
};

// The events of the runs of an executable.
class Profile {
 public:
  static constexpr size_t most_events = size_t{1} << 20;

  // Takes over what a run has noted. What would exceed the most events is counted only.
  void take(Recorder& recorder, int64_t end) noexcept;
  void clear();
  // Copies of the events and sizes; how many events were left out.
  uint64_t copy(std::vector<Event>* events, std::vector<int64_t>* sizes) const;

 private:
  void take_lane(const Recorder::Lane& lane, int32_t run, int64_t sizes_before);

  mutable std::mutex mutex_;
  std::vector<Event> events_;
  std::vector<int64_t> sizes_;
  uint64_t dropped_ = 0;
  int32_t runs_ = 0;
};

}  // namespace relay
