// The virtual machine: runs a function of an executable to its result.
//
// A run belongs to one thread. Frames and registers live on a control stack of the runtime's own, reserved once and
// committed page by page as it grows, with one limit in bytes; program recursion never uses the C++ stack.
#pragma once

#include <atomic>
#include <cstdint>

#include "relay/executable.h"
#include "relay/value.h"

namespace relay {

struct RunOptions {
  int64_t threads = 0;                        // how many may take part in kernels; 0: all that are available
  const std::atomic<bool>* cancel = nullptr;  // becomes true from elsewhere: stop
  bool (*poll)(void* data) = nullptr;         // called every few milliseconds; true: stop
  void* poll_data = nullptr;
};

// Runs a function on `count` arguments, whose references it takes over, also when it throws. The result is shared (see
// object.h) and belongs to the caller. Throws Error: failed, recursion_limit, out_of_memory, interrupted; messages say
// in which function and, where the program has them, at which source span.
Value run(const Executable& executable, uint32_t function, Value* arguments, uint32_t count, const RunOptions& options);

}  // namespace relay
