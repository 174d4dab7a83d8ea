// The structure of a value as tables. A recursive function looks at each node of its argument by a decision tree, which ends in a
// clause; the clause calls functions on parts of the node (its sites) and reads tensors in it (its payloads). All nodes are
// found by one walk (a part that is shared is one node), and get rows so that the nodes of one clause and one level are
// neighbours. A node's level is 0 when it calls nothing and one more than the highest of its parts' otherwise.
//
// The walk is described by `spec`, int64 words (relay.op.rows has the same reader in Python):
//
//   0 functions, 1 clauses, 2 registers, 3 flags: 1 where the value is a list of requests (function 0 looks at each; what is done
//   with them is done after every level, so they are on none: 0), 2 where what one value holds is reached once at most (but for the
//   items of a list that others share), 4 where each node is told the row of its request, 8 << f where a part that function f reaches
//   twice is two nodes (it is given something else each time), then
//   an address of code for each function (reached with the node in register 0), then an address for each clause's record.
//   code:    0 SWITCH reg n address*n   |  1 FIELD to from index  |  2 CLAUSE clause  |  3 TURN to from cons head tail, the list
//            in `from` from its last item to its first
//   record:  function (-1: the items of a list), of a row the bytes that the levels pass on and the rows that these are to a product
//            (dims), sites, {0 reg function | 1 reg cons head tail address}, payloads, {reg dtype rank dims}
//            with a dim -1 - i standing for sizes[i]
//
// Of requests with such bytes the first may be all that is walked: so many that what the levels pass on stays near the caches. Who
// asked sees by the roots how many are answered.
//
// A site of kind 1 is a list: its items are rows of a clause of their own (the code at `address` is reached with the item in register
// 0), in the order of their lists' rows.
#include "linearise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <span>
#include <vector>

#include "operations.h"
#include "relay/cpu.h"
#include "relay/device.h"
#include "relay/error.h"
#include "relay/object.h"

namespace relay {
namespace {

template <class T>
T* data(Tensor* tensor) {
  return reinterpret_cast<T*>(tensor->data());
}

// What a walk finds lies in memory of its own, which is given back when it is over; that of a small structure is on the stack.
using Memory = std::pmr::monotonic_buffer_resource;
template <class T>
using Vector = std::pmr::vector<T>;
constexpr size_t memory_on_stack = size_t{32} << 10;
constexpr size_t few = 64;  // nodes and parts that there is room for from the start

template <class T>
std::span<T> array(Memory& memory, int64_t count) {
  auto n = static_cast<size_t>(count);
  T* first = std::pmr::polymorphic_allocator<T>(&memory).allocate(n);
  return {new (first) T[n]{}, n};
}

// --- the description of the walk -----------------------------------------------------------------------------------

struct Site {
  bool list;
  int64_t reg, target;  // a function, or the address of the items' code
  int64_t cons, head, tail;
  size_t items;  // the clause of the items
};

struct Payload {
  int64_t reg;
  DType dtype;
  uint32_t rank;
  int64_t shape[max_rank];
};

struct ClauseRecord {
  int64_t function, passed_on, multiplied;
  std::span<Site> sites;
  std::span<Payload> payloads;
};

class Spec {
 public:
  Spec(const Value& words, const Value& sizes, Memory& memory) : sizes_(&memory) {
    Tensor* tensor = as_tensor(words);
    if (tensor == nullptr || tensor->dtype != DType::int64_ || tensor->rank != 1)
      fail(Status::failed, "rows.linearise: the description is not an int64 vector");
    word_ = data<int64_t>(tensor);
    count_ = tensor->shape()[0];
    read_sizes(sizes);
    functions = at(0);
    registers = static_cast<size_t>(at(2));
    many = (at(3) & 1) != 0;
    once = (at(3) & 2) != 0;
    asking = (at(3) & 4) != 0;
    apart = static_cast<uint64_t>(at(3)) >> 3;
    clauses = array<ClauseRecord>(memory, count_at(1));
    for (size_t c = 0; c < clauses.size(); ++c) clauses[c] = read(at(4 + functions + static_cast<int64_t>(c)), memory);
    for (ClauseRecord& clause : clauses)
      for (Site& site : clause.sites)
        if (site.list) site.items = items_of(site.target);
  }
  int64_t at(int64_t i) const {
    if (static_cast<uint64_t>(i) >= static_cast<uint64_t>(count_)) [[unlikely]]
      fail(Status::failed, "rows.linearise: the description is broken");
    return word_[i];
  }
  // How many there are of something that takes a word each at the least.
  int64_t count_at(int64_t i) const {
    int64_t n = at(i);
    if (n < 0 || n > count_) fail(Status::failed, "rows.linearise: the description is broken");
    return n;
  }
  int64_t entry(int64_t function) const { return at(4 + function); }

