// One run of a program: its control stack, its cancellation, its calls of kernels and closures. The dispatch loop
// (execute) is vm.cc.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "control_stack.h"
#include "operations.h"
#include "relay/cycles.h"
#include "relay/device.h"
#include "relay/error.h"
#include "relay/thread_pool.h"
#include "relay/vm.h"

namespace relay {

int64_t now_ns();  // of a clock that never goes back

class Run {
 public:
  Run(const Executable& executable, const RunOptions& options)
      : exe_(executable), options_(options), stack_(executable.stack_limit()) {
    top_ = stack_.begin();
    limit_ = stack_.end() - executable.scratch_bytes;
    context_.parallel_for = parallel_for;
    context_.workspace = nullptr;
    context_.num_workers = options.threads > 0 ? std::min(options.threads, max_threads) : available_threads();
    context_.stream = nullptr;
    context_.runtime = this;
  }

  Value execute(const Function& function, Value* arguments, uint32_t count);

 private:
  // --- frames ---

  // A frame for the function; its registers are all nil but the first `arity`, which the caller fills.
  Value* push(const Function* function, const int32_t* resume, Value* registers, int64_t result) {
    size_t bytes = sizeof(Frame) + function->registers * sizeof(Value);
    if (top_ > limit_ || static_cast<size_t>(limit_ - top_) < bytes) [[unlikely]]
      overflow(function);
    auto* frame = reinterpret_cast<Frame*>(top_);
    *frame = {function, resume, registers, result};
    auto* fresh = reinterpret_cast<Value*>(frame + 1);
    std::memset(static_cast<void*>(fresh), 0, function->registers * sizeof(Value));
    top_ += bytes;
    stack_.used_up_to(top_);
    return fresh;
  }

  static Frame* frame_of(Value* registers) { return reinterpret_cast<Frame*>(registers) - 1; }

  static void release_registers(Value* registers, uint32_t n) {
    for (Value *v = registers, *end = registers + n; v != end; ++v)
      if (v->kind == Kind::object) release(v->object);
  }

  // Releases the newest frame and returns to the one below.
  void pop(Value* registers) {
    Frame* frame = frame_of(registers);
    release_registers(registers, frame->function->registers);
    top_ = reinterpret_cast<std::byte*>(frame);
  }

  [[noreturn, gnu::cold]] void overflow(const Function* function);

  // --- cancellation: what may take long pays a little of a budget, and when it is used up the clock is read ---

  // A kernel may take any time: sixteen of them use up the largest budget.
  static constexpr int64_t most_allowance = 1 << 16, kernel_cost = most_allowance / 16;

  void poll(int64_t cost = 1) {
    if ((budget_ -= cost) <= 0) [[unlikely]]
      poll_now();
  }

  [[gnu::cold]] void poll_now();

  // --- kernels ---

  // Operands after the opcode: k, o, n, n buffers, m, m dims.
  void invoke_kernel(const int32_t* operands, Value* registers) {
    Kernel& kernel = *exe_.kernels[static_cast<size_t>(operands[0])];
    const int32_t* buffer_list = operands + 3;
    auto n = static_cast<uint32_t>(operands[2]);
    auto inputs = n - kernel.outputs;
    auto** buffers = reinterpret_cast<void**>(top_);
    auto* dims = reinterpret_cast<int64_t*>(buffers + n);
    uint32_t devices = 0;
    const KernelOperand* operand = kernel.operands.data();
    for (uint32_t i = 0; i < n; ++i, ++operand) {
      Value& v = registers[buffer_list[i]];
      Tensor* tensor = as_tensor(v);
      if (tensor != nullptr && tensor->dtype == operand->dtype && tensor->rank == operand->rank &&
          tensor->storage->device == host_device && !(i >= inputs && tensor->storage->read_only) &&
          !(reinterpret_cast<uintptr_t>(tensor->data()) & (operand->alignment - 1u))) [[likely]] {
        buffers[i] = tensor->data();
        devices |= 1u << host_device;
      } else {
        buffers[i] = odd_buffer(kernel, i, v, &devices);
      }
    }
    const int32_t* dim_list = buffer_list + n + 1;
    read_dims(registers, dim_list, dim_list[-1], dims);
    const Value* workspace = nullptr;
    context_.workspace = nullptr;
    if (operands[1] >= 0) {
      workspace = &registers[operands[1]];
      auto* storage = cast<Storage>(*workspace, ObjectType::storage);
      if (storage == nullptr)
        fail(Status::failed, "kernel %s: its workspace must be a storage and is %s", kernel.name.c_str(),
             describe(*workspace).c_str());
      context_.workspace = storage->data;
      if (storage->device != host_device) devices |= 1u << storage->device;
    }
    relay_kernel code = kernel.entry.load(std::memory_order_acquire);
    bool profiling = exe_.profiling.load(std::memory_order_relaxed);
    int64_t start = profiling ? now_ns() : 0;
    int32_t result;
    if (devices <= 1u << host_device) [[likely]]
      result = code(&context_, buffers, dims);
    else
      result = call_on_device(kernel, code, &context_, devices, registers, buffer_list, workspace, buffers, dims);
    if (profiling) {
      kernel.calls.fetch_add(1, std::memory_order_relaxed);
      kernel.nanoseconds.fetch_add(static_cast<uint64_t>(now_ns() - start), std::memory_order_relaxed);
    }
    if (result != 0) [[unlikely]]
      fail(Status::failed, "kernel %s failed with code %d", kernel.name.c_str(), result);
  }

  Value invoke_routine(const int32_t* operands, const Value* registers) {
    const Routine& routine = *exe_.routines[static_cast<size_t>(operands[0])];
    Value arguments[most_routine_arguments];
    for (int32_t i = 0; i < operands[1]; ++i) arguments[i] = registers[operands[2 + i]];
    return routine.run(arguments);
  }

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

  // Where a failure happened, newest call first.
  std::string where(const Value* registers, const int32_t* pc) const;

  const Executable& exe_;
  const RunOptions& options_;
  ControlStack stack_;
  std::byte* top_;
  std::byte* limit_;
  int64_t budget_ = 64, allowance_ = 64;
  int64_t last_poll_ = 0, last_asked_ = 0;
  bool first_poll_ = true;
  relay_kernel_context context_;
  RefList refs_;
};

}  // namespace relay
