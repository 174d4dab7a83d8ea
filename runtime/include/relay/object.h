// Objects: what values refer to. Storage, Tensor, Adt (tuples too), Closure, Ref.
//
// Reference counts. An object starts *local*: only the run that made it can reach it, and its count is changed without
// atomic instructions. Before a value can be reached from elsewhere (a result, something written into a shared Ref)
// `share` walks it and marks every object *shared*: from then on its count is changed atomically. So shared objects
// only ever refer to shared or immortal ones. *Immortal* objects (an executable's constant tensors, the values of
// constructors without fields) are never counted; a constant that leaves its run is replaced by a counted tensor on the
// same memory, which keeps the file's bytes.
//
// Destruction is iterative: a list of any length is freed with a work list, not with recursion.
//
// Cycles can only be closed by writing a Ref. Refs are therefore kept in lists: local ones in their run's, shared ones
// in the process's. Trial deletion over such a list (cycles.h) finds what only refers to itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "relay/value.h"

namespace relay {

enum class ObjectType : uint8_t { storage, tensor, adt, closure, ref };
inline constexpr int object_type_count = 5;

const char* type_name(ObjectType type);

struct Object {
  enum Flags : uint8_t { shared = 1, immortal = 2 };

  std::atomic<uint32_t> count{1};
  ObjectType type;
  uint8_t flags = 0;

  explicit constexpr Object(ObjectType type) : type(type) {}
  bool is_shared() const { return flags & shared; }
  bool is_immortal() const { return flags & immortal; }
};

// Memory on a device, from the device's pool or from outside.
struct Storage : Object {
  bool read_only = false;  // imported memory and constants: never written
  bool lent = false;       // imported for one call: its owner may write it afterwards
  int32_t device = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;      // that the program may use
  int64_t capacity = 0;   // from data on; 0 for memory that is not the pool's
  // Of storage made to grow: how many bytes some tensor has been given. What lies after them belongs to the first who
  // claims it, so rows can be appended after a tensor that ends there, however many others share the storage.
  std::atomic<int64_t> grown{-1};
  void* block = nullptr;  // what the pool gave
  int64_t block_bytes = 0;
  void (*on_release)(void* owner) = nullptr;  // for imported memory
  void* owner = nullptr;

  Storage() : Object(ObjectType::storage) {}
};

// A dense tensor: elements in row-major order from `offset` bytes into the storage.
struct Tensor : Object {
  DType dtype;
  uint16_t rank;
  Storage* storage;
  int64_t offset;

  int64_t* shape() { return reinterpret_cast<int64_t*>(this + 1); }
  const int64_t* shape() const { return reinterpret_cast<const int64_t*>(this + 1); }
  std::byte* data() const { return storage->data + offset; }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape()[i];
    return n;
  }
  int64_t bytes() const { return packed_bytes(dtype, elements()); }

  Tensor(DType dtype, uint16_t rank) : Object(ObjectType::tensor), dtype(dtype), rank(rank) {}
};
static_assert(sizeof(Tensor) % alignof(int64_t) == 0);

inline constexpr int max_rank = 32;
inline constexpr int32_t tuple_tag = -1;

// A constructor's value: tag and fields. Tag -1 is a tuple.
struct Adt : Object {
  int32_t tag;
  uint32_t size;
  Value* fields() { return reinterpret_cast<Value*>(this + 1); }
  const Value* fields() const { return reinterpret_cast<const Value*>(this + 1); }
  constexpr Adt(int32_t tag, uint32_t size) : Object(ObjectType::adt), tag(tag), size(size) {}
};
static_assert(sizeof(Adt) == 16);

// A function of one executable with its captured values.
struct Closure : Object {
  uint32_t function;
  uint32_t size;
  uint64_t executable;  // Executable::id: a closure runs only where it was made
  Value* captured() { return reinterpret_cast<Value*>(this + 1); }
  const Value* captured() const { return reinterpret_cast<const Value*>(this + 1); }
  Closure(uint32_t function, uint32_t size, uint64_t executable)
      : Object(ObjectType::closure), function(function), size(size), executable(executable) {}
};