  int64_t functions;
  size_t registers;
  bool many, once, asking;
  uint64_t apart;  // by function
  std::span<ClauseRecord> clauses;

 private:
  void read_sizes(const Value& sizes) {
    if (Adt* tuple = as_adt(sizes)) {
      for (uint32_t i = 0; i < tuple->size; ++i) sizes_.push_back(to_int64(tuple->fields()[i]));
    } else if (Tensor* vector = as_tensor(sizes); vector != nullptr && vector->dtype == DType::int64_) {
      sizes_.assign(data<int64_t>(vector), data<int64_t>(vector) + vector->elements());
    }
  }
  ClauseRecord read(int64_t p, Memory& memory) const {
    ClauseRecord out;
    out.function = at(p++);
    out.passed_on = size(at(p++));
    out.multiplied = size(at(p++));
    out.sites = array<Site>(memory, count_at(p++));
    for (Site& site : out.sites) {
      site.list = at(p++) != 0;
      site.reg = at(p++);
      if (site.list) {
        site.cons = at(p++);
        site.head = at(p++);
        site.tail = at(p++);
      }
      site.target = at(p++);
    }
    out.payloads = array<Payload>(memory, count_at(p++));
    for (Payload& payload : out.payloads) {
      payload.reg = at(p++);
      payload.dtype = static_cast<DType>(at(p++));
      payload.rank = static_cast<uint32_t>(at(p++));
      if (payload.rank >= max_rank) fail(Status::failed, "rows.linearise: rank %u is too high", payload.rank);
      for (uint32_t i = 0; i < payload.rank; ++i)
        payload.shape[i] = size(at(p++));
    }
    return out;
  }
  int64_t size(int64_t dim) const {
    if (dim < 0 && static_cast<size_t>(-1 - dim) >= sizes_.size())
      fail(Status::failed, "rows.linearise: a size is missing");
    return dim < 0 ? sizes_[static_cast<size_t>(-1 - dim)] : dim;
  }
  size_t items_of(int64_t address) const {
    while (at(address) == 1 || at(address) == 3) address += at(address) == 1 ? 4 : 6;
    if (at(address) != 2) fail(Status::failed, "rows.linearise: the description is broken");
    return static_cast<size_t>(at(address + 1));
  }

  const int64_t* word_;
  int64_t count_;
  Vector<int64_t> sizes_;
};

// --- the walk ------------------------------------------------------------------------------------------------------

// A node, or an item of a list. `part`: its first entry in `parts`, one for each child site (an item's own follow its list's
// owner's); lists: the first entry in `lists`.
struct Node {
  uint32_t clause;
  int32_t level;            // -1: not known yet
  uint32_t part, part_end;  // what it refers to
  uint32_t payload, list;
  int64_t row;
};

struct Part {
  Object* object;
  uint32_t function : 31;
  uint32_t again : 1;  // it may be reached again, though one value holds it
  uint32_t node;       // once it was looked at
};

// The nodes of objects that may be met again by object and function (open addressing).
class Known {
 public:
  explicit Known(Memory& memory) : slots_(&memory) {}
  uint32_t* find(const Object* object, uint32_t function) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    Slot& slot = probe(object, function);
    if (slot.object == nullptr) {
      slot = {object, function, none};
      ++used_;
    }
    return &slot.node;
  }
  static constexpr uint32_t none = ~0u;

