// Python values to values of a program, by the types that travel with it: tuples, lists, algebraic values (relay.ir.value), and tensors
// in them, checked, since compiled code trusts them; and back. Iterative: a list may be long and a tree deep. What is shared stays
// shared, both ways.
#include <nanobind/stl/string.h>
#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "../src/operations.h"
#include "bindings.h"
#include "relay/error.h"

namespace relay {
namespace {

// Arrays of at most this many bytes are copied: that costs less than keeping hold of them.
constexpr int64_t small_array = 8192;
// How much of the way to the place of an error is shown.
constexpr size_t shown_steps = 8;

struct Constructor {
  std::string name;
  std::vector<uint32_t> fields;  // types
  nb::object spelled;            // the name, for Python
};

struct Type {
  // `rows`: a tensor in Python, the list of its rows in the program.
  enum Kind { unknown, tensor, rows, tuple, adt, other } kind = unknown;
  DType dtype{};
  std::vector<int64_t> shape;     // -1: any size, below: a size with a name or one computed from such (Sizes)
  int64_t bytes = -1;             // where the shape says it
  std::vector<uint32_t> fields;   // of a tuple
  std::string name;               // of a data type; of anything else what it is called
  std::vector<Constructor> constructors;
  bool is_list = false, is_option = false;
  nb::object spelled;    // the name of a data type, for Python
  nb::object seen_name;  // the last Python string that was this type's name
};

std::string shown(nb::handle object) {
  auto text = nb::cast<std::string>(nb::repr(object));
  return text.size() <= 60 ? text : nb::cast<std::string>(nb::str(object.type().attr("__name__")));
}

// The sizes of one call that have names, as "n" or "2 * n", by number: size -2 - 2 k of a type is number k, a name, size -3 - 2 k is number
// k, computed from names, or a name with bounds. The first tensor that has such a size says what it is.
struct Sizes {
  std::vector<int64_t> values;  // -1: not known yet
  bool unsettled = false;       // a computed one was met before the names that it is computed from, or one with bounds

