#include "relay/object.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "relay/cycles.h"
#include "relay/device.h"
#include "relay/error.h"
#include "relay/memory.h"
#include "relay/spinlock.h"
#include "relay/storage_pool.h"

namespace relay {

const char* type_name(ObjectType type) {
  switch (type) {
    case ObjectType::storage: return "storage";
    case ObjectType::tensor: return "tensor";
    case ObjectType::adt: return "constructor value";
    case ObjectType::closure: return "closure";
    case ObjectType::ref: return "reference";
  }
  return "object";
}

// --- counting what is alive: one counter set per thread, added up on demand --------------------------------------

namespace {

struct Counters {
  std::atomic<int64_t> live[object_type_count]{};
};

struct AllCounters {
  Spinlock lock;
  std::vector<Counters*> of_threads;
  Counters of_the_past;  // what threads that are gone made and freed
};

AllCounters& all_counters() {
  static AllCounters* made = [] {
    static AllCounters* all;
    all = new AllCounters;
    pthread_atfork([] { all->lock.lock(); }, [] { all->lock.unlock(); }, [] { all->lock.unlock(); });
    return all;
  }();
  return *made;
}

// What every object that is made or freed asks of its thread, in one place: to find a thread's variables takes a call.
struct ThreadState {
  Counters* counters = nullptr;      // from the first object on
  MemoryAccount* account = nullptr;  // of the run in progress, where it has a limit
  bool ended = false;                // objects may still be released by what is destroyed after the counters
};
constinit thread_local ThreadState thread_state;

class ThreadCounters {
 public:
  ThreadCounters() {
    AllCounters& all = all_counters();
    std::lock_guard guard(all.lock);
    all.of_threads.push_back(&counters);
    thread_state.counters = &counters;
  }
  ~ThreadCounters() {
    AllCounters& all = all_counters();
    std::lock_guard guard(all.lock);
    for (int i = 0; i < object_type_count; ++i) all.of_the_past.live[i] += counters.live[i];
    all.of_threads.erase(std::find(all.of_threads.begin(), all.of_threads.end(), &counters));
    thread_state.counters = nullptr;
    thread_state.ended = true;
  }
  Counters counters;
};

[[gnu::cold]] void begin_counting() { thread_local ThreadCounters mine; }

void count(ThreadState& state, ObjectType type, int64_t change) {
  auto index = static_cast<int>(type);
  if (state.counters == nullptr) [[unlikely]] {
    if (state.ended) {
      all_counters().of_the_past.live[index] += change;
      return;
    }
    begin_counting();
  }
  std::atomic<int64_t>& counter = state.counters->live[index];
  counter.store(counter.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
}

// Bytes that an object takes, without the storage of its elements.
int64_t object_bytes(const Object* object) {
  switch (object->type) {
    case ObjectType::storage: return sizeof(Storage);
    case ObjectType::tensor:
      return static_cast<int64_t>(sizeof(Tensor) + static_cast<const Tensor*>(object)->rank * sizeof(int64_t));
    case ObjectType::adt:
      return static_cast<int64_t>(sizeof(Adt) + static_cast<const Adt*>(object)->size * sizeof(Value));
    case ObjectType::closure:
      return static_cast<int64_t>(sizeof(Closure) + static_cast<const Closure*>(object)->size * sizeof(Value));
    case ObjectType::ref: return sizeof(Ref);
  }
  return 0;
}

}  // namespace

MemoryAccount::MemoryAccount(int64_t limit) : outer_(thread_state.account), limit_(limit) {
  if (limit > 0) thread_state.account = this;
}
MemoryAccount::MemoryAccount(StorageSource& source)
    : outer_(thread_state.account), source_(&source), limit_(outer_ == nullptr ? INT64_MAX : outer_->limit_ - outer_->used_) {
  thread_state.account = this;
}
MemoryAccount::~MemoryAccount() {
  thread_state.account = outer_;
  if (source_ != nullptr && outer_ != nullptr) outer_->used_ += used_;
}

void charge_memory(int64_t bytes) {
  MemoryAccount* account = thread_state.account;
  if (account == nullptr) [[likely]]
    return;
  if (bytes > account->limit_ - account->used_)
    fail(Status::out_of_memory, "memory limit: the run would hold more than %lld bytes; a higher limit can be set",
         static_cast<long long>(account->limit_));
  account->used_ += bytes;
}
void credit_memory(int64_t bytes) {
  MemoryAccount* account = thread_state.account;
  if (account != nullptr) [[unlikely]]
    account->used_ -= bytes;
}

namespace {

template <class T, class... Args>
T* make(size_t trailing, Args... args) {
  ThreadState& state = thread_state;
  if (state.account != nullptr) [[unlikely]]
    charge_memory(static_cast<int64_t>(sizeof(T) + trailing));
  void* memory = std::malloc(sizeof(T) + trailing);
  if (memory == nullptr) fail(Status::out_of_memory, "out of memory: %zu bytes for an object", sizeof(T) + trailing);
  T* object = new (memory) T(args...);
  count(state, object->type, 1);
  return object;
}

void free_object(Object* object) {
  ThreadState& state = thread_state;
  count(state, object->type, -1);
  if (state.account != nullptr) [[unlikely]]
    credit_memory(object_bytes(object));
  std::free(object);
}

void destroy_storage(Storage* storage) {
  if (storage->block != nullptr) {
    credit_memory(storage->block_bytes);
    pool_free(storage->device, {storage->block, storage->block_bytes});
  }
  if (storage->on_release != nullptr) storage->on_release(storage->owner);
  free_object(storage);
}

// Takes one reference away; true when it was the last.
bool drop(Object* object) {
  if (object->is_immortal()) return false;
  if (object->is_shared()) return object->count.fetch_sub(1, std::memory_order_acq_rel) == 1;
  uint32_t count = object->count.load(std::memory_order_relaxed) - 1;
  object->count.store(count, std::memory_order_relaxed);
  return count == 0;
}

void destroy_tensor(Tensor* tensor) {
  Storage* storage = tensor->storage;
  free_object(tensor);
  if (drop(storage)) destroy_storage(storage);
}

// A work list that needs no memory of its own for the common, narrow shapes.
class WorkList {
 public:
  void push(Object* object) {
    if (size_ < inline_size)
      inline_[size_++] = object;
    else
      spill_.push_back(object);
  }
  Object* pop() {
    if (!spill_.empty()) {
      Object* object = spill_.back();
      spill_.pop_back();
      return object;
    }
    return size_ == 0 ? nullptr : inline_[--size_];
  }