 private:
  struct Slot {
    const Object* object = nullptr;
    uint32_t function = 0, node = none;
  };
  Slot& probe(const Object* object, uint32_t function) {
    auto hash = (reinterpret_cast<uintptr_t>(object) >> 4) * 0x9E3779B97F4A7C15u + function * 0xD1B54A32D192ED03u;
    for (size_t i = hash >> 20;; ++i) {
      Slot& slot = slots_[i & (slots_.size() - 1)];
      if (slot.object == nullptr || (slot.object == object && slot.function == function)) return slot;
    }
  }
  void grow() {
    Vector<Slot> old(slots_.empty() ? few : 2 * slots_.size(), slots_.get_allocator());
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.object != nullptr) probe(slot.object, slot.function) = slot;
  }
  Vector<Slot> slots_;
  size_t used_ = 0;
};

// Of requests that are answered in parts: after how many it is known how large they are, how many second-level caches a part fills for
// each thread, one or, for the sake of enough rows, more, and how many rows its nodes multiply at the least (with fewer, products of
// levels take longer for a row).
constexpr size_t enough_known = 16;
constexpr double caches_full = 2.5, enough_rows = 2560, fewest_rows = 640;

constexpr uint32_t asked_fields = 4;  // of a constructor value, ahead of the walk

class Walk {
 public:
  Walk(const Spec& spec, Memory& memory)
      : spec_(spec),
        memory_(memory),
        registers_(spec.registers, &memory),
        nodes_(&memory),
        parts_(&memory),
        payloads_(&memory),
        lists_(&memory),
        items_(spec.clauses.size(), &memory),
        open_(&memory),
        roots_(&memory),
        found_(&memory),
        results_(&memory),
        turned_(&memory),
        known_(memory) {
    nodes_.reserve(few);
    parts_.reserve(few);
    payloads_.reserve(few);
    results_.reserve(few);
  }

  // A value that function 0 looks at.
  void root(const Value& v) {
    roots_.push_back(static_cast<uint32_t>(parts_.size()));
    meet(v, 0, !spec_.once);
  }

  // Finds all nodes below the roots that there are.
  void run() {
    own_parts_ = SIZE_MAX;
    for (; looked_at_ < parts_.size(); ++looked_at_) {
      look_ahead(looked_at_);
      uint32_t node = enter(parts_[looked_at_]);  // may move parts
      parts_[looked_at_].node = node;
      if (looked_at_ == roots_.back()) own_parts_ = parts_.size();
    }
  }

  // Finds the nodes below the first requests, or all of them: by what was found below the first one, and then below twice as many each
  // time. Constructor 0 has a request and the rest, 1 is the end.
  void requests(const Value& list, int64_t threads) {
    auto filled = [](const Value& v) {
      Adt* cell = as_adt(v);
      return cell != nullptr && cell->size == 2 ? cell : nullptr;
    };
    size_t given = 0;
    for (Adt* cell = filled(list); cell != nullptr; cell = filled(cell->fields()[1])) ++given;
    Adt* cell = filled(list);
    for (size_t most = std::min<size_t>(given, 1); roots_.size() < most;) {
      for (; roots_.size() < most; cell = filled(cell->fields()[1])) root(cell->fields()[0]);
      run();
      size_t known = roots_.size(), part = of_a_part(given, threads);
      most = passed_on_ == 0 || known >= enough_known ? part : std::min(part, 2 * known);
    }
  }

  void find_levels() {
    if (nodes_.size() == parts_.size())
      levels_of_trees();
    else
      for (uint32_t p : roots_) level_of(parts_[p].node);
  }

  Value tables();