  static bool is_named(int64_t size) { return size < -1; }
  static bool is_computed(int64_t size) { return size < -1 && (size & 1) != 0; }
  int64_t& at(int64_t size) {
    auto number = static_cast<size_t>((-2 - size) / 2);
    if (number >= values.size()) values.resize(number + 1, -1);
    return values[number];
  }
  // What the type's size is, if that is known: -1 is any.
  int64_t known(int64_t size) { return is_named(size) ? at(size) : size; }
  nb::tuple listed() const {
    nb::list out;
    for (int64_t value : values) out.append(value);
    return nb::tuple(out);
  }
};

nb::object checked(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

class Converter {
 public:
  // `expand(n)` describes type number n; `computed(k, sizes)` gives size number k from the sizes by number, or None; `settle(sizes)` fails
  // where one differs from what it is computed to be; `value` is the class of algebraic values; the errors are classes of exceptions.
  // `keeps`: whether calls may keep what they are given, in references and functions: arrays in values are copied then, as their owners
  // may write them.
  Converter(nb::object expand, nb::object computed, nb::object settle, nb::object value, nb::object type_error,
            nb::object shape_error, bool keeps)
      : copied_(keeps ? INT64_MAX : small_array),
        expand_(std::move(expand)),
        computed_(std::move(computed)),
        settle_(std::move(settle)),
        value_(std::move(value)),
        type_error_(std::move(type_error)),
        shape_error_(std::move(shape_error)) {
    const char* names[] = {"adt", "constructor", "tag", "fields"};
    for (size_t i = 0; i < 4; ++i) {
      names_[i] = nb::steal(PyUnicode_InternFromString(names[i]));
      // Of a class with slots the place of each is known: to ask the object takes five times as long.
      nb::object slot = nb::getattr(value_, names_[i], nb::none());
      const auto* member = Py_IS_TYPE(slot.ptr(), &PyMemberDescr_Type)
                               ? reinterpret_cast<PyMemberDescrObject*>(slot.ptr())->d_member
                               : nullptr;
      if (member != nullptr && member->type == T_OBJECT_EX) places_[i] = member->offset;
    }
  }

  nb::object convert(nb::handle object, uint32_t type, const std::string& what, nb::handle objects, nb::tuple bound) {
    Sizes sizes = sizes_of(objects, bound);
    nb::object out = wrapped(converted(object, type, what, sizes));
    settle(sizes);
    return out;
  }
  nb::object arguments(nb::handle objects, nb::tuple types, nb::tuple whats, nb::tuple bound);
  nb::object requests(nb::handle each, nb::tuple types, nb::tuple whats, nb::handle objects, nb::tuple bound);
  nb::object outward(nb::handle object, uint32_t type);

 private:
  // A place in the argument: field `index` of the value at step `parent`, which has constructor `constructor` of `type`.
  struct Step {
    uint32_t parent, type;
    int32_t constructor;  // -1: a tuple, -2: the item of a list
    uint32_t index;
  };
  struct Task {
    nb::object object;
    uint32_t type;
    uint32_t step;
    Value* slot;
  };
  struct Work {
    std::vector<Task> tasks;
    std::vector<Step> steps;
    std::unordered_map<PyObject*, std::vector<std::pair<uint32_t, Adt*>>> met;
    const std::string* what;
    Sizes* sizes;
    int64_t copied;  // arrays of at most so many bytes are copied

    static bool is_shared(const Task& task) { return Py_REFCNT(task.object.ptr()) > 2; }  // this task and one owner
    // What was made of an object that stands in several places is given to each of the same type: there may be far more ways to it
    // than objects.
    bool was_met(const Task& task) const {
      if (!is_shared(task)) return false;
      auto found = met.find(task.object.ptr());
      if (found == met.end()) return false;
      for (auto& [number, adt] : found->second)
        if (number == task.type) {
          retain(static_cast<Object*>(adt));
          *task.slot = Value::of(adt);
          return true;
        }
      return false;
    }
    void give(const Task& task, Adt* adt) {
      *task.slot = Value::of(adt);
      if (is_shared(task)) met[task.object.ptr()].emplace_back(task.type, adt);
    }

    // What is a leaf, and right, is converted at once.
    void add(nb::handle object, uint32_t number, const Type& type, Step step, Value* slot) {
      if (type.kind == Type::tensor && convert_leaf(object, type, slot, *sizes, copied)) return;
      steps.push_back(step);
      tasks.push_back({nb::borrow(object), number, static_cast<uint32_t>(steps.size() - 1), slot});
    }
  };
  static constexpr uint32_t no_step = ~0u;
  // Room for so many tasks and steps is kept from one value to the next.
  static constexpr size_t most_kept = 1 << 14;

  Type& type_at(uint32_t number) {
    while (types_.size() <= number) types_.emplace_back();
    Type& type = types_[number];
    if (type.kind == Type::unknown) read(type, number);
    return type;
  }
  void read(Type& type, uint32_t number);
  Value converted(nb::handle object, uint32_t type, const std::string& what, Sizes& sizes);
  static Sizes sizes_of(nb::handle objects, nb::tuple bound);
  void settle(const Sizes& sizes) {
    if (sizes.unsettled) settle_(sizes.listed());
  }
  bool fits(int64_t wanted, int64_t found, Sizes& sizes);
  const Value* ready(nb::handle object, uint32_t type);
  void convert_one(Work& work, const Task& task);
  void convert_adt(Work& work, const Task& task, const Type& type);
  void convert_list(Work& work, const Task& task, const Type& type);
  static bool convert_leaf(nb::handle object, const Type& type, Value* slot, Sizes& sizes, int64_t copied);
  Value convert_tensor(const Work& work, const Task& task, const Type& type);
  void convert_rows(const Work& work, const Task& task, const Type& type);
  bool is_of(Type& type, nb::handle object);

  enum Attribute { adt_of, constructor_of, tag_of, fields_of };
  // An attribute of an object of exactly the class of algebraic values.
  nb::object attribute(nb::handle object, Attribute which) const {
    PyObject* there = places_[which] == 0
                          ? nullptr
                          : *reinterpret_cast<PyObject**>(reinterpret_cast<std::byte*>(object.ptr()) + places_[which]);
    return there != nullptr ? nb::borrow(there) : nb::object(nb::getattr(object, names_[which]));
  }

  std::string place(const Work& work, uint32_t step);
  [[noreturn]] void refuse(const nb::object& error, const Work& work, const Task& task, const std::string& text) {
    std::string message = place(work, task.step) + " " + text;
    PyErr_SetObject(error.ptr(), nb::str(message.c_str()).ptr());
    throw nb::python_error();
  }

  // A value on its way to Python: what is made of it, and which of its fields is next. A list has its cell that is next.
  struct Open {
    Adt* adt;
    uint32_t type;
    nb::object out;
    uint32_t next = 0;
  };
  using Met = std::unordered_map<Adt*, std::vector<std::pair<uint32_t, nb::object>>>;
  nb::object begin(std::vector<Open>& open, Met& met, const Value& value, uint32_t number);
  bool follow(Open& open, nb::object& made, Met& met, const Value*& value, uint32_t& number);
  nb::object algebraic(const Type& type, Adt* adt, nb::object fields);

  int64_t copied_;
  nb::object expand_, computed_, settle_, value_, type_error_, shape_error_;
  nb::object names_[4];         // of the attributes of an algebraic value
  Py_ssize_t places_[4] = {};  // where they lie in it; 0: it has to be asked
  std::deque<Type> types_;
  std::vector<Task> spare_tasks_;
  std::vector<Step> spare_steps_;
};

std::vector<uint32_t> numbers(nb::handle sequence) {
  std::vector<uint32_t> out;
  for (nb::handle item : sequence) out.push_back(nb::cast<uint32_t>(item));
  return out;
}

// Another thread may do the same while Python runs: the type is changed at once, at the end.
void Converter::read(Type& known, uint32_t number) {
  nb::tuple given = nb::cast<nb::tuple>(expand_(number));
  Type type;
  auto kind = nb::cast<std::string>(given[0]);
  if (kind == "tensor" || kind == "rows") {
    type.dtype = static_cast<DType>(nb::cast<int>(given[1]));
    type.bytes = static_cast<int64_t>(bits(type.dtype));
    for (nb::handle item : nb::cast<nb::tuple>(given[2])) {
      type.shape.push_back(item.is_none() ? -1 : nb::cast<int64_t>(item));
      type.bytes = type.shape.back() < 0 || type.bytes < 0 ? -1 : type.bytes * type.shape.back();
    }
    if (type.bytes >= 0) type.bytes = (type.bytes + 7) / 8;
    type.kind = kind == "rows" ? Type::rows : Type::tensor;
  } else if (kind == "tuple") {
    type.fields = numbers(given[1]);
    type.kind = Type::tuple;
  } else if (kind == "adt") {
    type.spelled = nb::object(given[1]);
    type.name = nb::cast<std::string>(type.spelled);
    for (nb::handle item : nb::cast<nb::tuple>(given[2])) {
      nb::object spelled(item[0]);
      type.constructors.push_back({nb::cast<std::string>(spelled), numbers(nb::object(item[1])), spelled});
    }
    type.is_list = type.name == "List";
    type.is_option = type.name == "Option";
    type.kind = Type::adt;
  } else {
    type.name = kind;
    type.kind = Type::other;
  }
  if (known.kind == Type::unknown) known = std::move(type);
}

std::string Converter::place(const Work& work, uint32_t step) {
  std::vector<std::string> names;
  bool more = false;
  for (; step != no_step; step = work.steps[step].parent) {
    if (names.size() == shown_steps) {
      more = true;
      break;
    }
    const Step& s = work.steps[step];
    if (s.constructor == -2)
      names.push_back("[" + std::to_string(s.index) + "]");
    else if (s.constructor == -1)
      names.push_back("." + std::to_string(s.index));
    else
      names.push_back(type_at(s.type).constructors[static_cast<size_t>(s.constructor)].name + "." + std::to_string(s.index));
  }
  std::string text = *work.what;
  if (!names.empty()) text += ", at ";
  if (more) text += ".../";
  for (size_t i = names.size(); i-- > 0;) text += names[i] + (i > 0 && names[i - 1][0] != '.' && names[i - 1][0] != '[' ? "/" : "");
  return text;
}

// An array or a number, where it is what the type says. Runs no Python.
bool Converter::convert_leaf(nb::handle object, const Type& type, Value* slot, Sizes& sizes, int64_t copied) {
  KnownElements found;
  if (known_elements(object, &found)) {
    if (found.dtype != type.dtype || static_cast<size_t>(found.axes) != type.shape.size()) return false;
    for (size_t i = 0; i < type.shape.size(); ++i) {
      int64_t wanted = sizes.known(type.shape[i]);
      if (wanted >= 0 ? wanted != found.sizes[i] : Sizes::is_computed(type.shape[i])) return false;
      if (Sizes::is_named(type.shape[i])) sizes.at(type.shape[i]) = found.sizes[i];
    }
    *slot = value_of_known(object, found, copied);
    return true;
  }
  if (!type.shape.empty() || !(PyFloat_CheckExact(object.ptr()) || PyLong_CheckExact(object.ptr()))) return false;
  try {
    *slot = from_python(object, static_cast<uint8_t>(type.dtype));
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Whether a size is what a type says.
bool Converter::fits(int64_t wanted, int64_t found, Sizes& sizes) {
  if (Sizes::is_named(wanted) && sizes.at(wanted) < 0) {
    nb::object value = nb::none();
    if (Sizes::is_computed(wanted)) value = computed_((-2 - wanted) / 2, sizes.listed());
    if (Sizes::is_computed(wanted) && value.is_none()) sizes.unsettled = true;
    sizes.at(wanted) = value.is_none() ? found : nb::cast<int64_t>(value);
  }
  wanted = sizes.known(wanted);
  return wanted < 0 || wanted == found;
}

Value Converter::convert_tensor(const Work& work, const Task& task, const Type& type) {
  PyObject* object = task.object.ptr();
  Owned made;
  try {
    bool plain = PyFloat_CheckExact(object) || PyLong_Check(object) || PyList_Check(object);
    PyTensor* tensor;
    if (plain || (nb::try_cast(task.object, tensor, false) && tensor != nullptr))
      made = Owned(from_python(task.object, plain ? static_cast<uint8_t>(type.dtype) : any_dtype));
    else
      made = Owned(Value::of(lent_tensor(task.object, any_dtype, (type.bytes < 0 ? INT64_MAX : type.bytes) <= copied_)));
  } catch (const Error& error) {
    refuse(type_error_, work, task, std::string("must be a tensor of ") + dtype_name(type.dtype) + ": " + error.what());
  }
  const Value& value = made.get();
  Tensor* tensor = value.kind == Kind::scalar ? nullptr : as_tensor(value);
  DType dtype = tensor == nullptr ? value.dtype : tensor->dtype;
  if (dtype != type.dtype)
    refuse(type_error_, work, task, std::string("has dtype ") + dtype_name(dtype) + ", expected " + dtype_name(type.dtype));
  size_t rank = tensor == nullptr ? 0 : tensor->rank;
  bool is_right = rank == type.shape.size();
  for (size_t i = 0; is_right && i < rank; ++i) is_right = fits(type.shape[i], tensor->shape()[i], *work.sizes);
  if (!is_right) {
    std::string found, expected;
    for (size_t i = 0; i < rank; ++i) found += (i ? ", " : "") + std::to_string(tensor->shape()[i]);
    for (size_t i = 0; i < type.shape.size(); ++i) {
      int64_t wanted = work.sizes->known(type.shape[i]);
      expected += (i ? ", " : "") + (wanted < 0 ? std::string("?") : std::to_string(wanted));
    }
    if (rank == 1) found += ",";
    if (type.shape.size() == 1) expected += ",";
    refuse(shape_error_, work, task, "has shape (" + found + "), expected (" + expected + ")");
  }
  return made.take();
}

// The last row first: constructor 0 has a row and the rest, 1 is the end.
void Converter::convert_rows(const Work& work, const Task& task, const Type& type) {
  Owned whole(convert_tensor(work, task, type));
  Tensor* tensor = as_tensor(whole.get());
  int64_t width = static_cast<int64_t>(bits(type.dtype)) / 8;
  Value* slot = task.slot;
  for (int64_t i = tensor->shape()[0]; i-- > 0;) {
    Adt* cell = new_adt(0, 2);
    *slot = Value::of(cell);
    slot = &cell->fields()[1];
    if (tensor->rank > 1) {
      cell->fields()[0] = Value::of(row_of(tensor, i));
    } else {
      uint64_t element = 0;
      std::memcpy(&element, tensor->data() + i * width, static_cast<size_t>(width));
      cell->fields()[0] = Value::scalar(type.dtype, element);
    }
  }
  *slot = Value::of(new_adt(1, 0));
}

bool Converter::is_of(Type& type, nb::handle object) {
  if (!nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))).is(value_)) return false;
  nb::object name = attribute(object, adt_of);
  if (name.is(type.seen_name)) return true;
  if (!PyUnicode_Check(name.ptr()) || PyUnicode_CompareWithASCIIString(name.ptr(), type.name.c_str()) != 0) {
    if (nb::cast<std::string>(name) != type.name) return false;
  }
  type.seen_name = name;
  return true;
}

void Converter::convert_list(Work& work, const Task& task, const Type& type) {
  // Constructor 0 has an item and the rest, 1 is the end.
  Value* slot = task.slot;
  uint32_t item = type.constructors[0].fields[0];
  const Type& of = type_at(item);
  auto count = static_cast<uint32_t>(PyList_GET_SIZE(task.object.ptr()));
  size_t first = work.tasks.size();
  for (uint32_t i = 0; i < count && i < PyList_GET_SIZE(task.object.ptr()); ++i) {
    Adt* cell = new_adt(0, 2);
    if (i == 0)
      work.give(task, cell);
    else
      *slot = Value::of(cell);
    work.add(PyList_GET_ITEM(task.object.ptr(), i), item, of, {task.step, task.type, -2, i}, &cell->fields()[0]);
    slot = &cell->fields()[1];
  }
  *slot = Value::of(new_adt(1, 0));
  std::reverse(work.tasks.begin() + static_cast<std::ptrdiff_t>(first), work.tasks.end());
}

void Converter::convert_adt(Work& work, const Task& task, const Type& type) {
  nb::object tag_object = attribute(task.object, tag_of), fields = attribute(task.object, fields_of);
  auto tag = nb::cast<int32_t>(tag_object);
  if (tag < 0 || static_cast<size_t>(tag) >= type.constructors.size() || !PyTuple_Check(fields.ptr()))
    refuse(type_error_, work, task, "is no value of " + type.name + ": " + shown(task.object));
  const Constructor& constructor = type.constructors[static_cast<size_t>(tag)];
  auto count = static_cast<uint32_t>(PyTuple_GET_SIZE(fields.ptr()));
  if (count != constructor.fields.size())
    refuse(type_error_, work, task,
           "has " + std::to_string(count) + " fields, " + constructor.name + " has " +
               std::to_string(constructor.fields.size()));
  Adt* adt = new_adt(tag, count);
  work.give(task, adt);
  for (uint32_t i = count; i-- > 0;)
    work.add(PyTuple_GET_ITEM(fields.ptr(), i), constructor.fields[i], type_at(constructor.fields[i]),
             {task.step, task.type, tag, i}, &adt->fields()[i]);
}

void Converter::convert_one(Work& work, const Task& task) {
  Type& type = type_at(task.type);
  if (type.kind == Type::tensor) {
    *task.slot = convert_tensor(work, task, type);
    return;
  }
  if (type.kind == Type::rows) return convert_rows(work, task, type);
  if (work.was_met(task)) return;
  PyObject* object = task.object.ptr();
  if (type.kind == Type::tuple) {
    auto count = static_cast<uint32_t>(type.fields.size());
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != static_cast<Py_ssize_t>(count))
      refuse(type_error_, work, task,
             "must be a tuple of " + std::to_string(count) + ", not " +
                 (PyTuple_Check(object) ? "one of " + std::to_string(PyTuple_GET_SIZE(object)) : shown(task.object)));
    Adt* adt = new_adt(tuple_tag, count);
    work.give(task, adt);
    for (uint32_t i = count; i-- > 0;)
      work.add(PyTuple_GET_ITEM(object, i), type.fields[i], type_at(type.fields[i]), {task.step, task.type, -1, i},
               &adt->fields()[i]);
    return;
  }
  if (type.is_list && PyList_Check(object)) return convert_list(work, task, type);
  if (type.kind == Type::adt && is_of(type, task.object)) return convert_adt(work, task, type);
  PyValue* value;
  if (nb::try_cast(task.object, value, false) && value != nullptr) {
    retain(value->get());
    *task.slot = value->get();
    return;
  }
  if (type.kind == Type::other)
    refuse(type_error_, work, task,
           "is a " + type.name + ", which can only be a value that a program returned, not " + shown(task.object));
  if (!type.is_option) refuse(type_error_, work, task, "must be a " + type.name + ", not " + shown(task.object));
  if (task.object.is_none()) {
    *task.slot = Value::of(new_adt(1, 0));
    return;
  }
  Adt* some = new_adt(0, 1);
  *task.slot = Value::of(some);
  uint32_t field = type.constructors[0].fields[0];
  work.add(task.object, field, type_at(field), {task.step, task.type, 0, 0}, &some->fields()[0]);
}

// The value that an object already is.
const Value* Converter::ready(nb::handle object, uint32_t type) {
  PyValue* value;
  return type_at(type).kind >= Type::adt && nb::try_cast(object, value, false) && value != nullptr ? &value->get() : nullptr;
}

// The shape of a nested list; none where it has no single one.
nb::object listed_shape(nb::handle list) {
  try {
    return nb::module_::import_("numpy").attr("shape")(list);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ValueError)) throw;
    return nb::none();
  }
}

