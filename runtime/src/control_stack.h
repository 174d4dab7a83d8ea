// The control stack: frames and registers of one run, in one reserved range that the system commits as it is touched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "relay/executable.h"

namespace relay {

struct Frame {
  const Function* function;
  const int32_t* resume;  // in the caller; null in the first frame
  NativeCode code;        // the same in native code
  Value* registers;       // the caller's
  int32_t result;         // the caller's register
  uint32_t depth;         // how many calls are open below
};
static_assert(sizeof(Frame) % alignof(Value) == 0);

class ControlStack {
 public:
  // Reserves (or reuses) a range of `limit` bytes; Error(out_of_memory) when the system refuses.
  explicit ControlStack(int64_t limit);
  ~ControlStack();
  ControlStack(const ControlStack&) = delete;

  std::byte* begin() const { return range_.base; }
  std::byte* end() const { return range_.base + range_.bytes; }
  void used_up_to(std::byte* top) {
    if (top > highest_) highest_ = top;
  }

  struct Range {
    std::byte* base;
    size_t bytes;
    size_t committed;  // from the base on, as far as runs have used it and it was not given back
  };

 private:
  Range range_;
  std::byte* highest_;
};

}  // namespace relay
