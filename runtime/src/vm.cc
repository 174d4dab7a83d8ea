// The dispatch loop. Bytecode has been verified when it gets here, so operands are used without checks of their range;
// what values they hold is checked by each instruction.
#include "relay/vm.h"

#include <algorithm>
#include <new>

#include "relay/opcode.h"
#include "run.h"

namespace relay {

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
#define CASE(name) do_##name:
#define NEXT goto* labels[*pc]
#define GO(words)  \
  do {             \
    pc += (words); \
    NEXT;          \
  } while (0)
#define JUMP(label)                                            \
  do {                                                         \
    const int32_t* to = frame_of(r)->function->code + (label); \
    if (to <= pc) poll();                                      \
    pc = to;                                                   \
    NEXT;                                                      \
  } while (0)

  try {
    NEXT;

    CASE(Move) {
      set(pc[1], get(pc[2]));
      GO(3);
    }
    CASE(Kill) {
      set(pc[1], Value{});
      GO(2);
    }

    CASE(Ret) {
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

    CASE(Invoke) {
      poll();
      const Function* function = &exe_.functions[static_cast<size_t>(pc[2])];
      int32_t n = pc[3];
      Value* fresh = push(function, pc + 4 + n, r, pc[1]);
      for (int32_t i = 0; i < n; ++i) fresh[i] = get(pc[4 + i]);
      r = fresh;
      pc = function->code;
      NEXT;
    }
    CASE(TailInvoke) {
      poll();
      const Function* function = &exe_.functions[static_cast<size_t>(pc[1])];
      auto* gathered = reinterpret_cast<Value*>(top_);
      for (int32_t i = 0; i < pc[2]; ++i) gathered[i] = get(pc[3 + i]);
      replace_frame(function, gathered);
      NEXT;
    }
    CASE(InvokeClosure) {
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
    CASE(TailInvokeClosure) {
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

    CASE(InvokeKernel) {
      poll(kernel_cost);
      invoke_kernel(pc + 1, r);
      int32_t n = pc[3];
      GO(5 + n + pc[4 + n]);
    }
    CASE(InvokeRoutine) {
      poll(most_allowance);
      set(pc[1], invoke_routine(pc + 2, r));
      GO(4 + pc[3]);
    }

    CASE(AllocStorage) {
      int64_t bytes = to_int64(r[pc[2]]);
      set(pc[1], Value::of(new_storage(bytes, pc[3], pc[5])));
      GO(6);
    }
    CASE(AllocTensor) {
      int32_t n = pc[5];
      read_dims(r, pc + 6, n, dims);
      set(pc[1], Value::of(allocate_tensor(r[pc[2]], to_int64(r[pc[3]]), static_cast<DType>(pc[4]),
                                           static_cast<uint32_t>(n), dims)));
      GO(6 + n);
    }
    CASE(AllocTensorReg) {
      uint32_t rank = read_shape(r[pc[5]], dims);
      set(pc[1], Value::of(allocate_tensor(r[pc[2]], to_int64(r[pc[3]]), static_cast<DType>(pc[4]), rank, dims)));
      GO(6);
    }
    CASE(AllocReuse) {
      int32_t n = pc[6];
      read_dims(r, pc + 7, n, dims);
      set(pc[1], Value::of(allocate_reuse(r[pc[2]], to_int64(r[pc[3]]), static_cast<DType>(pc[4]), pc[5],
                                          static_cast<uint32_t>(n), dims)));
      GO(7 + n);
    }
    CASE(NumWorkers) {
      set_int(pc[1], context_.num_workers);
      GO(2);
    }
    CASE(AllocScalar) {
      set(pc[1], Value::scalar(static_cast<DType>(pc[2]), 0));
      GO(3);
    }
    CASE(AllocADT) {
      int32_t n = pc[3];
      Adt* adt = new_adt(pc[2], static_cast<uint32_t>(n));
      for (int32_t i = 0; i < n; ++i) adt->fields()[i] = get(pc[4 + i]);
      set(pc[1], Value::of(adt));
      GO(4 + n);
    }
    CASE(AllocClosure) {
      int32_t n = pc[3];
      Closure* closure = new_closure(static_cast<uint32_t>(pc[2]), static_cast<uint32_t>(n), exe_.id);
      for (int32_t i = 0; i < n; ++i) closure->captured()[i] = get(pc[4 + i]);
      set(pc[1], Value::of(closure));
      GO(4 + n);
    }
    CASE(GetField) {
      set(pc[1], field_of(r[pc[2]], pc[3]));
      GO(4);
    }
    CASE(GetTag) {
      Adt* adt = as_adt(r[pc[2]]);
      if (adt == nullptr) fail(Status::failed, "expected a constructor value and got %s", describe(r[pc[2]]).c_str());
      set_int(pc[1], adt->tag);
      GO(3);
    }

    CASE(If) {
      if (to_bool(r[pc[1]])) GO(3);
      JUMP(pc[2]);
    }
    CASE(Goto) { JUMP(pc[1]); }
    CASE(Switch) {
      int64_t choice = to_int64(r[pc[1]]);
      if (choice < 0 || choice >= pc[2])
        fail(Status::failed, "no case for %lld: there are %d", static_cast<long long>(choice), pc[2]);
      JUMP(pc[3 + choice]);
    }

    CASE(LoadConst) {
      set(pc[1], Value::of(exe_.constants[static_cast<size_t>(pc[2])]));
      GO(3);
    }
    CASE(LoadConsti) {
      auto dtype = static_cast<DType>(pc[2]);
      uint64_t raw = static_cast<uint64_t>(static_cast<uint32_t>(pc[4])) << 32 | static_cast<uint32_t>(pc[3]);
      set(pc[1], Value::scalar(dtype, raw));
      GO(5);
    }

    CASE(RefNew) {
      Value held = get(pc[2]);
      set(pc[1], Value::of(refs_.make(held)));
      GO(3);
    }
    CASE(RefRead) {
      Ref* ref = as_ref(r[pc[2]]);
      if (ref == nullptr) fail(Status::failed, "expected a reference and got %s", describe(r[pc[2]]).c_str());
      set(pc[1], read(ref));
      GO(3);
    }
    CASE(RefWrite) {
      Ref* ref = as_ref(r[pc[1]]);
      if (ref == nullptr) fail(Status::failed, "expected a reference and got %s", describe(r[pc[1]]).c_str());
      write(ref, get(pc[2]));
      GO(3);
    }

    CASE(DeviceCopy) {
      set(pc[1], copy_to_device(r[pc[2]], pc[3]));
      GO(4);
    }
    CASE(ShapeOf) {
      set(pc[1], Value::of(shape_of(r[pc[2]])));
      GO(3);
    }
    CASE(DimOf) {
      set_int(pc[1], dim_of(r[pc[2]], pc[3]));
      GO(4);
    }
    CASE(ReshapeTensor) {
      int32_t n = pc[3];
      read_dims(r, pc + 4, n, dims);
      set(pc[1], Value::of(reshape(r[pc[2]], static_cast<uint32_t>(n), dims)));
      GO(4 + n);
    }
    CASE(ReshapeTensorReg) {
      uint32_t rank = read_shape(r[pc[3]], dims);
      set(pc[1], Value::of(reshape(r[pc[2]], rank, dims)));
      GO(4);
    }
    CASE(ViewTensor) {
      int32_t n = pc[4];
      read_dims(r, pc + 5, n, dims);
      set(pc[1], Value::of(view(r[pc[2]], to_int64(r[pc[3]]), static_cast<uint32_t>(n), dims)));
      GO(5 + n);
    }
    CASE(ScalarOf) {
      set(pc[1], scalar_of(r[pc[2]]));
      GO(3);
    }

    // Sums and products wrap around, as the hardware's do.
    CASE(IAdd) {
      set_int(pc[1], static_cast<int64_t>(static_cast<uint64_t>(to_int64(r[pc[2]])) +
                                          static_cast<uint64_t>(to_int64(r[pc[3]]))));
      GO(4);
    }
    CASE(ISub) {
      set_int(pc[1], static_cast<int64_t>(static_cast<uint64_t>(to_int64(r[pc[2]])) -
                                          static_cast<uint64_t>(to_int64(r[pc[3]]))));
      GO(4);
    }
    CASE(IMul) {
      set_int(pc[1], static_cast<int64_t>(static_cast<uint64_t>(to_int64(r[pc[2]])) *
                                          static_cast<uint64_t>(to_int64(r[pc[3]]))));
      GO(4);
    }
    CASE(IFloorDiv) {
      int64_t a = to_int64(r[pc[2]]), b = to_int64(r[pc[3]]);
      if (b == 0) fail(Status::failed, "division by zero");
      int64_t quotient = b == -1 ? static_cast<int64_t>(0 - static_cast<uint64_t>(a)) : a / b;
      if (b != -1 && a % b != 0 && (a < 0) != (b < 0)) --quotient;
      set_int(pc[1], quotient);
      GO(4);
    }
    CASE(IMod) {
      int64_t a = to_int64(r[pc[2]]), b = to_int64(r[pc[3]]);
      if (b == 0) fail(Status::failed, "division by zero");
      int64_t rest = b == -1 ? 0 : a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
      set_int(pc[1], rest);
      GO(4);
    }
    CASE(IMin) {
      set_int(pc[1], std::min(to_int64(r[pc[2]]), to_int64(r[pc[3]])));
      GO(4);
    }
    CASE(IMax) {
      set_int(pc[1], std::max(to_int64(r[pc[2]]), to_int64(r[pc[3]])));
      GO(4);
    }

    CASE(CheckTensor) {
      if (!is_tensor(r[pc[1]], static_cast<DType>(pc[2]), pc[3]))
        fail(Status::failed, "%s (found %s)", exe_.strings[static_cast<size_t>(pc[4])].c_str(),
             describe(r[pc[1]]).c_str());
      GO(5);
    }
    CASE(CheckEq) {
      int64_t a = to_int64(r[pc[1]]), b = to_int64(r[pc[2]]);
      if (a != b) [[unlikely]]
        fail(Status::failed, "%s", fill(exe_.strings[static_cast<size_t>(pc[3])], a, b).c_str());
      GO(4);
    }
    CASE(CheckLe) {
      int64_t a = to_int64(r[pc[1]]), b = to_int64(r[pc[2]]);
      if (a > b) [[unlikely]]
        fail(Status::failed, "%s", fill(exe_.strings[static_cast<size_t>(pc[3])], a, b).c_str());
      GO(4);
    }
    CASE(Fatal) { fail(Status::failed, "%s", exe_.strings[static_cast<size_t>(pc[1])].c_str()); }
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
#undef CASE
#undef NEXT
#undef GO
#undef JUMP

  share(result);
  refs_.collect();
  return result;
}

Value run(const Executable& executable, uint32_t function, Value* arguments, uint32_t count,
          const RunOptions& options) {
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
