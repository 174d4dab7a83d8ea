// Values of data types out of rows: what a function over a structure makes at every node, and lists of requests (docs/batching.md).
//
// Every clause has for each value of its result a piece of code that makes it for one node, from rows of tensors and from what was
// made for the node's parts. Levels come in order, so the parts' values are there; a part that is shared gives one shared value.
//
// `spec`, int64 words (relay.op.assemble has the same reader in Python):
//
//   0 functions, 1 clauses, 2 whether function 0 comes after all levels (what is done with a request), then for each function how many values it makes, then an address for each clause's record.
//   record:  function (-1: the items of a list), then an address of code for each of its function's values
//   code:    0 OWN part | 1 STATE part | 2 SHARED part | 3 CHILD part function number | 4 MAKE tag count name |
//            5 LIST part cons head nil name address | 6 END
//
// OWN takes the node's row of a tensor with a row for each node of the clause, STATE of one for all rows of the function, SHARED the
// part as it is. CHILD takes what a function has made at the row that the part (an index for each node) says. MAKE puts the last
// `count` values together (tag -1: a tuple; `name` is for the interpreter). LIST makes the list of what the code at `address` gives for each item of the node.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "linearise.h"
#include "operations.h"
#include "relay/error.h"
#include "relay/object.h"

namespace relay {
namespace {

[[noreturn]] void broken_description(const char* of) { fail(Status::failed, "%s: the description is broken", of); }

// One row of a tensor: a view of it, or its number.
Owned row_of(const Value& v, int64_t row) {
  Tensor* tensor = as_tensor(v);
  if (tensor == nullptr || tensor->rank == 0 || row < 0 || row >= tensor->shape()[0])
    fail(Status::failed, "there is no row %lld in %s", static_cast<long long>(row), describe(v).c_str());
  int64_t bytes = packed_bytes(tensor->dtype, count_elements(tensor->rank - 1u, tensor->shape() + 1));
  if (tensor->rank == 1) {
    uint64_t bits = 0;
    std::memcpy(&bits, tensor->data() + row * bytes, static_cast<size_t>(bytes));
    return Owned(Value::scalar(tensor->dtype, bits));
  }
  retain(static_cast<Object*>(tensor->storage));
  return Owned(Value::of(
      new_tensor(tensor->storage, tensor->offset + row * bytes, tensor->dtype, tensor->rank - 1u, tensor->shape() + 1)));
}

class Assembly {
 public:
  explicit Assembly(const Value* arguments)
      : offsets_(need(arguments[0], DType::int64_, 2)), parts_(as_adt(arguments[2])), words_(need(arguments[3], DType::int64_, 1)) {
    if (parts_ == nullptr) broken();
    made_.resize(static_cast<size_t>(word(0)));
    for (size_t f = 0; f < made_.size(); ++f) {
      made_[f].resize(static_cast<size_t>(word(3 + static_cast<int64_t>(f))));
      for (auto& values : made_[f]) values.resize(static_cast<size_t>(rows_of(static_cast<int64_t>(f))));
    }
  }

  Value run(const Value& root) {
    int64_t levels = offsets_->shape()[0] - 1;
    for (int64_t level = 0; level < levels; ++level)
      for (int64_t clause = 0; clause < word(1); ++clause)
        if (word(2) == 0 || word(record(clause)) != 0) rows(clause, offset(level, clause), offset(level + 1, clause));
    for (int64_t clause = 0; clause < word(1); ++clause)
      if (word(2) != 0 && word(record(clause)) == 0) rows(clause, offset(0, clause), offset(levels, clause));
    size_t count = of(0).size();
    for (size_t n = 0; n < count; ++n)
      if (const Tensor* roots = as_tensor(root); roots != nullptr && roots->rank == 1)
        listed(n, need(root, DType::int64_, 1));
      else
        push(slot(0, n, to_int64(root)).get());
    make(tuple_tag, static_cast<int64_t>(count));
    return pop().take();
  }

 private:
  // What some rows of a clause make.
  void rows(int64_t clause, int64_t first, int64_t end) {
    int64_t at = record(clause), function = word(at);
    if (function < 0) return;
    for (int64_t row = first; row < end; ++row)
      for (size_t n = 0; n < of(function).size(); ++n) {
        execute(word(at + 1 + static_cast<int64_t>(n)), row - offset(0, clause), row);
        slot(function, n, row) = pop();
      }
  }

