// Native code of functions, and what it calls.
//
// `relay.aot` translates bytecode to code that keeps frames and registers exactly where the dispatch loop keeps them, on
// the run's control stack. A function is cut at its calls: each part gets the run and its registers, and ends by passing
// control on with a jump, to a function it calls or to the part of its caller that comes next. So the native stack never
// grows, whatever the program's depth, and a failing run is cleaned up from its frames. A part that cannot go on returns
// 1 with the error noted in the run; the last one returns 0 with the result noted.
//
// What is not worth inlining is called: relay_native_NAME is the meaning of instruction NAME, from the same source as the
// dispatch loop's. These names are resolved by the runtime when it loads an executable, or by the linker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "relay/c_api.h"
#include "relay/executable.h"
#include "relay/value.h"

namespace relay {

// The part of a run that native code knows by its offsets.
struct RunState {
  std::byte* top = nullptr;      // of the control stack: where the next frame goes
  std::byte* limit = nullptr;    // frames end before this
  std::byte* highest = nullptr;  // how far the stack has been in use
  int64_t budget = 64;           // of polling
  const NativeFunction* functions = nullptr;
  NativeCode code = nullptr;       // of the frame that the runtime has just made
  Value result;                    // of the program
  Value* registers = nullptr;      // where it failed
  const int32_t* pc = nullptr;     // and at which instruction
  uint32_t most_depth = UINT32_MAX;
};

// The address of a function that native code of programs may call, or null.
void* native_runtime_function(const char* name);

// What native code relies on, for the translator: sizes, offsets of fields ("Frame.code"), numbers of kinds.
std::vector<std::pair<const char*, int64_t>> native_layout();

// Raised when any of it changes.
inline constexpr uint32_t native_version = 3;

// What the object of a program defines: its functions' native code in the order of the bytecode's functions. Null when it
// was made for another version or number of functions.
using NativeTable = const void* (*)(uint32_t version, uint32_t functions);
inline constexpr char native_table_symbol[] = "relay_native_functions";

}  // namespace relay