// What tensors among the arguments say of sizes with names: `bound` lists argument, axis and size as types have it.
Sizes Converter::sizes_of(nb::handle objects, nb::tuple bound) {
  Sizes sizes;
  for (nb::handle item : bound) {
    auto number = nb::cast<Py_ssize_t>(nb::object(item[0]));
    auto axis = nb::cast<Py_ssize_t>(nb::object(item[1]));
    auto size = nb::cast<int64_t>(nb::object(item[2]));
    nb::object given = nb::steal(PySequence_GetItem(objects.ptr(), number));
    if (!given.is_valid()) throw nb::python_error();
    KnownElements found;
    int64_t value = -1;
    if (known_elements(given, &found)) {
      if (axis < found.axes) value = found.sizes[axis];
    } else {
      nb::object shape = PyList_Check(given.ptr()) ? listed_shape(given) : nb::getattr(given, "shape", nb::none());
      if (PySequence_Check(shape.ptr()) && axis < PySequence_Size(shape.ptr())) nb::try_cast(nb::object(shape[axis]), value);
    }
    if (value < 0 || sizes.at(size) >= 0) continue;  // what is wrong with it is found where the entry checks it
    sizes.at(size) = value;
    sizes.unsettled |= Sizes::is_computed(size);
  }
  return sizes;
}

