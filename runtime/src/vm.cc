// The dispatch loop. Bytecode has been verified when it gets here, so operands are used without checks of their range;
// what values they hold is checked by each instruction.
#include "relay/vm.h"

#include <time.h>

#include <algorithm>
#include <new>

#include "control_stack.h"
#include "operations.h"
#include "relay/cycles.h"
#include "relay/device.h"
#include "relay/error.h"
#include "relay/opcode.h"
#include "relay/thread_pool.h"

namespace relay {
namespace {

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000 + time.tv_nsec;
}

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

  [[noreturn, gnu::cold]] void overflow(const Function* function) {
    fail(Status::recursion_limit,
         "recursion limit: the control stack of %lld bytes is full at the call of %s; a higher limit can be set",
         static_cast<long long>(stack_.end() - stack_.begin()), function->name.c_str());
  }

  // --- cancellation: what may take long pays a little of a budget, and when it is used up the clock is read ---

  void poll(int64_t cost = 1) {
    if ((budget_ -= cost) <= 0) [[unlikely]]
      poll_now();
  }

  [[gnu::cold, gnu::noinline]] void poll_now() {
    constexpr int64_t aim = 2'000'000, ask_every = 10'000'000;  // ns
    int64_t now = now_ns(), passed = now - last_poll_;
    last_poll_ = now;
    if (first_poll_) {
      first_poll_ = false;
      last_asked_ = now;
    } else if (passed < aim / 2) {
      allowance_ = std::min<int64_t>(allowance_ * 2, int64_t{1} << 22);
    } else if (passed > aim * 2) {
      allowance_ = std::max<int64_t>(1, allowance_ * aim / passed);
    }
    budget_ = allowance_;
    bool stop = options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
    if (!stop && options_.poll != nullptr && now - last_asked_ >= ask_every) {
      stop = options_.poll(options_.poll_data);
      last_asked_ = now_ns();
    }
    if (stop) fail(Status::interrupted, "interrupted");
  }

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

std::string Run::where(const Value* registers, const int32_t* pc) const {
  constexpr int most = 6;
  std::string text;
  for (int depth = 0; registers != nullptr; ++depth) {
    const Frame* frame = reinterpret_cast<const Frame*>(registers) - 1;
    if (depth == most) return text + "\n  called from further functions";
    const Function& function = *frame->function;
    text += format(depth == 0 ? "\n  in %s" : "\n  called from %s", function.name.c_str());
    auto at = static_cast<uint32_t>(pc - function.code);
    auto span = std::upper_bound(function.spans.begin(), function.spans.end(), at,
                                 [](uint32_t word, const Span& s) { return word < s.pc; });
    if (span != function.spans.begin()) text += " at " + std::prev(span)->text;
    pc = frame->resume == nullptr ? nullptr : frame->resume - 1;  // inside the call
    registers = frame->registers;
  }
  return text;
}

Value Run::execute(const Function& entry, Value* arguments, uint32_t count) {
  const int32_t* pc = entry.code;
  Value* r = push(&entry, nullptr, nullptr, 0);
  for (uint32_t i = 0; i < count; ++i) r[i] = std::exchange(arguments[i], Value{});
  Value result;

  // The new value's reference is taken over.
  auto set = [&r](int32_t index, Value v) {
    Value old = r[index];
    r[index] = v;
    release(old);
  };
  auto set_int = [&r](int32_t index, int64_t x) {
    Value old = r[index];
    r[index] = Value::int64(x);
    release(old);
  };
  auto get = [&r](int32_t index) {
    retain(r[index]);
    return r[index];
  };
  int64_t dims[max_rank];

  // Replaces this frame by one of the function on the values gathered above the stack's top.
  auto replace_frame = [&](const Function* function, Value* gathered) {
    Frame saved = *frame_of(r);
    pop(r);
    // Gathered values lie above the old frame and may overlap the new one: move them down in order, after the check.
    size_t bytes = sizeof(Frame) + function->registers * sizeof(Value);
    if (top_ > limit_ || static_cast<size_t>(limit_ - top_) < bytes) {
      for (uint32_t i = 0; i < function->arity; ++i) release(gathered[i]);
      r = saved.registers;
      pc = saved.resume == nullptr ? nullptr : saved.resume - 1;
      overflow(function);
    }
    auto* frame = reinterpret_cast<Frame*>(top_);
    *frame = saved;
    frame->function = function;
    r = reinterpret_cast<Value*>(frame + 1);
    std::memmove(static_cast<void*>(r), gathered, function->arity * sizeof(Value));
    std::memset(static_cast<void*>(r + function->arity), 0, (function->registers - function->arity) * sizeof(Value));
    top_ += bytes;
    stack_.used_up_to(top_);
    pc = function->code;
  };

  static const void* const labels[] = {
#define OP(name, operands, text) &&do_##name,
#include "../opcodes.def"
#undef OP
  };
#define NEXT goto* labels[*pc]
#define GO(words) \
  do {            \
    pc += (words); \
    NEXT;         \
  } while (0)
#define JUMP(label)                                       \
  do {                                                    \
    const int32_t* to = frame_of(r)->function->code + (label); \
    if (to <= pc) poll();                                 \
    pc = to;                                              \
    NEXT;                                                 \
  } while (0)

  try {
    NEXT;

  do_Move:
    set(pc[1], get(pc[2]));
    GO(3);
  do_Kill:
    set(pc[1], Value{});
    GO(2);

  do_Ret : {
    Value v = std::exchange(r[pc[1]], Value{});
    Frame* frame = frame_of(r);
    pop(r);
    if (frame->resume == nullptr) {
      result = v;
      r = nullptr;
      goto done;
    }
    pc = frame->resume;
    r = frame->registers;
    set(static_cast<int32_t>(frame->result), v);
    NEXT;
  }

  do_Invoke : {
    poll();
    const Function* function = &exe_.functions[static_cast<size_t>(pc[2])];
    int32_t n = pc[3];
    Value* fresh = push(function, pc + 4 + n, r, pc[1]);
    for (int32_t i = 0; i < n; ++i) fresh[i] = get(pc[4 + i]);
    r = fresh;
    pc = function->code;
    NEXT;
  }
  do_TailInvoke : {
    poll();
    const Function* function = &exe_.functions[static_cast<size_t>(pc[1])];
    auto* gathered = reinterpret_cast<Value*>(top_);
    for (int32_t i = 0; i < pc[2]; ++i) gathered[i] = get(pc[3 + i]);
    replace_frame(function, gathered);
    NEXT;
  }
  do_InvokeClosure : {
    poll();
    int32_t n = pc[3];
    Closure* closure = callable(r[pc[2]], n);
    const Function* function = &exe_.functions[closure->function];
    Value* fresh = push(function, pc + 4 + n, r, pc[1]);
    for (uint32_t i = 0; i < closure->size; ++i) {
      fresh[i] = closure->captured()[i];
      retain(fresh[i]);
    }
    for (int32_t i = 0; i < n; ++i) fresh[closure->size + static_cast<uint32_t>(i)] = get(pc[4 + i]);
    r = fresh;
    pc = function->code;
    NEXT;
  }
  do_TailInvokeClosure : {
    poll();
    int32_t n = pc[2];
    Closure* closure = callable(r[pc[1]], n);
    const Function* function = &exe_.functions[closure->function];
    auto* gathered = reinterpret_cast<Value*>(top_);
    for (uint32_t i = 0; i < closure->size; ++i) {
      gathered[i] = closure->captured()[i];
      retain(gathered[i]);
    }
    for (int32_t i = 0; i < n; ++i) gathered[closure->size + static_cast<uint32_t>(i)] = get(pc[3 + i]);
    replace_frame(function, gathered);
    NEXT;
  }

  do_InvokeKernel : {
    poll(16);
    invoke_kernel(pc + 1, r);
    int32_t n = pc[3];
    GO(5 + n + pc[4 + n]);
  }
  do_InvokeRoutine:
    poll(16);
    set(pc[1], invoke_routine(pc + 2, r));
    GO(4 + pc[3]);

  do_AllocStorage : {
    int64_t bytes = to_int64(r[pc[2]]);
    set(pc[1], Value::of(new_storage(bytes, pc[3], pc[5])));
    GO(6);
  }
  do_AllocTensor : {
    int32_t n = pc[5];
    read_dims(r, pc + 6, n, dims);
    set(pc[1], Value::of(allocate_tensor(r[pc[2]], to_int64(r[pc[3]]), static_cast<DType>(pc[4]),
                                         static_cast<uint32_t>(n), dims)));
    GO(6 + n);
  }
  do_AllocTensorReg : {
    uint32_t rank = read_shape(r[pc[5]], dims);
    set(pc[1], Value::of(allocate_tensor(r[pc[2]], to_int64(r[pc[3]]), static_cast<DType>(pc[4]), rank, dims)));
    GO(6);
  }
  do_AllocReuse : {
    int32_t n = pc[6];
    read_dims(r, pc + 7, n, dims);
    set(pc[1], Value::of(allocate_reuse(r[pc[2]], to_int64(r[pc[3]]), static_cast<DType>(pc[4]), pc[5],
                                        static_cast<uint32_t>(n), dims)));
    GO(7 + n);
  }
  do_NumWorkers:
    set_int(pc[1], context_.num_workers);
    GO(2);
  do_AllocScalar:
    set(pc[1], Value::scalar(static_cast<DType>(pc[2]), 0));
    GO(3);
  do_AllocADT : {
    int32_t n = pc[3];
    Adt* adt = new_adt(pc[2], static_cast<uint32_t>(n));
    for (int32_t i = 0; i < n; ++i) adt->fields()[i] = get(pc[4 + i]);
    set(pc[1], Value::of(adt));
    GO(4 + n);
  }
  do_AllocClosure : {
    int32_t n = pc[3];
    Closure* closure = new_closure(static_cast<uint32_t>(pc[2]), static_cast<uint32_t>(n), exe_.id);
    for (int32_t i = 0; i < n; ++i) closure->captured()[i] = get(pc[4 + i]);
    set(pc[1], Value::of(closure));
    GO(4 + n);
  }
  do_GetField:
    set(pc[1], field_of(r[pc[2]], pc[3]));
    GO(4);
  do_GetTag : {
    Adt* adt = as_adt(r[pc[2]]);
    if (adt == nullptr) fail(Status::failed, "expected a constructor value and got %s", describe(r[pc[2]]).c_str());
    set_int(pc[1], adt->tag);
    GO(3);
  }

  do_If:
    if (to_bool(r[pc[1]])) GO(3);
    JUMP(pc[2]);
  do_Goto:
    JUMP(pc[1]);
  do_Switch : {
    int64_t choice = to_int64(r[pc[1]]);
    if (choice < 0 || choice >= pc[2])
      fail(Status::failed, "no case for %lld: there are %d", static_cast<long long>(choice), pc[2]);
    JUMP(pc[3 + choice]);
  }

  do_LoadConst:
    set(pc[1], Value::of(exe_.constants[static_cast<size_t>(pc[2])]));
    GO(3);
  do_LoadConsti : {
    auto dtype = static_cast<DType>(pc[2]);
    uint64_t raw = static_cast<uint64_t>(static_cast<uint32_t>(pc[4])) << 32 | static_cast<uint32_t>(pc[3]);
    set(pc[1], Value::scalar(dtype, raw));
    GO(5);
  }

  do_RefNew : {
    Value held = get(pc[2]);
    set(pc[1], Value::of(refs_.make(held)));
    GO(3);
  }
  do_RefRead : {
    Ref* ref = as_ref(r[pc[2]]);
    if (ref == nullptr) fail(Status::failed, "expected a reference and got %s", describe(r[pc[2]]).c_str());
    set(pc[1], read(ref));
    GO(3);
  }
  do_RefWrite : {
    Ref* ref = as_ref(r[pc[1]]);
    if (ref == nullptr) fail(Status::failed, "expected a reference and got %s", describe(r[pc[1]]).c_str());
    write(ref, get(pc[2]));
    GO(3);
  }

  do_DeviceCopy:
    set(pc[1], copy_to_device(r[pc[2]], pc[3]));
    GO(4);
  do_ShapeOf:
    set(pc[1], Value::of(shape_of(r[pc[2]])));
    GO(3);
  do_DimOf:
    set_int(pc[1], dim_of(r[pc[2]], pc[3]));
    GO(4);
  do_ReshapeTensor : {
    int32_t n = pc[3];
    read_dims(r, pc + 4, n, dims);
    set(pc[1], Value::of(reshape(r[pc[2]], static_cast<uint32_t>(n), dims)));
    GO(4 + n);
  }
  do_ReshapeTensorReg : {
    uint32_t rank = read_shape(r[pc[3]], dims);
    set(pc[1], Value::of(reshape(r[pc[2]], rank, dims)));
    GO(4);
  }
  do_ViewTensor : {
    int32_t n = pc[4];
    read_dims(r, pc + 5, n, dims);
    set(pc[1], Value::of(view(r[pc[2]], to_int64(r[pc[3]]), static_cast<uint32_t>(n), dims)));
    GO(5 + n);
  }
  do_ScalarOf:
    set(pc[1], scalar_of(r[pc[2]]));
    GO(3);

  // Sums and products wrap around, as the hardware's do.
  do_IAdd:
    set_int(pc[1], static_cast<int64_t>(static_cast<uint64_t>(to_int64(r[pc[2]])) +
                                        static_cast<uint64_t>(to_int64(r[pc[3]]))));
    GO(4);
  do_ISub:
    set_int(pc[1], static_cast<int64_t>(static_cast<uint64_t>(to_int64(r[pc[2]])) -
                                        static_cast<uint64_t>(to_int64(r[pc[3]]))));
    GO(4);
  do_IMul:
    set_int(pc[1], static_cast<int64_t>(static_cast<uint64_t>(to_int64(r[pc[2]])) *
                                        static_cast<uint64_t>(to_int64(r[pc[3]]))));
    GO(4);
  do_IFloorDiv : {
    int64_t a = to_int64(r[pc[2]]), b = to_int64(r[pc[3]]);
    if (b == 0) fail(Status::failed, "division by zero");
    int64_t quotient = b == -1 ? static_cast<int64_t>(0 - static_cast<uint64_t>(a)) : a / b;
    if (b != -1 && a % b != 0 && (a < 0) != (b < 0)) --quotient;
    set_int(pc[1], quotient);
    GO(4);
  }
  do_IMod : {
    int64_t a = to_int64(r[pc[2]]), b = to_int64(r[pc[3]]);
    if (b == 0) fail(Status::failed, "division by zero");
    int64_t rest = b == -1 ? 0 : a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    set_int(pc[1], rest);
    GO(4);
  }
  do_IMin:
    set_int(pc[1], std::min(to_int64(r[pc[2]]), to_int64(r[pc[3]])));
    GO(4);
  do_IMax:
    set_int(pc[1], std::max(to_int64(r[pc[2]]), to_int64(r[pc[3]])));
    GO(4);

  do_CheckTensor:
    if (!is_tensor(r[pc[1]], static_cast<DType>(pc[2]), pc[3]))
      fail(Status::failed, "%s (found %s)", exe_.strings[static_cast<size_t>(pc[4])].c_str(), describe(r[pc[1]]).c_str());
    GO(5);
  do_CheckEq : {
    int64_t a = to_int64(r[pc[1]]), b = to_int64(r[pc[2]]);
    if (a != b) [[unlikely]]
      fail(Status::failed, "%s", fill(exe_.strings[static_cast<size_t>(pc[3])], a, b).c_str());
    GO(4);
  }
  do_CheckLe : {
    int64_t a = to_int64(r[pc[1]]), b = to_int64(r[pc[2]]);
    if (a > b) [[unlikely]]
      fail(Status::failed, "%s", fill(exe_.strings[static_cast<size_t>(pc[3])], a, b).c_str());
    GO(4);
  }
  do_Fatal:
    fail(Status::failed, "%s", exe_.strings[static_cast<size_t>(pc[1])].c_str());
  done:;
  } catch (...) {
    Status status = Status::failed;
    std::string message;
    try {
      throw;
    } catch (const Error& error) {
      status = error.status;
      message = error.what();
    } catch (const std::bad_alloc&) {
      status = Status::out_of_memory;
      message = "out of memory";
    }
    if (status != Status::interrupted) message += where(r, pc);
    while (r != nullptr) {
      Value* below = frame_of(r)->registers;
      pop(r);
      r = below;
    }
    refs_.collect();
    throw Error(status, message);
  }
#undef NEXT
#undef GO
#undef JUMP

  share(result);
  refs_.collect();
  return result;
}

}  // namespace

Value run(const Executable& executable, uint32_t function, Value* arguments, uint32_t count, const RunOptions& options) {
  auto drop_arguments = [&] {
    for (uint32_t i = 0; i < count; ++i) release(std::exchange(arguments[i], Value{}));
  };
  MutatorScope scope;
  try {
    const Function& entry = executable.functions[function];
    if (count != entry.arity)
      fail(Status::invalid_argument, "%s takes %u arguments and got %u", entry.name.c_str(), entry.arity, count);
    return Run(executable, options).execute(entry, arguments, count);
  } catch (...) {
    drop_arguments();
    throw;
  }
}

}  // namespace relay
