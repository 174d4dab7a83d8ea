// What the files of the Python module share: the two wrapper types and the conversions between Python and values.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "relay/cycles.h"
#include "relay/error.h"
#include "relay/executable.h"
#include "relay/object.h"

namespace nb = nanobind;

namespace relay {

// relay.Tensor: one reference to a shared tensor; empty after it has been donated.
class PyTensor {
 public:
  explicit PyTensor(Tensor* tensor) : tensor_(tensor) {}  // takes over the reference
  PyTensor(const PyTensor&) = delete;
  PyTensor(PyTensor&& other) noexcept : tensor_(std::exchange(other.tensor_, nullptr)) {}
  ~PyTensor() {
    if (tensor_ != nullptr) release(static_cast<Object*>(tensor_));
  }
  Tensor* get() const {
    if (tensor_ == nullptr) fail(Status::invalid_argument, "this tensor was donated to a call and is gone");
    return tensor_;
  }
  bool donated() const { return tensor_ == nullptr; }
  // Gives its reference up; others may have some.
  void donate() {
    if (Tensor* tensor = std::exchange(tensor_, nullptr)) release(static_cast<Object*>(tensor));
  }

 private:
  Tensor* tensor_;
};

// Any other value: constructor value, tuple, closure, reference.
class PyValue {
 public:
  explicit PyValue(Value value) : value_(value) {}  // takes over the reference, which is shared
  PyValue(const PyValue&) = delete;
  PyValue(PyValue&& other) noexcept : value_(std::exchange(other.value_, Value{})) {}
  ~PyValue() {
    if (value_.kind != Kind::object) return;
    MutatorScope scope;
    release(value_);
  }
  const Value& get() const { return value_; }

 private:
  Value value_;
};

// The Python object for a shared value, whose reference is taken over. Scalars become tensors of rank 0.
nb::object wrapped(Value value);

// The same for what a run has made: a tensor in memory that was lent to it is copied, so that it stays what it is when the owner
// writes there.
nb::object to_python(Value value);

// The same, but tuples, and tuples in them, become Python's. The type is known to have few inside each other.
nb::object tuples_to_python(Value value);

// The value for a Python object: tensors, arrays, numbers, tuples, PyValues. `dtype` is the element type that is
// expected, or any_dtype; numbers take it. What is reachable from elsewhere
// is shared. Throws Error(invalid_argument) that says what was expected and found, without naming the place.
Value from_python(nb::handle object, uint8_t dtype);

// A tensor from any array-like object: without a copy where its memory allows and `copy` is false.
Tensor* tensor_from_array(nb::handle object, uint8_t dtype, bool copy);

// The same for a call: its owner may write the memory when the call is over.
Tensor* lent_tensor(nb::handle object, uint8_t dtype, bool copy);

// What lies in a NumPy array or number: `axes` 0 for both kinds of one element.
struct KnownElements {
  const std::byte* data;
  DType dtype;
  int axes;
  const Py_ssize_t* sizes;
  int64_t bytes;
};

// Whether an object is a NumPy array or number of a kind that was seen before, with its elements one after the other. Runs no Python.
bool known_elements(nb::handle object, KnownElements* found);

// Its value: one element unboxed, at most `copied` bytes as a copy, more where they lie.
Value value_of_known(nb::handle object, const KnownElements& elements, int64_t copied);

// Part `i` of a tensor along its first axis, a view; where parts begin at whole bytes.
Tensor* row_of(Tensor* tensor, int64_t i);

// What this thread is to give back to Python waits until the end of this scope, where the thread has Python's lock: taking the lock
// for each argument that dies during a run costs as much as a small kernel.
class GiveBackLater {
 public:
  GiveBackLater() : outer_(open_) { open_ = this; }
  ~GiveBackLater();
  GiveBackLater(const GiveBackLater&) = delete;
  // Calls `give_back(owner)` with Python's lock: at the end of the innermost scope of this thread, now where there is none.
  static void add(void (*give_back)(void*), void* owner);

 private:
  struct Item {
    void (*give_back)(void*);
    void* owner;
  };
  static constexpr size_t few = 8;
  static thread_local GiveBackLater* open_;
  GiveBackLater* outer_;
  size_t count_ = 0;
  Item in_place_[few];
  std::vector<Item> more_;
};

// The tensor as a NumPy array: a read-only view, or a copy for element types that NumPy has no packed form of.
nb::object tensor_to_numpy(Tensor* tensor);

// The bytes of an object with the buffer protocol, while this lives.
class Bytes {
 public:
  explicit Bytes(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  const void* data() const { return view_.buf; }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

void init_tensor(nb::module_& m);
void init_value(nb::module_& m);
void init_convert(nb::module_& m);
void init_executable(nb::module_& m);
void init_runtime(nb::module_& m);
void init_errors(nb::module_& m);

}  // namespace relay
