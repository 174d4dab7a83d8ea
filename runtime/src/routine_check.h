// Running routines so that what they must not touch shows: for debugging, many times slower.
#pragma once

#include "relay/kernel.h"
#include "relay/routine.h"
#include "relay/value.h"

namespace relay {

// What the routine returns. It runs twice, as memory_check.h says of kernels, on copies of the tensors among its arguments (what a data
// type holds stays where it is), with whatever it allocates on the host between pages that nobody may touch, and on this thread alone.
// Throws Error(failed) that says what it touched, or that it made its result of what nobody had written.
Value checked_routine(const Routine& routine, const Value* arguments, uint32_t count, const relay_kernel_context& context);

}  // namespace relay