Value Converter::converted(nb::handle object, uint32_t type, const std::string& what, Sizes& sizes) {
  Owned root;
  Work work;
  work.what = &what;
  work.sizes = &sizes;
  work.copied = copied_;
  work.tasks.swap(spare_tasks_);
  work.steps.swap(spare_steps_);
  work.tasks.push_back({nb::borrow(object), type, no_step, &root.slot()});
  while (!work.tasks.empty()) {
    Task task = std::move(work.tasks.back());
    work.tasks.pop_back();
    convert_one(work, task);
  }
  if (std::max(work.tasks.capacity(), work.steps.capacity()) <= most_kept) {
    work.steps.clear();
    spare_tasks_.swap(work.tasks);
    spare_steps_.swap(work.steps);
  }
  share(root.slot(), Lent::used);
  return root.take();
}

// The arguments of a call, of the types with these numbers; what has a negative one stays what it is.
nb::object Converter::arguments(nb::handle objects, nb::tuple types, nb::tuple whats, nb::tuple bound) {
  nb::object given = checked(PySequence_Fast(objects.ptr(), "arguments must be a sequence"));
  auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(given.ptr()));
  if (count != types.size() || count != whats.size())
    fail(Status::invalid_argument, "expected %zu arguments and got %zu", types.size(), count);
  Sizes sizes = sizes_of(given, bound);
  nb::object out = checked(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; i < count; ++i) {
    nb::object item = nb::borrow(PySequence_Fast_GET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i)));
    auto type = nb::cast<int64_t>(nb::object(types[i]));
    if (type >= 0 && ready(item, static_cast<uint32_t>(type)) == nullptr)
      item = wrapped(converted(item, static_cast<uint32_t>(type), nb::cast<std::string>(nb::object(whats[i])), sizes));
    PyTuple_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), item.release().ptr());
  }
  settle(sizes);
  return out;
}

