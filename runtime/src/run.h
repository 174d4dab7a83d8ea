// One run of a program: its control stack, its cancellation, its calls of kernels and closures. What each instruction
// means is instructions.h; the dispatch loop is vm.cc, the way into native code native.cc.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "control_stack.h"
#include "memory_check.h"
#include "operations.h"
#include "routine_check.h"
#include "relay/clock.h"
#include "relay/cycles.h"
#include "relay/device.h"
#include "relay/error.h"
#include "relay/native.h"
#include "relay/opcode.h"
#include "relay/thread_pool.h"
#include "relay/vm.h"

namespace relay {

class Run : public RunState {
 public:
  Run(const Executable& executable, uint32_t function, const RunOptions& options);
  ~Run() {
    stack_.used_up_to(highest);
    if (recorder_ != nullptr) exe_.profile.take(*recorder_, now_ns());
  }

  // Runs the function by the dispatch loop; `observed`: the options name an observer.
  template <bool observed>
  Value execute(const Function& function, Value* arguments, uint32_t count);

  // Runs the function's native code.
  Value execute_native(uint32_t function, Value* arguments, uint32_t count);

  // --- instructions: those after which the next one runs (instructions.h) ---
#define OP(name, operands, text) [[gnu::always_inline]] void name(Value* r, const int32_t* pc);
#define CONTROL(name, operands, text)
#include "../opcodes.def"

  // --- frames ---

  // A frame for the function; its registers are all nil but the first `arity`, which the caller fills.
  Value* push(const Function* function, const int32_t* resume, NativeCode resume_code, Value* caller, int32_t result) {
    size_t bytes = sizeof(Frame) + function->registers * sizeof(Value);
    uint32_t depth = caller == nullptr ? 0 : frame_of(caller)->depth + 1;
    if (top > limit || static_cast<size_t>(limit - top) < bytes || depth > most_depth) [[unlikely]]
      overflow(function, depth);
    auto* frame = reinterpret_cast<Frame*>(top);
    *frame = {function, resume, resume_code, caller, result, depth};
    auto* fresh = reinterpret_cast<Value*>(frame + 1);
    std::memset(static_cast<void*>(fresh), 0, function->registers * sizeof(Value));
    top += bytes;
    if (top > highest) highest = top;
    return fresh;
  }

  // Replaces the newest frame by one of the function on the values gathered above the stack's top; returns its
  // registers. On failure the frame is gone: *r is the caller's, *pc where it calls.
  Value* replace(const Function* function, Value* gathered, Value** r, const int32_t** pc);

  static Frame* frame_of(Value* registers) { return reinterpret_cast<Frame*>(registers) - 1; }
  static const Frame* frame_of(const Value* registers) { return reinterpret_cast<const Frame*>(registers) - 1; }

  // Releases the newest frame.
  void pop(Value* registers) {
    Frame* frame = frame_of(registers);
    for (Value *v = registers, *end = registers + frame->function->registers; v != end; ++v)
      if (v->kind == Kind::object) release(v->object);
    top = reinterpret_cast<std::byte*>(frame);
  }

  [[noreturn, gnu::cold]] void overflow(const Function* function, uint32_t depth);

  // After a failure: releases all frames, and throws the exception in flight as an Error that says where it was.
  [[noreturn, gnu::cold]] void unwind(Value* r, const int32_t* pc);
  [[noreturn, gnu::cold]] void unwind(Value* r, const int32_t* pc, Status status, std::string message);

  // --- cancellation: what may take long pays a little of a budget, and when it is used up the clock is read ---

  // A kernel may take any time: sixteen of them use up the largest budget.
  static constexpr int64_t most_allowance = 1 << 16, kernel_cost = most_allowance / 16;
  // A routine takes as long as its operands are large: one of so many elements uses up the largest budget, but for those that take
  // no longer than a kernel.
  static constexpr int64_t routine_cost = 16, element_allowance = 1 << 13;

  bool flushes_subnormals() const { return context_.flush_subnormals != 0; }

  void poll(int64_t cost = 1) {
    if ((budget -= cost) <= 0) [[unlikely]]
      poll_now();
  }

  [[gnu::cold]] void poll_now();

  // --- calls through closures ---

  // Checks that the closure can be called with n arguments here.
  Closure* callable(const Value& v, int32_t n) const {
    Closure* closure = as_closure(v);
    if (closure == nullptr) fail(Status::failed, "expected a closure and got %s", describe(v).c_str());
    if (closure->executable != exe_.id)
      fail(Status::failed, "a closure can only be called by the executable that made it");
    const Function& function = exe_.functions[closure->function];
    if (closure->size + static_cast<uint32_t>(n) != function.arity)
      fail(Status::failed, "a closure of %s takes %u arguments and got %d", function.name.c_str(),
           function.arity - closure->size, n);
    return closure;
  }

  // The closure's captured values and then the listed registers, with a reference each.
  static void gather(const Closure* closure, const Value* r, const int32_t* list, int32_t n, Value* out) {
    for (uint32_t i = 0; i < closure->size; ++i) {
      *out = const_cast<Closure*>(closure)->captured()[i];
      retain(*out++);
    }
    for (int32_t i = 0; i < n; ++i) {
      *out = r[list[i]];
      retain(*out++);
    }
  }

  // Releases the registers of a counted list.
  static void kill_list(Value* r, const int32_t* list) {
    for (int32_t i = 1; i <= *list; ++i) release(std::exchange(r[list[i]], Value{}));
  }

  // `operands`: the words after the opcode.
  void invoke_kernel(const int32_t* operands, Value* registers);

  // The same call by the memory checker.
  [[gnu::cold]] int32_t check_kernel(const Kernel& kernel, relay_kernel code, const Value* registers, const int32_t* buffer_list,
                                     const Workspace& workspace, void** buffers, const int64_t* dims);

  void observe_after(Value* registers, const int32_t* pc);

  const Executable& exe_;
  const RunOptions& options_;
  ControlStack stack_;
  int64_t allowance_ = kernel_cost;
  int64_t last_poll_ = 0, last_asked_ = 0, deadline_ = 0;
  bool first_poll_ = true;
  relay_kernel_context context_;
  std::unique_ptr<Recorder> recorder_;      // while profiling is on
  std::unique_ptr<MemoryChecker> checker_;  // while memory is checked
  RefList refs_;
  int64_t dims_[max_rank];
  std::exception_ptr failure_;  // of native code, until its frames are released
};

Place place_of(const Value* registers, const int32_t* pc);

}  // namespace relay