 private:
  static constexpr int inline_size = 32;
  Object* inline_[inline_size];
  int size_ = 0;
  std::vector<Object*> spill_;
};

}  // namespace

int64_t live_objects(ObjectType type) {
  AllCounters& all = all_counters();
  std::lock_guard guard(all.lock);
  auto index = static_cast<int>(type);
  int64_t total = all.of_the_past.live[index].load(std::memory_order_relaxed);
  for (Counters* counters : all.of_threads) total += counters->live[index].load(std::memory_order_relaxed);
  return total;
}

void retain_flagged(Object* object) {
  if (!object->is_immortal()) object->count.fetch_add(1, std::memory_order_relaxed);
}

void release_flagged(Object* object) {
  if (drop(object)) destroy(object);
}

void destroy(Object* object) {
  if (object->type == ObjectType::tensor) return destroy_tensor(static_cast<Tensor*>(object));
  if (object->type == ObjectType::storage) return destroy_storage(static_cast<Storage*>(object));

  WorkList dead;  // of what has fields: the tensors of a long list would wait for its end
  auto lose = [&dead](Value v) {
    if (v.kind != Kind::object || !drop(v.object)) return;
    if (v.object->type == ObjectType::tensor)
      destroy_tensor(static_cast<Tensor*>(v.object));
    else
      dead.push(v.object);
  };
  for (; object != nullptr; object = dead.pop()) {
    switch (object->type) {
      case ObjectType::storage: destroy_storage(static_cast<Storage*>(object)); continue;
      case ObjectType::tensor: destroy_tensor(static_cast<Tensor*>(object)); continue;
      case ObjectType::adt: {
        auto* adt = static_cast<Adt*>(object);
        for (uint32_t i = 0; i < adt->size; ++i) lose(adt->fields()[i]);
        break;
      }
      case ObjectType::closure: {
        auto* closure = static_cast<Closure*>(object);
        for (uint32_t i = 0; i < closure->size; ++i) lose(closure->captured()[i]);
        break;
      }
      case ObjectType::ref: {
        auto* ref = static_cast<Ref*>(object);
        unlink(ref);
        lose(ref->value);
        ref->~Ref();
        break;
      }
    }
    free_object(object);
  }
}

namespace {

// Gives a tensor memory of its own for that which it has from elsewhere.
void own_memory(Tensor* tensor) {
  Tensor* copy = new_host_tensor(tensor->dtype, tensor->rank, tensor->shape());
  std::memcpy(copy->data(), tensor->data(), static_cast<size_t>(tensor->bytes()));
  std::swap(tensor->storage, copy->storage);
  std::swap(tensor->offset, copy->offset);
  release(static_cast<Object*>(copy));
}

}  // namespace

void share(Value& slot, Lent lent) {
  WorkList work;
  auto visit = [&work, lent](Value& v) {
    if (v.kind != Kind::object) return;
    if (v.object->is_immortal()) {
      if (v.object->type != ObjectType::tensor) return;  // a constructor without fields
      auto* constant = static_cast<Tensor*>(v.object);
      retain(constant->storage);
      v.object = new_tensor(constant->storage, constant->offset, constant->dtype, constant->rank, constant->shape());
    }
    if (v.object->is_shared()) return;
    if (v.object->type != ObjectType::tensor) {
      v.object->flags |= Object::shared;
      return work.push(v.object);
    }
    auto* tensor = static_cast<Tensor*>(v.object);
    if (tensor->storage->lent && lent == Lent::copied) own_memory(tensor);
    tensor->flags |= Object::shared;
    Storage* storage = tensor->storage;
    if (!storage->is_shared()) storage->flags |= Object::shared;
  };
  visit(slot);
  while (Object* object = work.pop()) {
    switch (object->type) {
      case ObjectType::storage:
      case ObjectType::tensor: break;
      case ObjectType::adt: {
        auto* adt = static_cast<Adt*>(object);
        for (uint32_t i = 0; i < adt->size; ++i) visit(adt->fields()[i]);
        break;
      }
      case ObjectType::closure: {
        auto* closure = static_cast<Closure*>(object);
        for (uint32_t i = 0; i < closure->size; ++i) visit(closure->captured()[i]);
        break;
      }
      case ObjectType::ref: {
        auto* ref = static_cast<Ref*>(object);
        adopt_shared(ref);
        visit(ref->value);
        break;
      }
    }
  }
}

// --- making objects ----------------------------------------------------------------------------------------------

Storage* new_storage(int64_t bytes, int64_t alignment, int32_t device_index) {
  int64_t slack = alignment > storage_alignment ? alignment : 0;
  if (bytes < 0 || bytes > INT64_MAX - 8192)
    fail(Status::failed, "cannot allocate a storage of %lld bytes", static_cast<long long>(bytes));
  MemoryAccount* account = thread_state.account;
  if (account != nullptr && account->source_ != nullptr && device_index == host_device) [[unlikely]]
    return account->source_->make(bytes);
  charge_memory(bytes + slack);
  Block block = pool_allocate(device_index, bytes + slack);
  credit_memory(bytes + slack - block.bytes);  // the block may be larger
  Storage* storage;
  try {
    storage = make<Storage>(0);
  } catch (...) {
    credit_memory(block.bytes);
    pool_free(device_index, block);
    throw;
  }
  auto address = reinterpret_cast<uintptr_t>(block.data);
  uintptr_t aligned =
      slack ? (address + static_cast<uintptr_t>(alignment) - 1) & ~(static_cast<uintptr_t>(alignment) - 1) : address;
  storage->device = device_index;
  storage->data = reinterpret_cast<std::byte*>(aligned);
  storage->bytes = bytes;
  storage->capacity = block.bytes - static_cast<int64_t>(aligned - address);
  storage->block = block.data;
  storage->block_bytes = block.bytes;
  return storage;
}

Storage* new_external_storage(void* data, int64_t bytes, bool read_only, void (*on_release)(void*), void* owner) {
  Storage* storage = make<Storage>(0);
  storage->data = static_cast<std::byte*>(data);
  storage->bytes = bytes;
  storage->read_only = read_only;
  storage->on_release = on_release;
  storage->owner = owner;
  return storage;
}

Tensor* new_tensor(Storage* storage, int64_t offset, DType dtype, uint32_t rank, const int64_t* shape) {
  Tensor* tensor;
  try {
    tensor = make<Tensor>(rank * sizeof(int64_t), dtype, static_cast<uint16_t>(rank));
  } catch (...) {
    release(storage);
    throw;
  }
  tensor->storage = storage;
  tensor->offset = offset;
  for (uint32_t i = 0; i < rank; ++i) tensor->shape()[i] = shape[i];
  return tensor;
}

Tensor* new_host_tensor(DType dtype, uint32_t rank, const int64_t* shape) {
  int64_t n = count_elements(rank, shape);
  int64_t bytes = n < 0 ? -1 : packed_bytes(dtype, n);
  return new_tensor(new_storage(bytes, storage_alignment, host_device), 0, dtype, rank, shape);
}

namespace {

// Values of constructors without fields, by tag: one of each in the process, never counted and never written. Lists and trees
// end in them: looking at one waits for no memory. (Of constructors with greater tags each value is an object of its own.)
class Fieldless {
 public:
  constexpr Fieldless() : Fieldless(std::make_integer_sequence<int32_t, count>()) {}
  Adt* find(int32_t tag) { return tag >= tuple_tag && tag < tuple_tag + count ? &of_tag_[tag - tuple_tag] : nullptr; }