// The list of the tuples of what differs from request to request, of which `each` has the values of every request. `objects` are all
// arguments of one of them.
nb::object Converter::requests(nb::handle each, nb::tuple types, nb::tuple whats, nb::handle objects, nb::tuple bound) {
  Sizes sizes = sizes_of(objects, bound);
  nb::list all = nb::cast<nb::list>(each);
  Owned out;
  Value* end = &out.slot();
  for (size_t r = 0; r < all.size(); ++r) {
    nb::tuple given = nb::cast<nb::tuple>(nb::object(all[r]));
    if (given.size() != types.size() || given.size() != whats.size())
      fail(Status::invalid_argument, "expected %zu values of a request and got %zu", types.size(), given.size());
    Adt* cell = new_adt(0, 2);
    *end = Value::of(cell);
    Adt* request = new_adt(tuple_tag, static_cast<uint32_t>(given.size()));
    cell->fields()[0] = Value::of(request);
    end = &cell->fields()[1];
    for (size_t i = 0; i < given.size(); ++i) {
      auto type = nb::cast<uint32_t>(nb::object(types[i]));
      nb::object item(given[i]);
      if (const Value* value = ready(item, type)) {
        retain(*value);
        request->fields()[i] = *value;
      } else {
        std::string what = nb::cast<std::string>(nb::object(whats[i])) + " in request " + std::to_string(r);
        request->fields()[i] = converted(item, type, what, sizes);
      }
    }
  }
  *end = Value::of(new_adt(1, 0));
  settle(sizes);
  share(out.slot(), Lent::used);
  return wrapped(out.take());
}