  // A list of what function 0 has made at several rows, the last first: constructor 0 has a value and the rest, 1 is the end.
  void listed(size_t number, const Tensor* roots) {
    make(1, 0);
    for (int64_t n = roots->shape()[0]; n-- > 0;) {
      push(slot(0, number, reinterpret_cast<const int64_t*>(roots->data())[n]).get());
      std::swap(stack_[stack_.size() - 1], stack_[stack_.size() - 2]);
      make(0, 2);
    }
  }

  [[noreturn]] static void broken() { broken_description("rows.assemble"); }

  static Tensor* need(const Value& v, DType dtype, uint32_t rank) {
    Tensor* tensor = as_tensor(v);
    if (tensor == nullptr || tensor->dtype != dtype || tensor->rank != rank)
      fail(Status::failed, "rows.assemble got %s", describe(v).c_str());
    return tensor;
  }

  int64_t word(int64_t i) const {
    if (i < 0 || i >= words_->shape()[0]) [[unlikely]] broken();
    return reinterpret_cast<const int64_t*>(words_->data())[i];
  }
  int64_t record(int64_t clause) const { return word(3 + word(0) + clause); }
  int64_t offset(int64_t level, int64_t clause) const {
    return reinterpret_cast<const int64_t*>(offsets_->data())[level * offsets_->shape()[1] + clause];
  }
  // The rows of a function lie clause after clause.
  int64_t rows_of(int64_t function) const {
    int64_t rows = 0;
    for (int64_t clause = 0; clause < word(1); ++clause)
      if (word(record(clause)) == function) rows = std::max(rows, offset(offsets_->shape()[0] - 1, clause));
    return rows;
  }
  std::vector<std::vector<Owned>>& of(int64_t function) {
    if (function < 0 || static_cast<size_t>(function) >= made_.size()) broken();
    return made_[static_cast<size_t>(function)];
  }
  Owned& slot(int64_t function, size_t number, int64_t row) {
    auto& values = of(function);
    if (number >= values.size() || row < 0 || static_cast<size_t>(row) >= values[number].size()) broken();
    return values[number][static_cast<size_t>(row)];
  }
  const Value& part(int64_t i) const {
    if (i < 0 || i >= parts_->size) broken();
    return parts_->fields()[i];
  }
  int64_t index(int64_t i, int64_t row) const {
    Tensor* tensor = need(part(i), DType::int64_, 1);
    if (row < 0 || row >= tensor->shape()[0]) broken();
    return reinterpret_cast<const int64_t*>(tensor->data())[row];
  }
  Owned pop() {
    if (stack_.empty()) broken();
    Owned out = std::move(stack_.back());
    stack_.pop_back();
    return out;
  }
  void push(Value borrowed) {
    retain(borrowed);
    stack_.emplace_back(borrowed);
  }

  void make(int32_t tag, int64_t count) {
    if (count < 0 || static_cast<size_t>(count) > stack_.size()) broken();
    Owned out(Value::of(new_adt(tag, static_cast<uint32_t>(count))));
    for (int64_t n = count; n-- > 0;) as_adt(out.get())->fields()[n] = pop().take();
    stack_.push_back(std::move(out));
  }

  // `own` is the node's row among those of its clause, `row` among those of its function.
  void execute(int64_t pc, int64_t own, int64_t row) {
    for (;;) {
      switch (word(pc)) {
        case 0: stack_.push_back(row_of(part(word(pc + 1)), own)); pc += 2; break;
        case 1: stack_.push_back(row_of(part(word(pc + 1)), row)); pc += 2; break;
        case 2: push(part(word(pc + 1))); pc += 2; break;
        case 3:
          push(slot(word(pc + 2), static_cast<size_t>(word(pc + 3)), index(word(pc + 1), own)).get());
          pc += 4;
          break;
        case 4: make(static_cast<int32_t>(word(pc + 1)), word(pc + 2)); pc += 4; break;
        case 5: list(pc, own); pc += 7; break;
        case 6: return;
        default: broken();
      }
    }
  }

