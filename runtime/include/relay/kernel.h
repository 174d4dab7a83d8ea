/* The kernel ABI: what compiled kernels and the runtime agree on. Plain C, no other header needed than stdint.
 *
 * A kernel is self-contained native code. It allocates nothing, calls nothing but memcpy, memmove, memset and the
 * functions of its context, and reports failure by a non-zero result. */
#ifndef RELAY_KERNEL_H
#define RELAY_KERNEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct relay_kernel_context relay_kernel_context;

/* One piece of a parallel region: indices [begin, end), run as participant `worker` (0 <= worker < num_workers), which
 * names the slice of the workspace that belongs to this piece while it runs. Non-zero: failed. */
typedef int32_t (*relay_parallel_body)(relay_kernel_context* context, void* env, int64_t begin, int64_t end,
                                       int64_t worker);

/* The offsets 0, 8, 16, 24, 32, 40 are part of the ABI. */
struct relay_kernel_context {
  /* Splits [0, n) into pieces whose bounds are multiples of grain (the last may be short), runs body on each, and
   * returns when all are done: 0, or the first non-zero result. Nested and contended regions run inline. */
  int32_t (*parallel_for)(relay_kernel_context* context, relay_parallel_body body, void* env, int64_t n, int64_t grain);
  void* workspace;     /* planned workspace: the shared bytes, then num_workers slices of per-worker bytes; or null */
  int64_t num_workers; /* how many threads may take part */
  void* stream;        /* the device's queue; null on the host */
  void* runtime;       /* the runtime's own; kernels pass it on and never look inside */
  int64_t turn;        /* for kernels that ask for it, 0 and 1 from call to call: which way to go through what they read */
  int64_t flush_subnormals; /* not 0: threads that take part take subnormal numbers for zero */
};

/* buffers: one pointer per operand of the descriptor, inputs first, outputs last. dims: the symbolic sizes. */
typedef int32_t (*relay_kernel)(relay_kernel_context* context, void** buffers, const int64_t* dims);

#ifdef __cplusplus
}
#endif

#endif