 private:
  static constexpr int32_t count = 64;
  template <int32_t... n>
  explicit constexpr Fieldless(std::integer_sequence<int32_t, n...>) : of_tag_{Adt(tuple_tag + n, 0)...} {
    for (Adt& adt : of_tag_) adt.flags |= Object::immortal;
  }
  Adt of_tag_[count];
};
constinit Fieldless fieldless;

}  // namespace

Adt* new_adt(int32_t tag, uint32_t size) {
  if (size == 0)
    if (Adt* known = fieldless.find(tag)) return known;
  Adt* adt = make<Adt>(size * sizeof(Value), tag, size);
  for (uint32_t i = 0; i < size; ++i) new (adt->fields() + i) Value;
  return adt;
}

Closure* new_closure(uint32_t function, uint32_t size, uint64_t executable) {
  Closure* closure = make<Closure>(size * sizeof(Value), function, size, executable);
  for (uint32_t i = 0; i < size; ++i) new (closure->captured() + i) Value;
  return closure;
}

Ref* new_ref() { return make<Ref>(0); }

Tensor* box_scalar(Value scalar) {
  Tensor* tensor = new_host_tensor(scalar.dtype, 0, nullptr);
  std::memcpy(tensor->data(), &scalar.bits, scalar_bytes(scalar.dtype));
  return tensor;
}

int64_t count_elements(uint32_t rank, const int64_t* shape) {
  int64_t n = 1;
  bool zero = false, overflow = false;
  for (uint32_t i = 0; i < rank; ++i) {
    if (shape[i] < 0) return -1;
    zero |= shape[i] == 0;
    overflow |= __builtin_mul_overflow(n, shape[i], &n);
  }
  return zero ? 0 : overflow ? -1 : n;
}

}  // namespace relay
