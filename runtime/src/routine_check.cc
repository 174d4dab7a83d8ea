#include "routine_check.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_set>
#include <vector>

#include "fences.h"
#include "relay/device.h"
#include "relay/error.h"
#include "relay/memory.h"
#include "relay/object.h"

namespace relay {
namespace {

// What memory is full of before the two runs.
constexpr int fills[2] = {0xff, 0x41};

void release_fenced(void* owner) { delete static_cast<Fenced*>(owner); }
bool is_fenced(const Storage* storage) { return storage->on_release == release_fenced; }

// Storage between fences, and whose it is.
class FencedStorage : public StorageSource {
 public:
  explicit FencedStorage(int pass) : pass_(pass) {}

  Storage* make(int64_t bytes) override { return made(bytes, -1); }

  // A copy of an argument, with the room behind it that rows may be appended in, in as many hands.
  Tensor* copy(const Tensor* given, int argument) {
    const Storage* from = given->storage;
    int64_t bytes = given->bytes(), end = given->offset + bytes;
    bool grows = from->grown.load(std::memory_order_relaxed) == end;
    Storage* storage = made(bytes + (grows ? std::max<int64_t>(from->capacity - end, 0) : 0), argument);
    std::memcpy(storage->data, given->data(), static_cast<size_t>(bytes));
    storage->read_only = from->read_only;
    if (grows) storage->grown.store(bytes, std::memory_order_relaxed);
    Tensor* out = new_tensor(storage, 0, given->dtype, given->rank, given->shape());
    for (auto [mine, its] : {std::pair<Object*, const Object*>{out, given}, {storage, from}})
      if (!unique(its)) hold(mine);
    return out;
  }

  [[noreturn]] void blame(const Routine& routine, const void* touched) const {
    auto* where = static_cast<const std::byte*>(touched);
    for (const Region& region : regions_) {
      if (where < region.first || where >= region.end) continue;
      std::string what = region.argument < 0 ? "memory that it made" : format("argument %d", region.argument);
      fail(Status::failed, "routine %s touches memory outside of %s: byte %lld of %lld", routine.name, what.c_str(),
           static_cast<long long>(where - region.data), static_cast<long long>(region.bytes));
    }
    fail(Status::failed, "routine %s touches memory that is none of its arguments (at %p)", routine.name, touched);
  }

 private:
  struct Region {
    const std::byte *first, *end, *data;
    int64_t bytes;
    int argument;
  };

  Storage* made(int64_t bytes, int argument) {
    auto fenced = std::make_unique<Fenced>(bytes);
    std::byte* data = fenced->place(bytes, 1, pass_ == 0);
    std::memset(data, fills[pass_], static_cast<size_t>(bytes));
    regions_.push_back({fenced->first(), fenced->end(), data, bytes, argument});
    Storage* storage = new_external_storage(data, bytes, false, release_fenced, fenced.get());
    fenced.release();
    storage->capacity = bytes;
    return storage;
  }

  void hold(Object* object) {
    retain(object);
    held_.emplace_back(Value::of(object));
  }

  int pass_;
  std::vector<Region> regions_;
  std::vector<Owned> held_;
};

// Calls f with each value that can be come to from one, itself first, and what it returned for it is looked into.
template <class F>
void each_place(Value* root, F&& f) {
  std::unordered_set<const Object*> seen;
  std::vector<Value*> todo{root};
  while (!todo.empty()) {
    Value* place = todo.back();
    todo.pop_back();
    f(place);
    Adt* adt = as_adt(*place);
    if (adt == nullptr || !seen.insert(adt).second) continue;
    for (uint32_t i = adt->size; i-- > 0;) todo.push_back(adt->fields() + i);
  }
}

// The tensors of a result that lie between fences, as ordinary ones.
void move_out(Value* result) {
  each_place(result, [](Value* place) {
    Tensor* tensor = as_tensor(*place);
    if (tensor == nullptr || !is_fenced(tensor->storage)) return;
    const Storage* from = tensor->storage;
    int64_t bytes = tensor->bytes(), end = tensor->offset + bytes, grown = from->grown.load(std::memory_order_relaxed);
    Storage* storage = new_storage(bytes + (grown == end ? from->capacity - end : 0), storage_alignment, host_device);
    std::memcpy(storage->data, tensor->data(), static_cast<size_t>(bytes));
    if (grown == end) storage->grown.store(bytes, std::memory_order_relaxed);
    *place = Value::of(new_tensor(storage, 0, tensor->dtype, tensor->rank, tensor->shape()));
    release(static_cast<Object*>(tensor));
  });
}

// Whether two runs made the same: what neither has written may be anything.
bool same(Value* first, Value* second) {
  std::vector<Value> a, b;
  each_place(first, [&](Value* place) { a.push_back(*place); });
  each_place(second, [&](Value* place) { b.push_back(*place); });
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    Tensor *x = as_tensor(a[i]), *y = as_tensor(b[i]);
    if (a[i].kind != b[i].kind || (x == nullptr) != (y == nullptr)) return false;
    if (a[i].kind != Kind::object) {
      if (a[i].dtype != b[i].dtype || a[i].bits != b[i].bits) return false;
    } else if (x == nullptr) {
      Adt *u = as_adt(a[i]), *v = as_adt(b[i]);
      if ((u == nullptr) != (v == nullptr) || (u != nullptr && (u->tag != v->tag || u->size != v->size))) return false;
    } else {
      if (x->dtype != y->dtype || x->rank != y->rank || !std::equal(x->shape(), x->shape() + x->rank, y->shape())) return false;
      // Of elements smaller than a byte the last byte may have bits that are nobody's.
      int64_t whole = bits(x->dtype) < 8 ? std::max<int64_t>(x->bytes() - 1, 0) : x->bytes();
      for (int64_t n = 0; n < whole; ++n)
        if (x->data()[n] != y->data()[n] && !(x->data()[n] == std::byte(fills[0]) && y->data()[n] == std::byte(fills[1])))
          return false;
    }
  }
  return true;
}

}  // namespace

Value checked_routine(const Routine& routine, const Value* arguments, uint32_t count, const relay_kernel_context& given) {
  Owned results[2];
  for (int pass = 0; pass < 2; ++pass) {
    FencedStorage fenced(pass);
    std::vector<Owned> copies(count);
    Value own[most_routine_arguments];
    for (uint32_t i = 0; i < count; ++i) {
      own[i] = arguments[i];
      Tensor* tensor = as_tensor(arguments[i]);
      if (tensor == nullptr || tensor->storage->device != host_device) continue;
      own[i] = Value::of(fenced.copy(tensor, static_cast<int>(i)));
      copies[i] = Owned(own[i]);
    }
    relay_kernel_context context = given;
    context.num_workers = 1;
    fill_stack(fills[pass]);
    const void* touched;
    {
      MemoryAccount account(fenced);
      touched = touched_by([&] { results[pass] = Owned(routine.run(own, &context)); });
    }
    if (touched != nullptr) fenced.blame(routine, touched);
  }
  Value results_of[2] = {results[0].get(), results[1].get()};
  if (!same(&results_of[0], &results_of[1]))
    fail(Status::failed, "routine %s makes its result of what nobody has written, or of where its arguments lie", routine.name);
  Value out = results[0].take();
  move_out(&out);
  return out;
}

}  // namespace relay
