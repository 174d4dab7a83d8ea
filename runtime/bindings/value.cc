// relay.Value: constructor values, tuples, closures and references; and the conversions of arguments and results.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "../src/operations.h"
#include "bindings.h"

namespace relay {
namespace {

[[noreturn]] void does_not_fit(nb::handle number, DType dtype) {
  constexpr size_t most = 40;
  nb::object text = nb::steal(PyObject_Str(number.ptr()));
  if (!text.is_valid()) PyErr_Clear();  // Python prints some thousand digits at most
  std::string digits = text.is_valid() ? nb::cast<std::string>(text) : "of very many digits";
  if (digits.size() > most) digits = digits.substr(0, most) + "... of " + std::to_string(digits.size()) + " digits";
  fail(Status::invalid_argument, "the number %s does not fit %s", digits.c_str(), dtype_name(dtype));
}

Value scalar_from_int(nb::handle object, DType dtype) {
  if (info(dtype).kind == DTypeKind::uint && bits(dtype) == 64) {
    unsigned long long x = PyLong_AsUnsignedLongLong(object.ptr());
    if (PyErr_Occurred()) {
      PyErr_Clear();
      does_not_fit(object, dtype);
    }
    return Value::scalar(dtype, x);
  }
  int overflow = 0;
  long long x = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  uint32_t width = bits(dtype);
  bool fits = !overflow;
  if (width < 64 && fits) {
    bool is_signed = info(dtype).kind == DTypeKind::sint;
    long long low = is_signed ? -(1LL << (width - 1)) : 0,
              high = is_signed ? (1LL << (width - 1)) - 1 : (1LL << width) - 1;
    fits = x >= low && x <= high;
  }
  if (!fits) does_not_fit(object, dtype);
  uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  return Value::scalar(dtype, static_cast<uint64_t>(x) & mask);
}

// The element of a number; none where the number is finite and the element would not be.
std::optional<uint64_t> float_bits(double x, DType dtype) {
  uint64_t raw = 0;
  if (dtype == DType::float64_) {
    std::memcpy(&raw, &x, 8);
    return raw;
  }
  if (dtype == DType::float16_) {
    char bytes[2];
    if (PyFloat_Pack2(x, bytes, 1) != 0) {
      PyErr_Clear();
      return std::nullopt;
    }
    std::memcpy(&raw, bytes, 2);
    return raw;
  }
  auto narrow = static_cast<float>(x);
  uint32_t word;
  std::memcpy(&word, &narrow, 4);
  if (std::isnan(narrow)) return dtype == DType::float32_ ? word : word >> 16 | 0x40;  // bfloat16: it stays one
  bool wide = dtype == DType::float32_;
  uint32_t element = wide ? word : (word + 0x7FFF + (word >> 16 & 1)) >> 16;  // to nearest, ties to even
  bool infinite = (element & (wide ? 0x7FFFFFFF : 0x7FFF)) == (wide ? 0x7F800000 : 0x7F80);
  if (infinite && !std::isinf(x)) return std::nullopt;
  return element;
}

Value scalar_from_number(nb::handle object, uint8_t expected) {
  bool is_bool = PyBool_Check(object.ptr()), is_int = !is_bool && PyLong_Check(object.ptr());
  DType natural = is_bool ? DType::bool_ : is_int ? DType::int64_ : DType::float64_;
  DType dtype = expected == any_dtype ? natural : static_cast<DType>(expected);
  switch (info(dtype).kind) {
    case DTypeKind::boolean:
      if (is_bool) return Value::boolean(object.ptr() == Py_True);
      break;
    case DTypeKind::sint:
    case DTypeKind::uint:
      if (is_int) return scalar_from_int(object, dtype);
      break;
    case DTypeKind::ieee:
    case DTypeKind::brain: {
      if (is_bool) break;
      double x = PyFloat_AsDouble(object.ptr());
      if (x == -1.0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) throw nb::python_error();
        PyErr_Clear();
        does_not_fit(object, dtype);
      }
      std::optional<uint64_t> element = float_bits(x, dtype);
      if (!element) does_not_fit(object, dtype);
      return Value::scalar(dtype, *element);
    }
  }
  fail(Status::invalid_argument, "expected %s, found the Python %s %s", dtype_name(dtype),
       is_bool  ? "bool"
       : is_int ? "int"
                : "float",
       nb::cast<std::string>(nb::str(object)).c_str());
}

Value adt_from_sequence(int32_t tag, nb::handle sequence) {
  nb::object items = nb::steal(PySequence_Fast(sequence.ptr(), "expected a sequence of fields"));
  if (!items.is_valid()) throw nb::python_error();
  auto n = static_cast<uint32_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  Adt* adt = new_adt(tag, n);
  Owned keep(Value::of(adt));
  for (uint32_t i = 0; i < n; ++i)
    adt->fields()[i] = from_python(PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i)), any_dtype);
  share(keep.slot());
  return keep.take();
}