 private:
  // How many requests are walked together, by those that were. What requests share is computed once: they are not parted then.
  size_t of_a_part(size_t given, int64_t threads) const {
    if (passed_on_ == 0 || may_meet_again_) return given;
    auto requests = static_cast<double>(given);
    double whole = passed_on_ * requests / static_cast<double>(roots_.size());
    double row = passed_on_ / std::max(multiplied_, 1.0), cache = static_cast<double>(second_level_cache());
    double near = std::clamp(enough_rows * row, cache, caches_full * cache);
    double part = std::max(near, fewest_rows * row) * static_cast<double>(threads);
    double parts = std::round(whole / part);
    return parts < 2 ? given : static_cast<size_t>(std::ceil(requests / parts));
  }

  // A part to be looked at. They wait in a queue, so that what leads to them can be asked for long before: a structure lies all over
  // memory, and each step into it would wait.
  void meet(const Value& v, int64_t function, bool again) {
    if (v.kind != Kind::object) fail(Status::failed, "expected a constructor value and got %s", describe(v).c_str());
    ask_for(v);
    parts_.push_back({v.object, static_cast<uint32_t>(function) & INT32_MAX, again, 0});
  }

  // Always inlined: a function that does nothing but this is one without effects to the compiler, whose calls go away.
  [[gnu::always_inline]] static void ask_for(const Value& v) {
    if (v.kind != Kind::object) return;
    __builtin_prefetch(v.object);
    __builtin_prefetch(reinterpret_cast<const std::byte*>(v.object) + sizeof(Adt) + sizeof(Value));
  }
  [[gnu::always_inline]] static void ask_for_fields(const Value& v) {
    if (Adt* adt = as_adt(v))
      for (uint32_t i = 0; i < std::min(adt->size, asked_fields); ++i) ask_for(adt->fields()[i]);
  }

  // Asks for the fields of a part some places further on, and for what these refer to of one that is nearer.
  [[gnu::always_inline]] void look_ahead(size_t p) {
    if (p + 6 < parts_.size()) ask_for_fields(Value::of(parts_[p + 6].object));
    if (p + 3 >= parts_.size()) return;
    if (Adt* adt = as_adt(Value::of(parts_[p + 3].object)))
      for (uint32_t i = 0; i < std::min(adt->size, asked_fields); ++i) ask_for_fields(adt->fields()[i]);
  }

  // All levels, where no part is reached twice: each is the node of its number, and comes after what refers to it.
  void levels_of_trees() {
    for (size_t n = nodes_.size(); n-- > 0;) {
      Node& node = nodes_[n];
      int32_t level = has_sites(node) ? 1 : 0;
      for (uint32_t p = node.part; p != node.part_end; ++p) level = std::max(level, nodes_[p].level + 1);
      node.level = is_done_last(node) ? 0 : level;
    }
  }

  // The level of a node: those of its parts are found first.
  void level_of(uint32_t root) {
    open_.push_back({root, nodes_[root].part});
    while (!open_.empty()) {
      Frame& frame = open_.back();
      Node& node = nodes_[frame.node];
      while (frame.next != node.part_end && nodes_[parts_[frame.next].node].level >= 0) ++frame.next;
      if (frame.next != node.part_end) {
        uint32_t child = parts_[frame.next].node;
        open_.push_back({child, nodes_[child].part});
        continue;
      }
      int32_t level = has_sites(node) ? 1 : 0;
      for (uint32_t p = node.part; p != node.part_end; ++p) level = std::max(level, nodes_[parts_[p].node].level + 1);
      node.level = is_done_last(node) ? 0 : level;
      open_.pop_back();
    }
  }

  bool is_done_last(const Node& node) const { return spec_.many && spec_.clauses[node.clause].function == 0; }
  bool has_sites(const Node& node) const { return !spec_.clauses[node.clause].sites.empty(); }

  // A value of the registers; they hold values of the structure, which the caller keeps alive.
  Value& reg(int64_t i) {
    if (i < 0 || static_cast<size_t>(i) >= registers_.size())
      fail(Status::failed, "rows.linearise: the description is broken");
    return registers_[static_cast<size_t>(i)];
  }

  static const Value& field(const Value& v, int64_t index) {
    Adt* adt = as_adt(v);
    if (adt == nullptr || index < 0 || index >= static_cast<int64_t>(adt->size))
      fail(Status::failed, "there is no field %lld in %s", static_cast<long long>(index), describe(v).c_str());
    return adt->fields()[index];
  }