  // The last item is made first: a list ends in the constructor without fields.
  void list(int64_t pc, int64_t own) {
    int64_t first = index(word(pc + 1), own), cons = word(pc + 2), head = word(pc + 3);
    if (head != 0 && head != 1) broken();
    make(static_cast<int32_t>(word(pc + 4)), 0);
    for (int64_t item = index(word(pc + 1), own + 1); item-- > first;) {
      execute(word(pc + 6), item, item);
      if (stack_.size() < 2) broken();
      if (head == 0) std::swap(stack_[stack_.size() - 1], stack_[stack_.size() - 2]);
      make(static_cast<int32_t>(cons), 2);
    }
  }

  Tensor* offsets_;
  Adt* parts_;
  Tensor* words_;
  std::vector<std::vector<std::vector<Owned>>> made_;  // by function, number and row
  std::vector<Owned> stack_;
};

// Lists of requests: constructor 0 has a request and the rest, 1 is the end. `requests` are those that came, tuples, `parts` what was
// computed for the first of them: tensors with a row for each, and lists with an item for each. The result is a list of tuples for as
// many as there are rows. `spec`, int64 words, says of each field of a tuple what it is (0 a field of the request, 1 a row of a part,
// 2 an item of one), and the number of the field or part.
class Listing {
 public:
  explicit Listing(const Value* arguments) : requests_(arguments[0]), parts_(as_adt(arguments[1])), spec_(as_tensor(arguments[2])) {
    if (parts_ == nullptr || spec_ == nullptr || spec_->dtype != DType::int64_ || spec_->rank != 1 || spec_->shape()[0] % 2 != 0)
      broken();
    for (uint32_t n = 0; n < parts_->size; ++n) items_.push_back(parts_->fields()[n]);
  }

  Value run() {
    std::vector<Owned> made;
    for (; cell(requests_) && every_part_has(static_cast<int64_t>(made.size())); requests_ = as_adt(requests_)->fields()[1]) {
      made.push_back(request(as_adt(as_adt(requests_)->fields()[0]), static_cast<int64_t>(made.size())));
      for (Value& item : items_)
        if (cell(item)) item = as_adt(item)->fields()[1];
    }
    Owned out(Value::of(new_adt(1, 0)));
    for (size_t n = made.size(); n-- > 0;) {
      Owned more(Value::of(new_adt(0, 2)));
      as_adt(more.get())->fields()[0] = made[n].take();
      as_adt(more.get())->fields()[1] = out.take();
      out = std::move(more);
    }
    return out.take();
  }

 private:
  [[noreturn]] static void broken() { broken_description("rows.requests"); }

  static bool cell(const Value& v) {
    Adt* adt = as_adt(v);
    return adt != nullptr && adt->tag == 0 && adt->size == 2;
  }

  bool every_part_has(int64_t row) const {
    for (const Value& item : items_) {
      Tensor* tensor = as_tensor(item);
      if (tensor != nullptr ? tensor->rank == 0 || row >= tensor->shape()[0] : !cell(item)) return false;
    }
    return true;
  }

  Owned request(Adt* brought, int64_t row) const {
    const int64_t* word = reinterpret_cast<const int64_t*>(spec_->data());
    int64_t count = spec_->shape()[0] / 2;
    Owned out(Value::of(new_adt(tuple_tag, static_cast<uint32_t>(count))));
    for (int64_t n = 0; n < count; ++n) as_adt(out.get())->fields()[n] = field(brought, word[2 * n], word[2 * n + 1], row).take();
    return out;
  }

  Owned field(Adt* brought, int64_t kind, int64_t number, int64_t row) const {
    bool of_request = kind == 0;
    int64_t count = of_request ? (brought == nullptr ? 0 : static_cast<int64_t>(brought->size)) : static_cast<int64_t>(items_.size());
    if (number < 0 || number >= count || (kind == 2 && !cell(items_[static_cast<size_t>(number)]))) broken();
    if (kind == 1) return row_of(items_[static_cast<size_t>(number)], row);
    const Value& found = of_request ? brought->fields()[number] : as_adt(items_[static_cast<size_t>(number)])->fields()[0];
    retain(found);
    return Owned(found);
  }

  Value requests_;
  Adt* parts_;
  Tensor* spec_;
  std::vector<Value> items_;  // the parts: tensors, and what is left of lists
};

}  // namespace

Value rows_assemble(const Value* arguments) { return Assembly(arguments).run(arguments[1]); }

Value rows_requests(const Value* arguments) { return Listing(arguments).run(); }

}  // namespace relay
