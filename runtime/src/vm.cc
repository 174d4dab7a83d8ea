// The dispatch loop: it moves between instructions; instructions.h has what each of them does.
#include "relay/vm.h"

#include <algorithm>
#include <new>

#include "instructions.h"
#include "relay/floating_point.h"
#include "relay/memory.h"

namespace relay {

template <bool observed>
Value Run::execute(const Function& entry, Value* arguments, uint32_t count) {
  using instruction::get;
  using instruction::set;
  const int32_t* pc = entry.code;
  Value* r = push(&entry, nullptr, nullptr, nullptr, 0);
  for (uint32_t i = 0; i < count; ++i) r[i] = std::exchange(arguments[i], Value{});

  static const void* const labels[] = {
#define OP(name, operands, text) &&do_##name,
#include "../opcodes.def"
  };
#define CASE(name) do_##name:
#define NEXT                                                           \
  do {                                                                 \
    if constexpr (observed) options_.observer->before(place_of(r, pc)); \
    goto* labels[*pc];                                                 \
  } while (0)
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

#define OP(name, operands, text)               \
  CASE(name) {                                 \
    name(r, pc);                               \
    if constexpr (observed) observe_after(r, pc); \
    GO(instruction_words<Opcode::name>(pc));   \
  }
#define CONTROL(name, operands, text)
#include "../opcodes.def"

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
      set(r[frame->result], v);
      NEXT;
    }

    CASE(Invoke) {
      poll();
      const Function* function = &exe_.functions[static_cast<size_t>(pc[2])];
      int32_t n = pc[3];
      const int32_t* dead = pc + 4 + n;
      Value* fresh = push(function, dead + 1 + *dead, nullptr, r, pc[1]);
      for (int32_t i = 0; i < n; ++i) fresh[i] = get(r[pc[4 + i]]);
      kill_list(r, dead);
      r = fresh;
      pc = function->code;
      NEXT;
    }
    CASE(TailInvoke) {
      poll();
      const Function* function = &exe_.functions[static_cast<size_t>(pc[1])];
      auto* gathered = reinterpret_cast<Value*>(top);
      for (int32_t i = 0; i < pc[2]; ++i) gathered[i] = get(r[pc[3 + i]]);
      r = replace(function, gathered, &r, &pc);
      pc = function->code;
      NEXT;
    }
    CASE(InvokeClosure) {
      poll();
      int32_t n = pc[3];
      Closure* closure = callable(r[pc[2]], n);
      const Function* function = &exe_.functions[closure->function];
      const int32_t* dead = pc + 4 + n;
      Value* fresh = push(function, dead + 1 + *dead, nullptr, r, pc[1]);
      gather(closure, r, pc + 4, n, fresh);
      kill_list(r, dead);
      r = fresh;
      pc = function->code;
      NEXT;
    }
    CASE(TailInvokeClosure) {
      poll();
      int32_t n = pc[2];
      Closure* closure = callable(r[pc[1]], n);
      const Function* function = &exe_.functions[closure->function];
      auto* gathered = reinterpret_cast<Value*>(top);
      gather(closure, r, pc + 3, n, gathered);
      r = replace(function, gathered, &r, &pc);
      pc = function->code;
      NEXT;
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
  done:;
  } catch (...) {
    unwind(r, pc);
  }
#undef CASE
#undef NEXT
#undef GO
#undef JUMP

  Owned kept(result);
  share(kept.slot());
  refs_.collect();
  return kept.take();
}

Value run(const Executable& executable, uint32_t function, Value* arguments, uint32_t count,
          const RunOptions& options) {
  auto drop_arguments = [&] {
    for (uint32_t i = 0; i < count; ++i) release(std::exchange(arguments[i], Value{}));
  };
  MutatorScope scope;
  MemoryAccount account(options.limits.memory_bytes);
  try {
    const Function& entry = executable.functions[function];
    if (count != entry.arity)
      fail(Status::invalid_argument, "%s takes %u arguments and got %u", entry.name.c_str(), entry.arity, count);
    Run made(executable, function, options);
    FloatingPointScope computes(made.flushes_subnormals());
    if (!executable.native.empty() && !options.interpret) return made.execute_native(function, arguments, count);
    return options.observer != nullptr ? made.execute<true>(entry, arguments, count)
                                       : made.execute<false>(entry, arguments, count);
  } catch (...) {
    drop_arguments();
    throw;
  }
}

}  // namespace relay
