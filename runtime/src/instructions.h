// What the instructions do after which the next one runs. pc is at the instruction's opcode, r are its registers. Bytecode
// has been verified, so operands are used without checks of their range; what values they hold is checked here.
//
// One meaning for everyone: the dispatch loop inlines these, native code calls them (native.cc).
#pragma once

#include "run.h"
#include "scalars.h"

namespace relay {

namespace instruction {

// The new value's reference is taken over.
inline void set(Value& slot, Value v) {
  Value old = slot;
  slot = v;
  release(old);
}
inline Value get(const Value& slot) {
  retain(slot);
  return slot;
}

// The payload of a scalar of the dtype.
inline uint64_t payload(const Value& v, DType dtype) {
  if (v.is_scalar(dtype)) [[likely]]
    return v.bits;
  return scalar_of(v, dtype).bits;
}

}  // namespace instruction

inline void Run::Move(Value* r, const int32_t* pc) { instruction::set(r[pc[1]], instruction::get(r[pc[2]])); }
inline void Run::Take(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], std::exchange(r[pc[2]], Value{}));
}
inline void Run::Kill(Value* r, const int32_t* pc) { instruction::set(r[pc[1]], Value{}); }

inline void Run::InvokeKernel(Value* r, const int32_t* pc) {
  poll(kernel_cost);
  invoke_kernel(pc + 1, r);
}
inline void Run::InvokeRoutine(Value* r, const int32_t* pc) {
  const Routine& routine = *exe_.routines[static_cast<size_t>(pc[2])];
  Value arguments[most_routine_arguments];
  for (int32_t i = 0; i < pc[3]; ++i) arguments[i] = r[pc[4 + i]];
  int64_t cost = kernel_cost;
  if (!routine.one_pass) {
    cost = routine_cost;
    for (int32_t i = 0; i < pc[3]; ++i)
      if (const auto* tensor = cast<Tensor>(arguments[i], ObjectType::tensor))
        cost += std::min(tensor->elements(), element_allowance) * (most_allowance / element_allowance);
  }
  poll(cost);
  bool checked = checker_ != nullptr;
  instruction::set(r[pc[1]], checked ? checked_routine(routine, arguments, static_cast<uint32_t>(pc[3]), context_)
                                     : routine.run(arguments, &context_));
}

inline void Run::AllocStorage(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], Value::of(new_storage(to_int64(r[pc[2]]), pc[3], pc[5])));
}
inline void Run::KeepStorage(Value* r, const int32_t* pc) {
  int64_t bytes = to_int64(r[pc[2]]);
  auto* kept = cast<Storage>(r[pc[1]], ObjectType::storage);
  if (kept != nullptr && std::max(kept->bytes, kept->capacity) >= bytes && kept->device == pc[5] &&
      !(reinterpret_cast<uintptr_t>(kept->data) & static_cast<uintptr_t>(pc[3] - 1))) [[likely]] {
    kept->bytes = std::max(kept->bytes, bytes);
    return;
  }
  instruction::set(r[pc[1]], Value{});  // before there is another
  instruction::set(r[pc[1]], Value::of(new_storage(bytes, pc[3], pc[5])));
}
inline void Run::AllocTensor(Value* r, const int32_t* pc) {
  int32_t n = pc[5];
  read_dims(r, pc + 6, n, dims_);
  if (is_already(r[pc[1]], r[pc[2]], to_int64(r[pc[3]]), static_cast<DType>(pc[4]), static_cast<uint32_t>(n), dims_))
    return;
  instruction::set(r[pc[1]], Value::of(allocate_tensor(r[pc[2]], to_int64(r[pc[3]]), static_cast<DType>(pc[4]),
                                                       static_cast<uint32_t>(n), dims_)));
}
inline void Run::AllocFresh(Value* r, const int32_t* pc) {
  int32_t n = pc[5];
  read_dims(r, pc + 6, n, dims_);
  instruction::set(r[pc[1]], Value::of(allocate_fresh(to_int64(r[pc[2]]), static_cast<DType>(pc[3]), pc[4],
                                                      static_cast<uint32_t>(n), dims_)));
}
inline void Run::AllocTensorReg(Value* r, const int32_t* pc) {
  uint32_t rank = read_shape(r[pc[5]], dims_);
  instruction::set(r[pc[1]], Value::of(allocate_tensor(r[pc[2]], to_int64(r[pc[3]]), static_cast<DType>(pc[4]), rank,
                                                       dims_)));
}
inline void Run::AllocReuse(Value* r, const int32_t* pc) {
  int32_t n = pc[6];
  read_dims(r, pc + 7, n, dims_);
  if (pc[1] == pc[2] && is_own(r[pc[1]], static_cast<DType>(pc[4]), pc[5], static_cast<uint32_t>(n), dims_)) return;
  instruction::set(r[pc[1]], Value::of(allocate_reuse(r[pc[2]], to_int64(r[pc[3]]), static_cast<DType>(pc[4]), pc[5],
                                                      static_cast<uint32_t>(n), dims_)));
}
inline void Run::NumWorkers(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], Value::int64(context_.num_workers));
}
inline void Run::AllocScalar(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], Value::scalar(static_cast<DType>(pc[2]), 0));
}
inline void Run::AllocADT(Value* r, const int32_t* pc) {
  int32_t n = pc[3];
  Adt* adt = new_adt(pc[2], static_cast<uint32_t>(n));
  for (int32_t i = 0; i < n; ++i) adt->fields()[i] = instruction::get(r[pc[4 + i]]);
  instruction::set(r[pc[1]], Value::of(adt));
}
inline void Run::AllocClosure(Value* r, const int32_t* pc) {
  int32_t n = pc[3];
  Closure* closure = new_closure(static_cast<uint32_t>(pc[2]), static_cast<uint32_t>(n), exe_.id);
  for (int32_t i = 0; i < n; ++i) closure->captured()[i] = instruction::get(r[pc[4 + i]]);
  instruction::set(r[pc[1]], Value::of(closure));
}
inline void Run::GetField(Value* r, const int32_t* pc) { instruction::set(r[pc[1]], field_of(r[pc[2]], pc[3])); }
inline void Run::GetTag(Value* r, const int32_t* pc) {
  Adt* adt = as_adt(r[pc[2]]);
  if (adt == nullptr) fail(Status::failed, "expected a constructor value and got %s", describe(r[pc[2]]).c_str());
  instruction::set(r[pc[1]], Value::int64(adt->tag));
}

