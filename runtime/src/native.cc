// Native code of functions: the way in, and what it calls (native.h).
#include "relay/native.h"

#include <cstddef>
#include <cstring>
#include <string_view>

#include "instructions.h"

namespace relay {

namespace {

Run& of(RunState* state) { return *static_cast<Run*>(state); }

// The exception in flight ends the run: where it was is noted, and what it says until the frames are released.
[[gnu::cold]] int32_t failed(RunState* state, Value* r, const int32_t* pc) {
  state->registers = r;
  state->pc = pc;
  of(state).failure_ = std::current_exception();
  return 1;
}

}  // namespace

extern "C" {

// Each straight instruction: 0, or 1 when the run has failed.
#define OP(name, operands, text)                                                            \
  RELAY_API int32_t relay_native_##name(RunState* state, Value* r, const int32_t* pc) {     \
    try {                                                                                   \
      of(state).name(r, pc);                                                                \
      if (of(state).options_.observer != nullptr) [[unlikely]] of(state).observe_after(r, pc); \
      return 0;                                                                             \
    } catch (...) {                                                                         \
      return failed(state, r, pc);                                                          \
    }                                                                                       \
  }
#define CONTROL(name, operands, text)
#include "../opcodes.def"

// The polling budget is used up.
RELAY_API int32_t relay_native_poll(RunState* state, Value* r, const int32_t* pc) {
  try {
    of(state).poll_now();
    return 0;
  } catch (...) {
    return failed(state, r, pc);
  }
}

// There is no room for a frame of the function, or too many calls are open. Always 1. Without registers the frame that
// called is gone: the failure is its caller's.
RELAY_API int32_t relay_native_overflow(RunState* state, Value* r, const int32_t* pc, int32_t function) {
  try {
    of(state).overflow(state->functions[function].function, Run::frame_of(r)->depth + 1);
  } catch (...) {
    return failed(state, r, pc);
  }
}

// The other of a tail call, which has taken this frame's place.
RELAY_API int32_t relay_native_replace(RunState* state, Value* r, const int32_t* pc, int32_t function) {
  try {
    const Function* callee = state->functions[function].function;
    auto* gathered = reinterpret_cast<Value*>(state->top);
    const int32_t* list = pc + 3;
    for (int32_t i = 0; i < pc[2]; ++i) gathered[i] = instruction::get(r[list[i]]);
    state->registers = of(state).replace(callee, gathered, &r, &pc);
    return 0;
  } catch (...) {
    return failed(state, r, pc);
  }
}

// A call of a closure: the new frame's registers are in the run, and so is the code to go to.
RELAY_API int32_t relay_native_InvokeClosure(RunState* state, Value* r, const int32_t* pc, NativeCode resume) {
  try {
    of(state).poll();
    int32_t n = pc[3];
    Closure* closure = of(state).callable(r[pc[2]], n);
    const NativeFunction& callee = state->functions[closure->function];
    const int32_t* dead = pc + 4 + n;
    Value* fresh = of(state).push(callee.function, dead + 1 + *dead, resume, r, pc[1]);
    Run::gather(closure, r, pc + 4, n, fresh);
    state->code = callee.entry;
    Run::kill_list(r, dead);  // the closure may be among them
    state->registers = fresh;
    return 0;
  } catch (...) {
    return failed(state, r, pc);
  }
}
RELAY_API int32_t relay_native_TailInvokeClosure(RunState* state, Value* r, const int32_t* pc) {
  try {
    of(state).poll();
    int32_t n = pc[2];
    Closure* closure = of(state).callable(r[pc[1]], n);
    const NativeFunction& callee = state->functions[closure->function];
    auto* gathered = reinterpret_cast<Value*>(state->top);
    Run::gather(closure, r, pc + 3, n, gathered);
    state->registers = of(state).replace(callee.function, gathered, &r, &pc);
    state->code = callee.entry;
    return 0;
  } catch (...) {
    return failed(state, r, pc);
  }
}

// The boolean that an If looks at (1 or 0), or the number that a Switch does, when the register is not known to hold an
// unboxed one; -1 when the run has failed.
RELAY_API int32_t relay_native_If(RunState* state, Value* r, const int32_t* pc) {
  try {
    return to_bool(r[pc[1]]);
  } catch (...) {
    return failed(state, r, pc), -1;
  }
}
RELAY_API int32_t relay_native_Switch(RunState* state, Value* r, const int32_t* pc) {
  try {
    int64_t choice = to_int64(r[pc[1]]);
    if (choice < 0 || choice >= pc[2])
      fail(Status::failed, "no case for %lld: there are %d", static_cast<long long>(choice), pc[2]);
    return static_cast<int32_t>(choice);
  } catch (...) {
    return failed(state, r, pc), -1;
  }
}

RELAY_API void relay_native_destroy(Object* object) { destroy(object); }
RELAY_API void relay_native_retain(Object* object) { retain_flagged(object); }
RELAY_API void relay_native_release(Object* object) { release_flagged(object); }

}  // extern "C"