  // Runs the decision tree: the clause of the value in register 0, with the registers that its record reads.
  size_t decide(int64_t pc) {
    for (;;) {
      switch (spec_.at(pc)) {
        case 0: {
          Adt* adt = as_adt(reg(spec_.at(pc + 1)));
          int64_t n = spec_.at(pc + 2);
          int64_t to = adt != nullptr && adt->tag >= 0 && adt->tag < n ? spec_.at(pc + 3 + adt->tag) : -1;
          if (to < 0) fail(Status::failed, "no clause of a match fits %s", describe(reg(spec_.at(pc + 1))).c_str());
          pc = to;
          break;
        }
        case 1:
          reg(spec_.at(pc + 1)) = field(reg(spec_.at(pc + 2)), spec_.at(pc + 3));
          pc += 4;
          break;
        case 2: {
          int64_t clause = spec_.at(pc + 1);
          if (clause < 0 || static_cast<size_t>(clause) >= spec_.clauses.size())
            fail(Status::failed, "rows.linearise: the description is broken");
          return static_cast<size_t>(clause);
        }
        case 3:
          reg(spec_.at(pc + 1)) = turned(reg(spec_.at(pc + 2)), spec_.at(pc + 3), spec_.at(pc + 4), spec_.at(pc + 5));
          pc += 6;
          break;
        default: fail(Status::failed, "rows.linearise: the description is broken");
      }
    }
  }

  // A list from its last item to its first.
  Value turned(Value list, int64_t cons, int64_t head, int64_t tail) {
    if (head < 0 || head > 1 || tail != 1 - head) fail(Status::failed, "rows.linearise: the description is broken");
    Vector<Value> heads(&memory_);
    for (;; list = field(list, tail)) {
      Adt* cell = as_adt(list);
      if (cell == nullptr) fail(Status::failed, "expected a list and got %s", describe(list).c_str());
      if (cell->tag != cons) break;
      heads.push_back(field(list, head));
    }
    retain(list);
    Owned made(list);
    for (const Value& value : heads) {
      Adt* cell = new_adt(static_cast<int32_t>(cons), 2);
      retain(value);
      cell->fields()[head] = value;
      cell->fields()[tail] = made.take();
      made = Owned(Value::of(cell));
    }
    turned_.push_back(std::move(made));
    return turned_.back().get();
  }

  static bool is_shared(const Object* object) {
    return object->is_immortal() || object->count.load(std::memory_order_relaxed) > 1;
  }

  uint32_t enter(const Part part) {
    Object* object = part.object;
    const uint32_t function = part.function;
    uint32_t* known = nullptr;
    const bool apart = function < 64 && (spec_.apart >> function & 1) != 0;
    if (!apart && (part.again || is_shared(object))) {
      may_meet_again_ |= looked_at_ >= own_parts_ && is_shared(object) && !object->is_immortal();
      known = known_.find(object, function);
      if (*known != Known::none) return *known;
    }
    auto id = static_cast<uint32_t>(nodes_.size());
    if (known != nullptr) *known = id;
    reg(0) = Value::of(object);
    size_t clause = decide(spec_.entry(function));
    const ClauseRecord& record = spec_.clauses[clause];
    passed_on_ += static_cast<double>(record.passed_on);
    multiplied_ += static_cast<double>(record.multiplied);
    Node node{};
    node.clause = static_cast<uint32_t>(clause);
    node.level = -1;
    node.part = static_cast<uint32_t>(parts_.size());
    node.payload = static_cast<uint32_t>(payloads_.size());
    node.list = static_cast<uint32_t>(lists_.size());
    read_payloads(record);
    children(record, nullptr, !spec_.once);
    // The lists come after the children, and their items may use every register.
    found_.clear();
    for (const Site& site : record.sites)
      if (site.list) found_.emplace_back(&site, reg(site.reg));
    for (auto& [site, list] : found_) items(*site, list, id);
    node.part_end = static_cast<uint32_t>(parts_.size());
    nodes_.push_back(node);
    return id;
  }