inline void Run::LoadConst(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], Value::of(exe_.constants[static_cast<size_t>(pc[2])]));
}
inline void Run::LoadConsti(Value* r, const int32_t* pc) {
  uint64_t raw = static_cast<uint64_t>(static_cast<uint32_t>(pc[4])) << 32 | static_cast<uint32_t>(pc[3]);
  instruction::set(r[pc[1]], Value::scalar(static_cast<DType>(pc[2]), raw));
}

inline void Run::RefNew(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], Value::of(refs_.make(instruction::get(r[pc[2]]))));
}
inline void Run::RefRead(Value* r, const int32_t* pc) {
  Ref* ref = as_ref(r[pc[2]]);
  if (ref == nullptr) fail(Status::failed, "expected a reference and got %s", describe(r[pc[2]]).c_str());
  instruction::set(r[pc[1]], read(ref));
}
inline void Run::RefWrite(Value* r, const int32_t* pc) {
  Ref* ref = as_ref(r[pc[1]]);
  if (ref == nullptr) fail(Status::failed, "expected a reference and got %s", describe(r[pc[1]]).c_str());
  write(ref, instruction::get(r[pc[2]]));
}

inline void Run::DeviceCopy(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], copy_to_device(r[pc[2]], pc[3]));
}
inline void Run::ShapeOf(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], Value::of(shape_of(r[pc[2]])));
}
inline void Run::DimOf(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], Value::int64(dim_of(r[pc[2]], pc[3])));
}
inline void Run::ReshapeTensor(Value* r, const int32_t* pc) {
  int32_t n = pc[3];
  read_dims(r, pc + 4, n, dims_);
  instruction::set(r[pc[1]], Value::of(reshape(r[pc[2]], static_cast<uint32_t>(n), dims_)));
}
inline void Run::ReshapeTensorReg(Value* r, const int32_t* pc) {
  uint32_t rank = read_shape(r[pc[3]], dims_);
  instruction::set(r[pc[1]], Value::of(reshape(r[pc[2]], rank, dims_)));
}
inline void Run::ViewTensor(Value* r, const int32_t* pc) {
  int32_t n = pc[4];
  read_dims(r, pc + 5, n, dims_);
  instruction::set(r[pc[1]], Value::of(view(r[pc[2]], to_int64(r[pc[3]]), static_cast<uint32_t>(n), dims_)));
}
inline void Run::ScalarOf(Value* r, const int32_t* pc) {
  auto dtype = static_cast<DType>(pc[3]);
  instruction::set(r[pc[1]], Value::scalar(dtype, instruction::payload(r[pc[2]], dtype)));
}
inline void Run::ScalarLoad(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], element_of(r[pc[3]], static_cast<DType>(pc[2]), to_int64(r[pc[4]])));
}
inline void Run::ScalarCast(Value* r, const int32_t* pc) {
  auto from = static_cast<DType>(pc[2]), to = static_cast<DType>(pc[3]);
  instruction::set(r[pc[1]], Value::scalar(to, scalar::cast(from, to, instruction::payload(r[pc[4]], from))));
}
inline void Run::ScalarSelect(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], instruction::get(r[to_bool(r[pc[2]]) ? pc[3] : pc[4]]));
}

