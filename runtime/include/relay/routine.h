// Runtime routines: operators that no tensor expression can say. They allocate their own results.
//
// Each takes its tensors first and its attributes after them as scalars. Host tensors only. Comparison orders NaN last,
// like every other value in descending order: NaN then comes first. Sorting is stable.
//
//   append(x[n, ...], y[m, ...], dies)             -> like x[n + m, ...]   in the memory of x where there is room after it; y may be
//                                                     one row of one axis less; x itself where nobody reads it after this (dies)
//   unique(x[n])                                   -> x'[m]                sorted, each value once
//   nonzero(x[...])                                -> int64[rank, m]       indices of elements that are not zero
//   argwhere(x[...])                               -> int64[m, rank]       the same, one row per element
//   sort(x[...], axis, ascending)                  -> like x
//   argsort(x[...], axis, ascending, dtype)        -> dtype like x         dtype: the code of int32 or int64
//   topk(x[...], k, axis, ascending, dtype)        -> (values, indices)    the axis becomes min(k, its size), in order
//   non_max_suppression(boxes[n, 4], scores[n], iou_threshold, score_threshold, max_output)
//                                                  -> int64[m]             kept boxes, best score first; boxes are
//                                                     (y1, x1, y2, x2); max_output < 0: no limit. The storage is made
//                                                     for the bound n; the shape is the real extent.
//   rows.*                                         batching over structure: src/linearise.h
#pragma once

#include <cstdint>
#include <string_view>

#include "relay/kernel.h"
#include "relay/value.h"

namespace relay {

struct Routine {
  const char* name;
  uint32_t arguments;
  // Borrows the arguments; as many threads as the context has may take part. Throws Error.
  Value (*run)(const Value* arguments, relay_kernel_context* context);
  bool one_pass;  // goes once through what it reads and writes, or through nothing: it takes no longer than kernels do
};

// The routine of that name, or null.
const Routine* find_routine(std::string_view name);

inline constexpr uint32_t most_routine_arguments = 8;

}  // namespace relay