  void read_payloads(const ClauseRecord& record) {
    for (const Payload& payload : record.payloads) payloads_.push_back(reg(payload.reg));
  }

  // The parts of a node, or of the `item` of a list, which others may hold as well: then they may be reached again. An item that is a part
  // itself is not looked at for that before its turn comes, when it is near.
  void children(const ClauseRecord& record, const Object* item, bool again) {
    for (const Site& site : record.sites) {
      if (site.list) continue;
      const Value& part = reg(site.reg);
      meet(part, site.target, again || (item != nullptr && !part.is_object(item) && is_shared(item)));
    }
  }

  void items(const Site& site, Value list, uint32_t owner) {
    const ClauseRecord& record = spec_.clauses[site.items];
    Vector<Item>& all = items_[site.items];
    auto first = static_cast<uint32_t>(all.size());
    bool shared = !spec_.once;  // the list, from some cell on
    for (;;) {
      Adt* cell = as_adt(list);
      if (cell == nullptr) fail(Status::failed, "expected a list and got %s", describe(list).c_str());
      if (cell->tag != site.cons) break;
      shared |= is_shared(cell);
      const Value& item = field(list, site.head);
      const Object* object = item.kind == Kind::object ? item.object : nullptr;
      reg(0) = item;
      list = field(list, site.tail);
      decide(site.target);
      all.push_back({owner, static_cast<uint32_t>(parts_.size()), static_cast<uint32_t>(payloads_.size())});
      read_payloads(record);
      children(record, object, shared);
    }
    lists_.push_back({first, static_cast<uint32_t>(all.size()) - first});
    passed_on_ += static_cast<double>(record.passed_on) * lists_.back().count;
  }

  struct Item {
    uint32_t owner, part, payload;
  };
  struct List {
    uint32_t first, count;
  };
  struct Frame {
    uint32_t node, next;
  };

  Tensor* vector(int64_t n) { return keep(new_host_tensor(DType::int64_, 1, &n)); }
  Tensor* keep(Tensor* tensor) {
    results_.emplace_back(Value::of(tensor));
    return tensor;
  }

  void gather(const Payload& payload, const Vector<uint32_t>& at, size_t number);
  Vector<int64_t> requests_of_nodes() const;

  const Spec& spec_;
  Memory& memory_;
  Vector<Value> registers_;  // borrowed
  Vector<Node> nodes_;
  Vector<Part> parts_;
  Vector<Value> payloads_;  // borrowed
  Vector<List> lists_;
  Vector<Vector<Item>> items_;  // by clause
  Vector<Frame> open_;
  size_t looked_at_ = 0;         // of the parts
  size_t own_parts_ = 0;         // up to here parts are requests and what these hold themselves
  double passed_on_ = 0;         // bytes
  double multiplied_ = 0;        // rows, at the least
  Vector<uint32_t> roots_;       // their places among the parts
  bool may_meet_again_ = false;  // some part below the requests' own: others may refer to it
  Vector<std::pair<const Site*, Value>> found_;  // of one node; borrowed
  Vector<Owned> results_;
  Vector<Owned> turned_;  // lists that the walk made
  Known known_;
};

// --- tables --------------------------------------------------------------------------------------------------------

constexpr size_t prefetched = 2048;  // of a part; the rest the machine finds by itself
constexpr size_t rows_ahead = 3;     // what is written is asked for so many rows before

