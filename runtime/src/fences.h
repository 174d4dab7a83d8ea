// Memory between pages that nobody may touch, and calls that are told when they touched one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <setjmp.h>
#include <utility>

namespace relay {

class Fenced {
 public:
  Fenced() = default;
  explicit Fenced(int64_t bytes);  // rounded up to whole pages; Error(out_of_memory) where there is none
  ~Fenced();
  Fenced(Fenced&& other) noexcept : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Fenced& operator=(Fenced&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // Whether there is room for so many bytes in as few pages.
  bool fits(int64_t bytes) const;
  // Where so many bytes begin: at the first page, or so that they end (but for their alignment) where the last one does.
  std::byte* place(int64_t bytes, uint32_t alignment, bool at_end) const;
  // Where the pages around it begin and end.
  const std::byte* first() const;
  const std::byte* end() const;

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

// From its making on, a fault of this thread goes back to where `back` was set, and `touched` says at what address it was. What the
// frames between held is lost.
class FaultCatcher {
 public:
  FaultCatcher();
  ~FaultCatcher();
  FaultCatcher(const FaultCatcher&) = delete;

  sigjmp_buf back;
  const void* volatile touched = nullptr;
};

// The address that a call touched and must not have, or null. What the call holds then is lost: its memory, and nothing else may be.
template <class F>
[[gnu::noinline]] const void* touched_by(F&& call) {
  FaultCatcher catcher;
  if (sigsetjmp(catcher.back, 1) == 0) call();
  return catcher.touched;
}

// What is below on the stack, where a call's own memory will lie, is filled with a byte.
void fill_stack(int value);

}  // namespace relay