std::vector<std::pair<const char*, int64_t>> native_layout() {
#define FIELD(type, field) {#type "." #field, static_cast<int64_t>(offsetof(type, field))}
  Adt adt(0, 0);
  auto in_adt = [&adt](const void* part) {
    return static_cast<int64_t>(static_cast<const std::byte*>(part) - reinterpret_cast<const std::byte*>(&adt));
  };
  return {
      {"version", native_version},
      {"Frame", sizeof(Frame)},
      FIELD(Frame, function),
      FIELD(Frame, resume),
      FIELD(Frame, code),
      FIELD(Frame, registers),
      FIELD(Frame, result),
      FIELD(Frame, depth),
      FIELD(RunState, top),
      FIELD(RunState, limit),
      FIELD(RunState, highest),
      FIELD(RunState, budget),
      FIELD(RunState, functions),
      FIELD(RunState, code),
      FIELD(RunState, result),
      FIELD(RunState, registers),
      FIELD(RunState, most_depth),
      {"NativeFunction", sizeof(NativeFunction)},
      FIELD(NativeFunction, function),
      FIELD(NativeFunction, code),
      FIELD(NativeFunction, entry),
      {"Value", sizeof(Value)},
      FIELD(Value, dtype),
      FIELD(Value, bits),
      {"Value.scalar", static_cast<int64_t>(Kind::scalar)},
      {"Value.object", static_cast<int64_t>(Kind::object)},
      {"Object.count", in_adt(&adt.count)},
      {"Object.type", in_adt(&adt.type)},
      {"Object.flags", in_adt(&adt.flags)},
      {"Adt", static_cast<int64_t>(ObjectType::adt)},
      {"Adt.tag", in_adt(&adt.tag)},
      {"Adt.size", in_adt(&adt.size)},
      {"Adt.fields", in_adt(adt.fields())},
  };
#undef FIELD
}

void* native_runtime_function(const char* name) {
  struct Entry {
    std::string_view name;
    void* address;
  };
#define ENTRY(name) {"relay_native_" #name, reinterpret_cast<void*>(&relay_native_##name)},
  static const Entry table[] = {
#define OP(name, operands, text) ENTRY(name)
#define CONTROL(name, operands, text)
#include "../opcodes.def"
      ENTRY(poll) ENTRY(overflow) ENTRY(replace) ENTRY(InvokeClosure) ENTRY(TailInvokeClosure) ENTRY(If) ENTRY(Switch)
          ENTRY(destroy) ENTRY(retain) ENTRY(release)};
#undef ENTRY
  for (const Entry& entry : table)
    if (entry.name == name) return entry.address;
  return nullptr;
}

Value Run::execute_native(uint32_t function, Value* arguments, uint32_t count) {
  const NativeFunction& entry = exe_.native[function];
  Value* r = push(entry.function, nullptr, nullptr, nullptr, 0);
  for (uint32_t i = 0; i < count; ++i) r[i] = std::exchange(arguments[i], Value{});
  if (entry.entry(this, r) != 0) {
    try {
      std::rethrow_exception(std::exchange(failure_, nullptr));
    } catch (...) {
      unwind(registers, pc);
    }
  }
  Owned kept(result);
  share(kept.slot());
  refs_.collect();
  return kept.take();
}

}  // namespace relay