void Walk::gather(const Payload& payload, const Vector<uint32_t>& at, size_t number) {
  int64_t shape[max_rank];
  shape[0] = static_cast<int64_t>(at.size());
  std::copy(payload.shape, payload.shape + payload.rank, shape + 1);
  Tensor* out = keep(new_host_tensor(payload.dtype, payload.rank + 1, shape));
  int64_t elements = count_elements(payload.rank, payload.shape);
  auto bytes = static_cast<size_t>(packed_bytes(payload.dtype, elements));
  std::byte* to = out->data();
  // The parts lie all over memory: what leads to them is asked for some steps ahead, and then their first bytes; so are the
  // lines that they go to.
  auto ahead = [&](size_t i) { return i < at.size() ? as_tensor(payloads_[at[i] + number]) : nullptr; };
  for (size_t i = 0; i < at.size(); ++i) {
    if (i + 8 < at.size())
      if (const Value& later = payloads_[at[i + 8] + number]; later.kind == Kind::object) __builtin_prefetch(later.object);
    if (Tensor* later = ahead(i + 5)) __builtin_prefetch(later->storage);
    if (Tensor* later = ahead(i + 2))
      for (size_t line = 0; line < std::min(bytes, prefetched); line += 64) __builtin_prefetch(later->data() + line);
    if (i + rows_ahead < at.size())
      for (size_t line = 0; line < std::min(bytes, prefetched); line += 64)
        __builtin_prefetch(to + rows_ahead * bytes + line, 1);
    const Value& v = payloads_[at[i] + number];
    if (v.kind == Kind::scalar && v.dtype == payload.dtype && payload.rank == 0) {
      std::memcpy(to, &v.bits, bytes);
    } else {
      Tensor* tensor = as_tensor(v);
      if (tensor == nullptr || tensor->dtype != payload.dtype || tensor->rank != payload.rank ||
          !std::equal(payload.shape, payload.shape + payload.rank, tensor->shape()) ||
          tensor->storage->device != host_device)
        fail(Status::failed, "a part of the structure is %s, which is not what the types of the program say",
             describe(v).c_str());
      std::memcpy(to, tensor->data(), bytes);
    }
    to += bytes;
  }
}

// The rows of the requests that nodes are reached from (of one that several reach: one of them). What leads to a node comes before it.
Vector<int64_t> Walk::requests_of_nodes() const {
  Vector<int64_t> out(nodes_.size(), -1, &memory_);
  for (uint32_t p : roots_) out[parts_[p].node] = nodes_[parts_[p].node].row;
  for (size_t n = 0; n < nodes_.size(); ++n)
    for (uint32_t p = nodes_[n].part; p != nodes_[n].part_end; ++p)
      if (int64_t& request = out[parts_[p].node]; request < 0) request = out[n];
  return out;
}