bool is_shared(const Adt* adt) { return adt->is_immortal() || adt->count.load(std::memory_order_relaxed) > 1; }

// What a value is in Python, or nothing where its fields come first: it is open then.
nb::object Converter::begin(std::vector<Open>& open, Met& met, const Value& value, uint32_t number) {
  const Type& type = type_at(number);
  Adt* adt = as_adt(value);
  if (adt == nullptr || (type.kind != Type::tuple && type.kind != Type::adt)) {
    retain(value);
    return to_python(value);
  }
  if (type.kind == Type::adt && (adt->tag < 0 || static_cast<size_t>(adt->tag) >= type.constructors.size()))
    fail(Status::failed, "a result is no value of %s", type.name.c_str());
  if (type.is_option && adt->size == 0) return nb::none();
  if (is_shared(adt))
    if (auto found = met.find(adt); found != met.end())
      for (const auto& [of, made] : found->second)
        if (of == number) return made;
  nb::object out = type.is_list ? checked(PyList_New(0)) : checked(PyTuple_New(adt->size));
  if (adt->size == 0) {
    if (type.is_list || type.kind == Type::tuple) return out;
    nb::object made = algebraic(type, adt, std::move(out));
    if (is_shared(adt)) met[adt].emplace_back(number, made);
    return made;
  }
  open.push_back({adt, number, std::move(out)});
  return {};
}