#define OP(name, operands, text)
#define BINARY(name, text)                                                                                          \
  inline void Run::Scalar##name(Value* r, const int32_t* pc) {                                                      \
    auto dtype = static_cast<DType>(pc[2]);                                                                         \
    uint64_t a = instruction::payload(r[pc[3]], dtype), b = instruction::payload(r[pc[4]], dtype);                  \
    instruction::set(r[pc[1]], Value::scalar(dtype, scalar::binary<scalar::name>(dtype, a, b)));                    \
  }
#define COMPARE(name, text)                                                                                         \
  inline void Run::Scalar##name(Value* r, const int32_t* pc) {                                                      \
    auto dtype = static_cast<DType>(pc[2]);                                                                         \
    uint64_t a = instruction::payload(r[pc[3]], dtype), b = instruction::payload(r[pc[4]], dtype);                  \
    instruction::set(r[pc[1]], Value::scalar(DType::bool_, scalar::binary<scalar::name>(dtype, a, b)));             \
  }
#define UNARY(name, text)                                                                                           \
  inline void Run::Scalar##name(Value* r, const int32_t* pc) {                                                      \
    auto dtype = static_cast<DType>(pc[2]);                                                                         \
    uint64_t a = instruction::payload(r[pc[3]], dtype);                                                             \
    instruction::set(r[pc[1]], Value::scalar(dtype, scalar::unary_of_any<scalar::name>(dtype, a)));                 \
  }
#define CLASSIFY(name, text)                                                                                        \
  inline void Run::Scalar##name(Value* r, const int32_t* pc) {                                                      \
    auto dtype = static_cast<DType>(pc[2]);                                                                         \
    uint64_t a = instruction::payload(r[pc[3]], dtype);                                                             \
    instruction::set(r[pc[1]], Value::scalar(DType::bool_, scalar::unary_of_any<scalar::name>(dtype, a)));          \
  }
#include "../opcodes.def"

// These compute sizes and places: one that no int64 holds is an error, and never another number.
#define SIZE(name, builtin)                                                                  \
  inline void Run::name(Value* r, const int32_t* pc) {                                       \
    int64_t out = 0;                                                                         \
    if (builtin(to_int64(r[pc[2]]), to_int64(r[pc[3]]), &out)) [[unlikely]]                  \
      fail(Status::failed, "a size is more than int64 holds, which sizes are computed in");  \
    instruction::set(r[pc[1]], Value::int64(out));                                           \
  }
SIZE(IAdd, __builtin_add_overflow)
SIZE(ISub, __builtin_sub_overflow)
SIZE(IMul, __builtin_mul_overflow)
#undef SIZE
inline void Run::IFloorDiv(Value* r, const int32_t* pc) {
  int64_t a = to_int64(r[pc[2]]), b = to_int64(r[pc[3]]);
  if (b == 0) fail(Status::failed, "division by zero");
  int64_t quotient = b == -1 ? static_cast<int64_t>(0 - static_cast<uint64_t>(a)) : a / b;
  if (b != -1 && a % b != 0 && (a < 0) != (b < 0)) --quotient;
  instruction::set(r[pc[1]], Value::int64(quotient));
}
inline void Run::IMod(Value* r, const int32_t* pc) {
  int64_t a = to_int64(r[pc[2]]), b = to_int64(r[pc[3]]);
  if (b == 0) fail(Status::failed, "division by zero");
  int64_t rest = b == -1 ? 0 : a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  instruction::set(r[pc[1]], Value::int64(rest));
}
inline void Run::IMin(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], Value::int64(std::min(to_int64(r[pc[2]]), to_int64(r[pc[3]]))));
}
inline void Run::IMax(Value* r, const int32_t* pc) {
  instruction::set(r[pc[1]], Value::int64(std::max(to_int64(r[pc[2]]), to_int64(r[pc[3]]))));
}

inline void Run::CheckTensor(Value* r, const int32_t* pc) {
  if (!is_tensor(r[pc[1]], static_cast<DType>(pc[2]), pc[3])) [[unlikely]]
    fail(Status::failed, "%s (found %s)", exe_.strings[static_cast<size_t>(pc[4])].c_str(),
         describe(r[pc[1]]).c_str());
}
inline void Run::CheckEq(Value* r, const int32_t* pc) {
  int64_t a = to_int64(r[pc[1]]), b = to_int64(r[pc[2]]);
  if (a != b) [[unlikely]]
    fail(Status::failed, "%s", fill(exe_.strings[static_cast<size_t>(pc[3])], a, b).c_str());
}
inline void Run::CheckLe(Value* r, const int32_t* pc) {
  int64_t a = to_int64(r[pc[1]]), b = to_int64(r[pc[2]]);
  if (a > b) [[unlikely]]
    fail(Status::failed, "%s", fill(exe_.strings[static_cast<size_t>(pc[3])], a, b).c_str());
}
inline void Run::Fatal(Value*, const int32_t* pc) {
  fail(Status::failed, "%s", exe_.strings[static_cast<size_t>(pc[1])].c_str());
}

}  // namespace relay