Value Walk::tables() {
  size_t clauses = spec_.clauses.size();
  int32_t depth = 0;
  for (const Node& node : nodes_) depth = std::max(depth, node.level);
  // Counting sort by clause and level.
  int64_t shape[2] = {depth + 2, static_cast<int64_t>(clauses)};
  int64_t none = 0;
  keep(new_host_tensor(DType::int64_, 0, &none));
  *data<int64_t>(as_tensor(results_[0].get())) = depth;
  Tensor* table = keep(new_host_tensor(DType::int64_, 2, shape));
  auto* offsets = data<int64_t>(table);
  std::fill(offsets, offsets + shape[0] * shape[1], 0);
  auto offset = [&](int64_t level, size_t clause) -> int64_t& {
    return offsets[level * static_cast<int64_t>(clauses) + static_cast<int64_t>(clause)];
  };
  for (const Node& node : nodes_) ++offset(node.level + 1, node.clause);
  Vector<int64_t> next(static_cast<size_t>(spec_.functions), 0, &memory_);
  for (size_t c = 0; c < clauses; ++c) {
    if (spec_.clauses[c].function < 0) continue;
    int64_t row = next[static_cast<size_t>(spec_.clauses[c].function)];
    for (int64_t level = 0; level <= depth + 1; ++level) row = offset(level, c) += row;
    next[static_cast<size_t>(spec_.clauses[c].function)] = row;
  }
  Vector<int64_t> free(offsets, offsets + shape[0] * shape[1], &memory_);
  Vector<Vector<uint32_t>> members(clauses, &memory_);
  for (size_t c = 0; c < clauses; ++c)
    if (spec_.clauses[c].function >= 0) members[c].resize(static_cast<size_t>(offset(depth + 1, c) - offset(0, c)));
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    Node& node = nodes_[n];
    node.row = free[static_cast<size_t>(node.level) * clauses + node.clause]++;
    members[node.clause][static_cast<size_t>(node.row - offset(0, node.clause))] = n;
  }
  Tensor* roots = vector(static_cast<int64_t>(roots_.size()));
  for (size_t i = 0; i < roots_.size(); ++i) data<int64_t>(roots)[i] = nodes_[parts_[roots_[i]].node].row;
  // Items in the order of their owners' rows.
  Vector<Vector<uint32_t>> order(clauses, &memory_);
  Vector<Vector<int64_t>> starts(clauses, &memory_);
  for (size_t c = 0; c < clauses; ++c) {
    size_t number = 0;
    for (const Site& site : spec_.clauses[c].sites) {
      if (!site.list) continue;
      Vector<uint32_t>& items = order[site.items];
      Vector<int64_t>& start = starts[site.items];
      start.reserve(members[c].size() + 1);
      for (uint32_t n : members[c]) {
        start.push_back(static_cast<int64_t>(items.size()));
        const List& list = lists_[nodes_[n].list + number];
        for (uint32_t i = 0; i < list.count; ++i) items.push_back(list.first + i);
      }
      start.push_back(static_cast<int64_t>(items.size()));
      for (int64_t level = 0; level <= depth + 1; ++level)
        offset(level, site.items) = start[static_cast<size_t>(offset(level, c) - offset(0, c))];
      ++number;
    }
  }
  Vector<int64_t> requests = spec_.asking ? requests_of_nodes() : Vector<int64_t>(&memory_);
  for (size_t c = 0; c < clauses; ++c) {
    const ClauseRecord& record = spec_.clauses[c];
    bool is_items = record.function < 0;
    size_t count = is_items ? order[c].size() : members[c].size();
    auto n = static_cast<int64_t>(count);
    if (spec_.asking) {
      Tensor* out = vector(n);
      for (size_t i = 0; i < count; ++i)
        data<int64_t>(out)[i] = requests[is_items ? items_[c][order[c][i]].owner : members[c][i]];
    }
    if (is_items) {
      Tensor* owners = vector(n);
      for (size_t i = 0; i < count; ++i) {
        const Node& owner = nodes_[items_[c][order[c][i]].owner];
        data<int64_t>(owners)[i] = owner.row - offset(0, owner.clause);
      }
    }
    uint32_t number = 0;
    for (const Site& site : record.sites) {
      if (site.list) {
        Tensor* out = vector(n + 1);
        std::copy(starts[site.items].begin(), starts[site.items].end(), data<int64_t>(out));
        continue;
      }
      Tensor* out = vector(n);
      for (size_t i = 0; i < count; ++i) {
        uint32_t part = is_items ? items_[c][order[c][i]].part : nodes_[members[c][i]].part;
        data<int64_t>(out)[i] = nodes_[parts_[part + number].node].row;
      }
      ++number;
    }
    if (record.payloads.empty()) continue;
    Vector<uint32_t> at(count, &memory_);
    for (size_t i = 0; i < count; ++i)
      at[i] = is_items ? items_[c][order[c][i]].payload : nodes_[members[c][i]].payload;
    for (size_t p = 0; p < record.payloads.size(); ++p) gather(record.payloads[p], at, p);
  }
  Adt* tuple = new_adt(tuple_tag, static_cast<uint32_t>(results_.size()));
  for (size_t i = 0; i < results_.size(); ++i) tuple->fields()[i] = results_[i].take();
  return Value::of(tuple);
}

}  // namespace

Value rows_linearise(const Value* arguments, relay_kernel_context* context) {
  alignas(std::max_align_t) std::byte on_stack[memory_on_stack];
  Memory memory(on_stack, sizeof on_stack);
  Spec spec(arguments[1], arguments[2], memory);
  Walk walk(spec, memory);
  if (!spec.many) {
    walk.root(arguments[0]);
    walk.run();
  } else {
    walk.requests(arguments[0], context->num_workers);
  }
  walk.find_levels();
  return walk.tables();
}

}  // namespace relay