nb::object Converter::algebraic(const Type& type, Adt* adt, nb::object fields) {
  auto* of = reinterpret_cast<PyTypeObject*>(value_.ptr());
  nb::object none = checked(PyTuple_New(0)), out = checked(of->tp_new(of, none.ptr(), nullptr));
  nb::object tag = checked(PyLong_FromLong(adt->tag));
  // The class is frozen: its own way to set attributes refuses.
  PyObject* parts[] = {type.spelled.ptr(), type.constructors[static_cast<size_t>(adt->tag)].spelled.ptr(), tag.ptr(), fields.ptr()};
  for (size_t i = 0; i < 4; ++i)
    if (PyObject_GenericSetAttr(out.ptr(), names_[i].ptr(), parts[i]) != 0) throw nb::python_error();
  return out;
}

// Gives an open value what was made of its field (if anything was yet), and says which comes next; where none does, `made` is what the
// value itself is in Python.
bool Converter::follow(Open& open, nb::object& made, Met& met, const Value*& value, uint32_t& number) {
  const Type& type = type_at(open.type);
  if (type.is_list) {
    if (made.is_valid()) {
      if (PyList_Append(open.out.ptr(), made.ptr()) != 0) throw nb::python_error();
      Adt* rest = as_adt(open.adt->fields()[1]);
      if (rest == nullptr) fail(Status::failed, "a result is no list");
      open.adt = rest;
    }
    if (open.adt->tag == 0 && open.adt->size == 2) {
      value = &open.adt->fields()[0];
      number = type.constructors[0].fields[0];
      return true;
    }
    made = std::move(open.out);
    return false;
  }
  if (made.is_valid()) {
    if (type.is_option) return false;
    PyTuple_SET_ITEM(open.out.ptr(), static_cast<Py_ssize_t>(open.next++), made.release().ptr());
  }
  const std::vector<uint32_t>& fields =
      type.kind == Type::tuple ? type.fields : type.constructors[static_cast<size_t>(open.adt->tag)].fields;
  if (fields.size() != open.adt->size) fail(Status::failed, "a result is no value of its type");
  if (open.next < open.adt->size) {
    value = &open.adt->fields()[open.next];
    number = fields[open.next];
    return true;
  }
  made = type.kind == Type::tuple ? std::move(open.out) : algebraic(type, open.adt, std::move(open.out));
  if (is_shared(open.adt)) met[open.adt].emplace_back(open.type, made);
  return false;
}