const Adt* need_adt(const PyValue& self) {
  Adt* adt = as_adt(self.get());
  if (adt == nullptr) fail(Status::invalid_argument, "%s has no tag and no fields", describe(self.get()).c_str());
  return adt;
}

nb::object field(const Adt* adt, int64_t index) {
  if (index < 0 || index >= adt->size) throw nb::index_error("no such field");
  Value v = adt->fields()[index];
  retain(v);
  return to_python(v);
}

// A list: constructor 0 has an item and the rest, 1 is the end.
nb::object stacked(const Adt* list) {
  if (list->tag != 0) return nb::none();
  int64_t shape[max_rank] = {0};
  for (const Adt* at = list; at->tag == 0; at = as_adt(at->fields()[1])) ++shape[0];
  const Value& first = list->fields()[0];
  const Tensor* row = as_tensor(first);
  uint32_t rank = row == nullptr ? 0 : row->rank;
  if (row != nullptr) std::copy_n(row->shape(), rank, shape + 1);
  Value made = Value::of(new_host_tensor(row == nullptr ? first.dtype : row->dtype, rank + 1, shape));
  int64_t bytes = as_tensor(made)->bytes() / shape[0];
  std::byte* to = as_tensor(made)->data() + as_tensor(made)->bytes();
  for (const Adt* at = list; at->tag == 0; at = as_adt(at->fields()[1])) {
    const Value& item = at->fields()[0];
    const Tensor* tensor = as_tensor(item);
    to -= bytes;
    std::memcpy(to, tensor == nullptr ? reinterpret_cast<const std::byte*>(&item.bits) : tensor->data(), static_cast<size_t>(bytes));
  }
  share(made);
  return wrapped(made);
}

}  // namespace

nb::object wrapped(Value value) {
  switch (value.kind) {
    case Kind::nil: return nb::none();
    case Kind::scalar: {
      Value boxed = Value::of(box_scalar(value));
      share(boxed);
      return nb::cast(PyTensor(as_tensor(boxed)));
    }
    case Kind::object: break;
  }
  if (Tensor* tensor = as_tensor(value)) return nb::cast(PyTensor(tensor));
  return nb::cast(PyValue(value));
}

nb::object to_python(Value value) {
  Tensor* tensor = as_tensor(value);
  if (tensor == nullptr || !tensor->storage->lent) return wrapped(value);
  Owned lent(value);
  Value copy = Value::of(new_host_tensor(tensor->dtype, tensor->rank, tensor->shape()));
  std::memcpy(as_tensor(copy)->data(), tensor->data(), static_cast<size_t>(tensor->bytes()));
  share(copy);
  return wrapped(copy);
}

nb::object tuples_to_python(Value value) {
  Adt* adt = as_adt(value);
  if (adt == nullptr || adt->tag != tuple_tag) return to_python(value);
  nb::object out = nb::steal(PyTuple_New(adt->size));
  if (!out.is_valid()) throw nb::python_error();
  for (uint32_t i = 0; i < adt->size; ++i) {
    Value field = adt->fields()[i];
    retain(field);
    PyTuple_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), tuples_to_python(field).release().ptr());
  }
  MutatorScope scope;
  release(value);
  return out;
}

// A nested list of numbers as an array, which takes the dtype where that holds them.
static nb::object array_of_list(nb::handle list, DType dtype) {
  try {
    return nb::module_::import_("relay.ir.call_arguments").attr("array_of_list")(list, dtype_name(dtype));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ValueError)) throw;
    fail(Status::invalid_argument, "%s", nb::cast<std::string>(nb::str(error.value())).c_str());
  }
}

