// Running a function of an executable to its result: by the dispatch loop of the virtual machine, or by the native code
// that the executable holds for its functions.
//
// A run belongs to one thread. Frames and registers live on a control stack of the runtime's own, reserved once and
// committed page by page as it grows, with one limit in bytes; program recursion never uses the C++ stack.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "relay/executable.h"
#include "relay/value.h"

namespace relay {

// What a run may use. 0: no limit of its own.
struct Limits {
  int64_t memory_bytes = 0;  // that the run may add to what is alive: tensors' storage and objects
  int64_t nanoseconds = 0;   // looked at between kernels and calls; one kernel is never cut short
  int64_t depth = 0;         // calls that are open at once; calls in tail position do not count
};

// One open call: the function, the word of its code that runs (for callers: inside the call), its registers.
struct Place {
  const Function* function;
  uint32_t word;
  const Value* registers;
  uint32_t depth;  // of the newest frame 1 + that of its caller; the first call is 0
};

// The open calls from this one on, newest first.
std::vector<Place> open_calls(const Place& newest);

// Looks on at a run, in its thread. What these functions throw ends the run.
class Observer {
 public:
  virtual ~Observer() = default;
  // Before every instruction. Only the dispatch loop calls this.
  virtual void before(const Place&) {}
  // After every instruction that is not a jump or call. Native code calls this for what it has not translated inline.
  virtual void after(const Place&) {}
};

struct RunOptions {
  int64_t threads = 0;                        // how many may take part in kernels; 0: all that are available
  const std::atomic<bool>* cancel = nullptr;  // becomes true from elsewhere: stop
  bool (*poll)(void* data) = nullptr;         // called every few milliseconds; true: stop
  void* poll_data = nullptr;
  bool brief = false;  // its runs are usually short: the clock is read later than at the first kernel, unless there is a time limit
  Limits limits;
  Observer* observer = nullptr;
  bool flush_subnormals = false;  // as the executable may say for all its runs
  bool interpret = false;  // use the dispatch loop though there is native code
};

// Runs a function on `count` arguments, whose references it takes over, also when it throws. The result is shared (see
// object.h) and belongs to the caller. Throws Error: failed, recursion_limit, out_of_memory, time_limit, interrupted;
// messages say in which function and, where the program has them, at which source span.
Value run(const Executable& executable, uint32_t function, Value* arguments, uint32_t count, const RunOptions& options);

}  // namespace relay