nb::object Converter::outward(nb::handle object, uint32_t type) {
  PyValue* held;
  if (!nb::try_cast(object, held, false) || held == nullptr) return nb::borrow(object);
  std::vector<Open> open;
  Met met;
  const Value* value = &held->get();
  for (uint32_t number = type;;) {
    nb::object made = begin(open, met, *value, number);
    for (;; open.pop_back()) {
      if (open.empty()) return made;
      if (follow(open.back(), made, met, value, number)) break;
    }
  }
}

}  // namespace

void init_convert(nb::module_& m) {
  nb::class_<Converter>(m, "Converter", "Python values to values of a program, by numbered types.")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object, nb::object, bool>(), nb::arg("expand"),
           nb::arg("computed"), nb::arg("settle"), nb::arg("value"), nb::arg("type_error"), nb::arg("shape_error"),
           nb::arg("keeps"))
      .def("convert", &Converter::convert, nb::arg("object").none(), nb::arg("type"), nb::arg("what"), nb::arg("objects"),
           nb::arg("bound"), "The value of type number `type`; errors begin with `what`.")
      .def("arguments", &Converter::arguments, nb::arg("objects"), nb::arg("types"), nb::arg("whats"), nb::arg("bound"),
           "The values of the types with these numbers; what has a negative one stays what it is.")
      .def("requests", &Converter::requests, nb::arg("each"), nb::arg("types"), nb::arg("whats"), nb::arg("objects"),
           nb::arg("bound"),
           "A list of tuples of values of the types with these numbers, one for each request; errors say which.")
      .def("outward", &Converter::outward, nb::arg("object"), nb::arg("type"), "What a value of type number `type` is in Python.");
}

}  // namespace relay