Value from_python(nb::handle object, uint8_t dtype) {
  KnownElements known;
  if (known_elements(object, &known) && (dtype == any_dtype || static_cast<DType>(dtype) == known.dtype))
    return value_of_known(object, known, 0);
  PyTensor* tensor;
  if (nb::try_cast(object, tensor, false) && tensor != nullptr) {
    if (dtype != any_dtype && static_cast<DType>(dtype) != tensor->get()->dtype)
      fail(Status::invalid_argument, "expected %s, found %s", dtype_name(static_cast<DType>(dtype)),
           dtype_name(tensor->get()->dtype));
    retain(static_cast<Object*>(tensor->get()));
    return Value::of(tensor->get());
  }
  if (PyFloat_CheckExact(object.ptr()) || PyLong_Check(object.ptr())) return scalar_from_number(object, dtype);
  PyValue* value;
  if (nb::try_cast(object, value, false) && value != nullptr) {
    if (dtype != any_dtype)
      fail(Status::invalid_argument, "expected a tensor of %s, found %s", dtype_name(static_cast<DType>(dtype)),
           describe(value->get()).c_str());
    retain(value->get());
    return value->get();
  }
  if (PyTuple_Check(object.ptr())) {
    if (dtype != any_dtype)
      fail(Status::invalid_argument, "expected a tensor of %s, found a tuple", dtype_name(static_cast<DType>(dtype)));
    return adt_from_sequence(tuple_tag, object);
  }
  nb::object listed;
  if (PyList_Check(object.ptr()) && dtype != any_dtype) {
    listed = array_of_list(object, static_cast<DType>(dtype));
    object = listed;
  }
  Tensor* made = lent_tensor(object, dtype, false);
  if (made->rank > 0) return Value::of(made);
  // A NumPy scalar: its element, unboxed.
  Owned keep(Value::of(made));
  return scalar_of(keep.get());
}

void init_value(nb::module_& m) {
  nb::class_<PyValue>(m, "Value", "A constructor value, tuple, closure or reference of a Relay program.")
      .def_static(
          "adt",
          [](int32_t tag, nb::handle fields) {
            if (tag < 0) throw nb::value_error("a constructor's tag is not negative");
            return PyValue(adt_from_sequence(tag, fields));
          },
          nb::arg("tag"), nb::arg("fields"), "The value of the constructor with that tag.")
      .def_static(
          "tuple", [](nb::handle fields) { return PyValue(adt_from_sequence(tuple_tag, fields)); }, nb::arg("fields"))
      .def_prop_ro(
          "kind",
          [](const PyValue& self) {
            Adt* adt = as_adt(self.get());
            if (adt != nullptr) return adt->tag == tuple_tag ? "tuple" : "adt";
            return as_closure(self.get()) != nullptr ? "closure" : "ref";
          },
          "\"adt\", \"tuple\", \"closure\" or \"ref\".")
      .def_prop_ro(
          "tag", [](const PyValue& self) { return need_adt(self)->tag; }, "The constructor's tag; -1: a tuple.")
      .def_prop_ro("fields",
                   [](const PyValue& self) {
                     const Adt* adt = need_adt(self);
                     nb::object out = nb::steal(PyTuple_New(adt->size));
                     for (uint32_t i = 0; i < adt->size; ++i)
                       PyTuple_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), field(adt, i).release().ptr());
                     return nb::cast<nb::tuple>(out);
                   })
      .def(
          "field", [](const PyValue& self, int64_t index) { return field(need_adt(self), index); }, nb::arg("index"))
      .def(
          "read",
          [](const PyValue& self) {
            Ref* ref = as_ref(self.get());
            if (ref == nullptr) fail(Status::invalid_argument, "%s is not a reference", describe(self.get()).c_str());
            Value held;
            {
              MutatorScope scope;
              held = read(ref);
            }
            return to_python(held);
          },
          "What a reference holds.")
      .def(
          "stacked", [](const PyValue& self) { return stacked(need_adt(self)); },
          "The items of a list, the last of which comes first, as the rows of one tensor; None of an empty one.")
      .def("__repr__", [](const PyValue& self) { return "<" + describe(self.get()) + ">"; });
}

}  // namespace relay
