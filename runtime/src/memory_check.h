// Running kernels so that what they must not touch shows: for debugging, many times slower.
#pragma once

#include <cstdint>
#include <vector>

#include "fences.h"
#include "relay/executable.h"
#include "relay/kernel.h"

namespace relay {

// What one operand of a call, or its workspace, is.
struct CheckedBuffer {
  void* data;
  int64_t bytes;
  uint32_t alignment;
};

// A kernel runs twice, on copies of its operands: once where each copy ends at a page that nobody may touch, results and workspace filled
// with nan, and once where each begins behind such a page, filled with something else. An access outside is an error, and so is a
// result that differs: it was made of what nobody had written, or of where its operands lie. What neither run writes (the rest of
// results whose extents a kernel finds) may be anything. Parallel regions run on this thread, as pieces of all participants.
class MemoryChecker {
 public:
  // What the kernel returns. Throws Error(failed) that says what it touched, with the kernel as it was called: of `buffers` those from
  // `inputs` on are written.
  int32_t call(const Kernel& kernel, relay_kernel code, const relay_kernel_context& context, const std::vector<CheckedBuffer>& buffers,
               uint32_t inputs, int64_t workspace_bytes, const int64_t* dims);

 private:
  std::byte* room(size_t number, int64_t bytes, uint32_t alignment, bool at_end);

  std::vector<Fenced> areas_;
};

}  // namespace relay
