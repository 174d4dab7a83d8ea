#include "relay/cycles.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "relay/spinlock.h"

namespace relay {
namespace {

void insert(RefLink* head, RefLink* link) {
  link->next = head->next;
  link->previous = head;
  head->next->previous = link;
  head->next = link;
}

void remove(RefLink* link) {
  link->previous->next = link->next;
  link->next->previous = link->previous;
  link->previous = link->next = nullptr;
}

// The Refs that other threads or the embedding program may reach.
struct SharedRefs {
  Spinlock lock;
  RefLink head;
  std::atomic<int64_t> size{0};  // changed under the lock
  std::atomic<int64_t> threshold{256};
  std::atomic<bool> collecting{false};
  // Open scopes, counted in as many places as there are likely to be threads at work.
  struct alignas(64) Count {
    std::atomic<int64_t> open{0};
  } mutators[16];
  SharedRefs() { head.previous = head.next = &head; }
};

SharedRefs& shared_refs() {
  static SharedRefs* made = [] {
    static SharedRefs* refs;
    refs = new SharedRefs;
    pthread_atfork([] { refs->lock.lock(); }, [] { refs->lock.unlock(); },
                   [] {
                     refs->lock.unlock();
                     for (auto& count : refs->mutators) count.open = 0;  // the threads that were inside are not in the child
                     refs->collecting = false;
                   });
    return refs;
  }();
  return *made;
}

bool can_hold_references(const Object* object) {
  if (object->is_immortal()) return false;
  return object->type == ObjectType::adt || object->type == ObjectType::closure || object->type == ObjectType::ref;
}

// The objects an object refers to that could be part of a cycle of the same kind (local or shared).
template <class F>
void each_child(Object* object, bool shared, F&& f) {
  auto visit = [&](Value v) {
    if (v.kind == Kind::object && can_hold_references(v.object) && v.object->is_shared() == shared) f(v.object);
  };
  switch (object->type) {
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
    case ObjectType::ref: visit(static_cast<Ref*>(object)->value); break;
    default: break;
  }
}

// Trial deletion. Counts, for everything reachable from the Refs, the references that come from outside; what no
// outside reference leads to is garbage, and emptying its Refs lets the counts free it.
int64_t trial_deletion(RefLink& head, bool shared) {
  std::vector<Ref*> refs;
  for (RefLink* link = head.next; link != &head; link = link->next) refs.push_back(static_cast<Ref*>(link));

  std::unordered_map<Object*, int64_t> outside;
  std::vector<Object*> reached, work(refs.begin(), refs.end());
  for (Ref* ref : refs) outside.emplace(ref, ref->count.load(std::memory_order_relaxed));
  while (!work.empty()) {
    Object* object = work.back();
    work.pop_back();
    reached.push_back(object);
    each_child(object, shared, [&](Object* child) {
      auto [entry, first] = outside.emplace(child, child->count.load(std::memory_order_relaxed));
      entry->second -= 1;
      if (first) work.push_back(child);
    });
  }
  constexpr int64_t alive = -1;
  for (Object* object : reached) {
    if (outside[object] <= 0) continue;
    outside[object] = alive;
    work.push_back(object);
    while (!work.empty()) {
      Object* live = work.back();
      work.pop_back();
      each_child(live, shared, [&](Object* child) {
        int64_t& state = outside[child];
        if (state == alive) return;
        state = alive;
        work.push_back(child);
      });
    }
  }
  std::vector<Ref*> garbage;
  for (Ref* ref : refs)
    if (outside[ref] != alive) garbage.push_back(ref);
  for (Ref* ref : garbage) retain(static_cast<Object*>(ref));
  for (Ref* ref : garbage) release(std::exchange(ref->value, Value{}));
  for (Ref* ref : garbage) release(static_cast<Object*>(ref));
  return static_cast<int64_t>(garbage.size());
}

class RefGuard {
 public:
  explicit RefGuard(Ref* ref) : ref_(ref) {
    while (ref_->lock.test_and_set(std::memory_order_acquire)) cpu_relax();
  }
  ~RefGuard() { ref_->lock.clear(std::memory_order_release); }
  RefGuard(const RefGuard&) = delete;

 private:
  Ref* ref_;
};

}  // namespace

Ref* RefList::make(Value value) {
  Owned held(value);  // also where there is no memory for a reference
  if (--until_collection_ < 0) {
    int64_t survivors = 0;
    collect();
    for (RefLink* link = head_.next; link != &head_; link = link->next) ++survivors;
    until_collection_ = std::max<int64_t>(4096, survivors);
  }
  Ref* ref = new_ref();
  ref->value = held.take();
  insert(&head_, ref);
  return ref;
}

int64_t RefList::collect() { return empty() ? 0 : trial_deletion(head_, false); }

Value read(Ref* ref) {
  if (!ref->is_shared()) {
    retain(ref->value);
    return ref->value;
  }
  RefGuard guard(ref);
  retain(ref->value);
  return ref->value;
}

void write(Ref* ref, Value value) {
  Value old;
  if (!ref->is_shared()) {
    old = std::exchange(ref->value, value);
  } else {
    share(value);
    RefGuard guard(ref);
    old = std::exchange(ref->value, value);
  }
  release(old);
}

void unlink(Ref* ref) {
  if (ref->next == nullptr) return;
  if (!ref->is_shared()) return remove(ref);
  SharedRefs& all = shared_refs();
  std::lock_guard guard(all.lock);
  remove(ref);
  --all.size;
}

void adopt_shared(Ref* ref) {
  if (ref->next != nullptr) remove(ref);  // from the list of the run, which is this thread's
  SharedRefs& all = shared_refs();
  std::lock_guard guard(all.lock);
  insert(&all.head, ref);
  ++all.size;
}

MutatorScope::MutatorScope() {
  SharedRefs& all = shared_refs();
  static std::atomic<uint32_t> threads{0};
  thread_local uint32_t mine = threads.fetch_add(1, std::memory_order_relaxed) % std::size(all.mutators);
  open_ = &all.mutators[mine].open;
  for (;;) {
    open_->fetch_add(1);
    if (!all.collecting.load()) return;
    open_->fetch_sub(1);
    while (all.collecting.load(std::memory_order_relaxed)) sched_yield();
  }
}

MutatorScope::~MutatorScope() { open_->fetch_sub(1); }

int64_t collect_shared() {
  SharedRefs& all = shared_refs();
  if (all.collecting.exchange(true)) return 0;
  int64_t freed = 0;
  bool none = std::all_of(std::begin(all.mutators), std::end(all.mutators), [](auto& count) { return count.open.load() == 0; });
  if (none) {
    freed = trial_deletion(all.head, true);
    std::lock_guard guard(all.lock);
    all.threshold = std::max<int64_t>(256, 2 * all.size.load());
  }
  all.collecting.store(false);
  return freed;
}

void maybe_collect_shared() {
  SharedRefs& all = shared_refs();
  if (all.size.load(std::memory_order_relaxed) > all.threshold.load(std::memory_order_relaxed)) collect_shared();
}

}  // namespace relay