struct RefLink {
  RefLink* previous = nullptr;
  RefLink* next = nullptr;
};

// A mutable cell. A shared one is read and written under its own lock.
struct Ref : Object, RefLink {
  std::atomic_flag lock = ATOMIC_FLAG_INIT;
  Value value;
  Ref() : Object(ObjectType::ref) {}
};

// --- references ---------------------------------------------------------------------------------------------------

void retain_flagged(Object* object);
void release_flagged(Object* object);
void destroy(Object* object);  // the count is already zero

inline void retain(Object* object) {
  if (object->flags == 0) [[likely]]
    object->count.store(object->count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  else
    retain_flagged(object);
}

inline void release(Object* object) {
  if (object->flags == 0) [[likely]] {
    uint32_t count = object->count.load(std::memory_order_relaxed) - 1;
    object->count.store(count, std::memory_order_relaxed);
    if (count == 0) destroy(object);
  } else {
    release_flagged(object);
  }
}

inline void retain(Value v) {
  if (v.kind == Kind::object) retain(v.object);
}
inline void release(Value v) {
  if (v.kind == Kind::object) release(v.object);
}

// Is this the only reference? (Shared objects included: whoever holds the only reference can trust the answer.)
inline bool unique(const Object* object) {
  return !object->is_immortal() && object->count.load(std::memory_order_acquire) == 1;
}

// Whether what is shared gets copies of memory that was lent for one call, which its owner may write afterwards, or stays on it.
enum class Lent { copied, used };

// Marks everything reachable from the slot as shared, and replaces immortal tensors in it by counted ones. What a call keeps is shared,
// in its result or in a reference that others have; so what is lent is copied here, and only what is given to a call stays where it is.
void share(Value& slot, Lent lent = Lent::copied);

// --- making objects (each returns one reference; Error(out_of_memory) when there is none) -------------------------

// Storage of the pool of a device; alignment a power of two up to 4096.
Storage* new_storage(int64_t bytes, int64_t alignment, int32_t device);

// Memory from outside, never written when read_only; on_release(owner) when the last reference goes.
Storage* new_external_storage(void* data, int64_t bytes, bool read_only, void (*on_release)(void*), void* owner);

// Takes over the storage reference. The caller has checked that shape and offset fit.
Tensor* new_tensor(Storage* storage, int64_t offset, DType dtype, uint32_t rank, const int64_t* shape);

// A fresh host tensor with storage of its own.
Tensor* new_host_tensor(DType dtype, uint32_t rank, const int64_t* shape);

// The fields (captured values) are nil and are filled by the caller. (Values without fields may be one object.)
Adt* new_adt(int32_t tag, uint32_t size);
Closure* new_closure(uint32_t function, uint32_t size, uint64_t executable);
Ref* new_ref();  // in no list yet; RefList::make is the way to one

// A tensor of rank 0 that holds the scalar.
Tensor* box_scalar(Value scalar);

// Element count of a shape, or -1 when a size is negative or the product does not fit.
int64_t count_elements(uint32_t rank, const int64_t* shape);

// Objects of a type alive in the process (exact when no run is in progress).
int64_t live_objects(ObjectType type);

template <class T>
T* cast(Value v, ObjectType type) {
  return v.kind == Kind::object && v.object->type == type ? static_cast<T*>(v.object) : nullptr;
}
inline Tensor* as_tensor(Value v) { return cast<Tensor>(v, ObjectType::tensor); }
inline Adt* as_adt(Value v) { return cast<Adt>(v, ObjectType::adt); }
inline Closure* as_closure(Value v) { return cast<Closure>(v, ObjectType::closure); }
inline Ref* as_ref(Value v) { return cast<Ref>(v, ObjectType::ref); }

}  // namespace relay
