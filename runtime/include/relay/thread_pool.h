// The process's thread pool, for the parallel regions of kernels.
//
// A region's index range is cut at multiples of its grain into pieces; each participant goes through a run of neighbouring
// ones, and takes from the others' runs when its own is done. What a body computes for one grain never depends on the piece
// it is in, so results are the same for any number of threads and whichever thread runs a piece. The calling thread takes
// part, and never waits for a thread that has not begun. A region that starts inside another, or while another
// thread's region is in progress, runs inline on its caller. Threads spin for a short while when a region ends and then
// sleep; they are woken where that is repaid, and on the way kept off the caller's CPU. A small region runs on its caller alone where
// that takes less time. A forked child starts with no threads and makes its own.
#pragma once

#include <cstdint>

#include "relay/kernel.h"

namespace relay {

inline constexpr int64_t max_threads = 256;

// The context's parallel_for: up to context->num_workers threads take part.
int32_t parallel_for(relay_kernel_context* context, relay_parallel_body body, void* env, int64_t n, int64_t grain);
// The same of a region that another body than its own runs: `what` tells it from others.
int32_t parallel_for(relay_kernel_context* context, relay_parallel_body body, void* env, int64_t n, int64_t grain, const void* what);

}  // namespace relay
