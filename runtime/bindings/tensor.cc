// relay.Tensor, and arrays of other libraries in and out of it.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "bindings.h"
#include "relay/device.h"

namespace relay {
namespace {

// --- DLPack's published structures (ABI version 1) -----------------------------------------------------------------

struct DLDevice {
  int32_t type, id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};
struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor tensor;
};
constexpr uint64_t dl_read_only = 1;
constexpr int32_t dl_cpu = 1;

DLDataType to_dlpack(DType dtype) {
  auto width = static_cast<uint8_t>(bits(dtype));
  switch (info(dtype).kind) {
    case DTypeKind::boolean: return {6, 8, 1};
    case DTypeKind::sint: return {0, width, 1};
    case DTypeKind::uint: return {1, width, 1};
    case DTypeKind::ieee: return {2, width, 1};
    case DTypeKind::brain: return {4, width, 1};
  }
  return {};
}

// Our code for a DLPack type, or -1.
int from_dlpack(uint8_t code, uint8_t width) {
  for (uint32_t i = 0; i < dtype_count; ++i) {
    DLDataType candidate = to_dlpack(static_cast<DType>(i));
    if (candidate.code == code && candidate.bits == width && width >= 8) return static_cast<int>(i);
  }
  return -1;
}

std::string python_type(nb::handle object) { return nb::cast<std::string>(object.type().attr("__name__")); }

std::string shape_text(const Tensor* tensor) {
  std::string text = "(";
  for (int i = 0; i < tensor->rank; ++i) text += (i ? ", " : "") + std::to_string(tensor->shape()[i]);
  return text + (tensor->rank == 1 ? ",)" : ")");
}

void check_dtype(uint8_t expected, DType found) {
  if (expected != any_dtype && static_cast<DType>(expected) != found)
    fail(Status::invalid_argument, "expected %s, found %s", dtype_name(static_cast<DType>(expected)),
         dtype_name(found));
}

// --- buffers in ------------------------------------------------------------------------------------------------------

// Our code for a one-letter buffer format, or -1. The C types' sizes are those of the two architectures we run on.
int from_format(const char* format, Py_ssize_t size) {
  if (format == nullptr) return static_cast<int>(DType::uint8_);
  if (*format == '<' || *format == '=' || *format == '@' || *format == '|') ++format;
  if (*format == '>' && size > 1) return -1;
  if (*format == '\0' || format[1] != '\0') return -1;
  switch (*format) {
    case '?': return static_cast<int>(DType::bool_);
    case 'e': return static_cast<int>(DType::float16_);
    case 'f': return static_cast<int>(DType::float32_);
    case 'd': return static_cast<int>(DType::float64_);
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return static_cast<int>(size == 1   ? DType::int8_
                              : size == 2 ? DType::int16_
                              : size == 4 ? DType::int32_
                                          : DType::int64_);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return static_cast<int>(size == 1   ? DType::uint8_
                              : size == 2 ? DType::uint16_
                              : size == 4 ? DType::uint32_
                                          : DType::uint64_);
    default: return -1;
  }
}

void release_buffer(void* owner) {
  GiveBackLater::add(
      [](void* held) {
        auto* view = static_cast<Py_buffer*>(held);
        PyBuffer_Release(view);
        delete view;
      },
      owner);
}

// A read-only tensor on the view's memory (which is given back when it dies), or null when it has to be copied.
Tensor* borrow(Py_buffer* view, DType dtype) {
  if (reinterpret_cast<uintptr_t>(view->buf) % scalar_bytes(dtype) != 0) return nullptr;
  int64_t shape[max_rank];
  for (int i = 0; i < view->ndim; ++i) shape[i] = view->shape[i];
  Storage* storage = new_external_storage(view->buf, view->len, true, release_buffer, view);
  return new_tensor(storage, 0, dtype, static_cast<uint32_t>(view->ndim), shape);
}

Tensor* copy_of(const Py_buffer* view, DType dtype) {
  int64_t shape[max_rank];
  for (int i = 0; i < view->ndim; ++i) shape[i] = view->shape[i];
  Tensor* tensor = new_host_tensor(dtype, static_cast<uint32_t>(view->ndim), shape);
  if (PyBuffer_ToContiguous(tensor->data(), view, view->len, 'C') != 0) {
    release(static_cast<Object*>(tensor));
    throw nb::python_error();
  }
  return tensor;
}

// The head of NumPy's array object, as its C interface publishes it. To ask an array for a buffer takes NumPy longer than a small kernel
// runs: it writes the element type's text, and compares it with the last one.
struct NumpyArray {
  PyObject_HEAD
  std::byte* data;
  int axes;
  Py_ssize_t* sizes;
  Py_ssize_t* strides;
  PyObject* base;
  PyObject* dtype;
};

// The class of arrays and the objects that stand for element types, and the classes of numbers with the place of the number in them, which
// the buffer protocol was asked about before: then what lies there was seen to be what the protocol says.
struct KnownArrays {
  static constexpr int most = 16;
  PyTypeObject* type = nullptr;
  int count = 0;
  PyObject* objects[most];
  DType dtypes[most];
  int numbers = 0;
  PyTypeObject* number_types[most];
  DType number_dtypes[most];
  Py_ssize_t places[most];
} known_arrays;

void remember_number(PyTypeObject* type, nb::handle object, const Py_buffer* view, DType dtype) {
  KnownArrays& known = known_arrays;
  Py_ssize_t place = static_cast<std::byte*>(view->buf) - reinterpret_cast<std::byte*>(object.ptr());
  bool inside = place >= Py_ssize_t{sizeof(PyObject)} && place + view->len <= type->tp_basicsize;
  if (known.numbers == KnownArrays::most || !inside || view->ndim != 0 || view->len > Py_ssize_t{sizeof(uint64_t)}) return;
  for (int i = 0; i < known.numbers; ++i)
    if (known.number_types[i] == type) return;
  known.number_types[known.numbers] = type;  // for good: it is NumPy's own
  known.number_dtypes[known.numbers] = dtype;
  known.places[known.numbers++] = place;
}

void remember(nb::handle object, const Py_buffer* view, DType dtype) {
  KnownArrays& known = known_arrays;
  PyTypeObject* type = Py_TYPE(object.ptr());
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 || std::strncmp(type->tp_name, "numpy.", 6) != 0) return;
  if (std::strcmp(type->tp_name, "numpy.ndarray") != 0) return remember_number(type, object, view, dtype);
  if (known.count == KnownArrays::most || type->tp_basicsize < Py_ssize_t{sizeof(NumpyArray)}) return;
  if (known.type != nullptr && type != known.type) return;
  auto* array = reinterpret_cast<const NumpyArray*>(object.ptr());
  if (array->data != view->buf || array->axes != view->ndim) return;
  for (int i = 0; i < view->ndim; ++i)
    if (array->sizes[i] != view->shape[i] || (view->shape[i] > 1 && array->strides[i] != view->strides[i])) return;
  nb::object element = nb::getattr(object, "dtype");
  if (element.ptr() != array->dtype) return;
  for (int i = 0; i < known.count; ++i)
    if (known.objects[i] == element.ptr()) return;
  known.type = type;
  known.dtypes[known.count] = dtype;
  known.objects[known.count++] = element.release().ptr();  // for good: nothing else may have its address
}

void release_object(void* owner) {
  GiveBackLater::add([](void* held) { Py_DECREF(static_cast<PyObject*>(held)); }, owner);
}

// From an object with the buffer protocol; null when its element type is not one of ours.
Tensor* from_buffer(nb::handle object, uint8_t expected, bool copy) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  Tensor* tensor = nullptr;
  try {
    int code = from_format(view->format, view->itemsize);
    if (code >= 0) {
      auto dtype = static_cast<DType>(code);
      remember(object, view.get(), dtype);
      check_dtype(expected, dtype);
      if (view->ndim > max_rank) fail(Status::invalid_argument, "a tensor has at most %d axes", max_rank);
      if (!copy && PyBuffer_IsContiguous(view.get(), 'C')) {
        tensor = borrow(view.get(), dtype);
        if (tensor != nullptr) {
          view.release();
          return tensor;
        }
      }
      tensor = copy_of(view.get(), dtype);
    }
  } catch (...) {
    PyBuffer_Release(view.get());
    throw;
  }
  PyBuffer_Release(view.get());
  return tensor;
}

struct Keep {
  nb::ndarray<nb::ro> array;
};
void release_keep(void* owner) {
  GiveBackLater::add([](void* held) { delete static_cast<Keep*>(held); }, owner);
}

// From an object with the DLPack protocol; null when it is not one, or its element type is not one of ours.
Tensor* from_dlpack_object(nb::handle object, uint8_t expected, bool copy) {
  if (!nb::hasattr(object, "__dlpack__")) return nullptr;
  // PyTorch hands out the memory of a tensor that stands for its negative without a word about that.
  if (nb::hasattr(object, "is_neg") && nb::cast<bool>(object.attr("is_neg")()))
    fail(Status::invalid_argument,
         "expected a tensor, found %s that holds the negatives of its elements; resolve_neg() makes it one",
         python_type(object).c_str());
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(nb::borrow(object), array)) {
    PyErr_Clear();
    return nullptr;
  }
  if (array.device_type() != nb::device::cpu::value)
    fail(Status::invalid_argument, "expected a tensor in the host's memory; copy it there first");
  int code = from_dlpack(array.dtype().code, array.dtype().bits);
  if (code < 0 || array.dtype().lanes != 1) return nullptr;
  auto dtype = static_cast<DType>(code);
  check_dtype(expected, dtype);
  if (array.ndim() > max_rank) fail(Status::invalid_argument, "a tensor has at most %d axes", max_rank);
  auto rank = static_cast<uint32_t>(array.ndim());
  int64_t shape[max_rank], stride = 1;
  bool contiguous = true;
  for (uint32_t i = rank; i-- > 0;) {
    shape[i] = static_cast<int64_t>(array.shape(i));
    if (shape[i] != 1 && array.stride(i) != stride) contiguous = false;
    stride *= shape[i];
  }
  int64_t bytes = packed_bytes(dtype, count_elements(rank, shape));
  auto* data = static_cast<const std::byte*>(array.data());
  if (contiguous && !copy && reinterpret_cast<uintptr_t>(data) % scalar_bytes(dtype) == 0) {
    auto* keep = new Keep{array};
    return new_tensor(new_external_storage(const_cast<std::byte*>(data), bytes, true, release_keep, keep), 0, dtype,
                      rank, shape);
  }
  Tensor* tensor = new_host_tensor(dtype, rank, shape);
  size_t width = scalar_bytes(dtype);
  int64_t index[max_rank] = {};
  std::byte* to = tensor->data();
  for (int64_t n = tensor->elements(); n > 0; --n, to += width) {
    int64_t offset = 0;
    for (uint32_t i = 0; i < rank; ++i) offset += index[i] * array.stride(i);
    std::memcpy(to, data + offset * static_cast<int64_t>(width), width);
    for (uint32_t i = rank; i-- > 0 && ++index[i] == shape[i];) index[i] = 0;
  }
  return tensor;
}

// NumPy arrays of the element types that NumPy itself does not know: bfloat16, and the unpacked int4 and uint4.
Tensor* from_extended_array(nb::handle object, uint8_t expected, bool copy) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object.attr("dtype"), "name")) return nullptr;
  auto name = nb::cast<std::string>(nb::str(nb::object(object.attr("dtype").attr("name"))));
  if (name == "bfloat16") {
    check_dtype(expected, DType::bfloat16_);
    nb::object words = nb::module_::import_("numpy").attr("ascontiguousarray")(object).attr("view")("uint16");
    // A 0-d array became one of rank 1.
    Tensor* tensor = from_buffer(words.attr("reshape")(object.attr("shape")), any_dtype, copy);
    if (tensor != nullptr) tensor->dtype = DType::bfloat16_;
    return tensor;
  }
  if (name != "int4" && name != "uint4") return nullptr;
  DType dtype = name == "int4" ? DType::int4_ : DType::uint4_;
  check_dtype(expected, dtype);
  nb::object wide = object.attr("astype")("int8");
  Tensor* unpacked = from_buffer(wide, any_dtype, true);
  if (unpacked == nullptr) return nullptr;
  Owned keep(Value::of(unpacked));
  Tensor* packed = new_host_tensor(dtype, unpacked->rank, unpacked->shape());
  auto* from = reinterpret_cast<const uint8_t*>(unpacked->data());
  auto* to = reinterpret_cast<uint8_t*>(packed->data());
  int64_t n = unpacked->elements();
  for (int64_t i = 0; i < n; i += 2)
    to[i / 2] = static_cast<uint8_t>((from[i] & 15) | (i + 1 < n ? from[i + 1] << 4 : 0));
  return packed;
}

// --- out -----------------------------------------------------------------------------------------------------------

void release_capsule(void* tensor) noexcept { release(static_cast<Object*>(static_cast<Tensor*>(tensor))); }

nb::object numpy_view(Tensor* tensor, DType as, const void* data, nb::handle owner) {
  size_t shape[max_rank];
  for (int i = 0; i < tensor->rank; ++i) shape[i] = static_cast<size_t>(tensor->shape()[i]);
  DLDataType type = to_dlpack(as);
  nb::dlpack::dtype dtype{type.code, type.bits, type.lanes};
  nb::ndarray<nb::numpy, nb::ro> array(data, tensor->rank, shape, owner, nullptr, dtype);
  return nb::cast(array);
}

template <class Managed>
void delete_managed(Managed* managed) {
  release(static_cast<Object*>(static_cast<Tensor*>(managed->context)));
  delete[] managed->tensor.shape;
  delete managed;
}

template <class Managed>
void capsule_destructor(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;  // taken: renamed by the consumer
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

template <class Managed>
Managed* make_managed(Tensor* tensor) {
  auto* managed = new Managed{};
  retain(static_cast<Object*>(tensor));
  managed->context = tensor;
  managed->deleter = delete_managed<Managed>;
  auto* sizes = new int64_t[2 * tensor->rank + 1];
  int64_t stride = 1;
  for (int i = tensor->rank; i-- > 0;) {
    sizes[i] = tensor->shape()[i];
    sizes[tensor->rank + i] = stride;
    stride *= tensor->shape()[i];
  }
  managed->tensor = {
      tensor->data(), {dl_cpu, 0}, tensor->rank, to_dlpack(tensor->dtype), sizes, sizes + tensor->rank, 0};
  return managed;
}

void need_host(const Tensor* tensor) {
  if (tensor->storage->device != host_device)
    fail(Status::invalid_argument, "the tensor is on device %s; copy it to the host first: tensor.to(\"cpu\")",
         device(tensor->storage->device).name());
}

nb::object to_dlpack_capsule(const PyTensor& self, nb::kwargs options) {
  Tensor* tensor = self.get();
  need_host(tensor);
  if (bits(tensor->dtype) < 8) throw nb::buffer_error("packed elements have no DLPack form");
  bool versioned = options.contains("max_version") && !nb::object(options["max_version"]).is_none() &&
                   nb::cast<int>(nb::object(options["max_version"])[0]) >= 1;
  PyObject* capsule;
  if (versioned) {
    auto* managed = make_managed<DLManagedTensorVersioned>(tensor);
    managed->major = 1;
    managed->flags = dl_read_only;
    capsule = PyCapsule_New(managed, "dltensor_versioned",
                            [](PyObject* c) { capsule_destructor<DLManagedTensorVersioned>(c, "dltensor_versioned"); });
  } else {
    capsule = PyCapsule_New(make_managed<DLManagedTensor>(tensor), "dltensor",
                            [](PyObject* c) { capsule_destructor<DLManagedTensor>(c, "dltensor"); });
  }
  return nb::steal(capsule);
}

nb::tuple shape_tuple(const Tensor* tensor) {
  nb::object out = nb::steal(PyTuple_New(tensor->rank));
  for (int i = 0; i < tensor->rank; ++i) PyTuple_SET_ITEM(out.ptr(), i, PyLong_FromLongLong(tensor->shape()[i]));
  return nb::cast<nb::tuple>(out);
}

Tensor* move_to(Tensor* tensor, const char* name) {
  int32_t to = device_from_name(name);
  if (to < 0) fail(Status::invalid_argument, "unknown device '%s'; there are cpu and fake", name);
  Tensor* copy =
      new_tensor(new_storage(tensor->bytes(), storage_alignment, to), 0, tensor->dtype, tensor->rank, tensor->shape());
  Storage *a = copy->storage, *b = tensor->storage;
  device_copy({to, a->block, a->block_bytes, a->data}, {b->device, b->block, b->block_bytes, tensor->data()},
              tensor->bytes());
  return copy;
}

PyTensor shared(Tensor* tensor) {
  Value v = Value::of(tensor);
  share(v);
  return PyTensor(as_tensor(v));
}

nb::list rows(Tensor* tensor) {
  if (tensor->rank == 0) throw nb::type_error("a tensor of rank 0 has no rows");
  nb::list out;
  for (int64_t i = 0; i < tensor->shape()[0]; ++i) out.append(shared(row_of(tensor, i)));
  return out;
}

}  // namespace

thread_local GiveBackLater* GiveBackLater::open_ = nullptr;

GiveBackLater::~GiveBackLater() {
  open_ = outer_;
  for (size_t i = 0; i < count_; ++i) in_place_[i].give_back(in_place_[i].owner);
  for (const Item& item : more_) item.give_back(item.owner);
}

void GiveBackLater::add(void (*give_back)(void*), void* owner) {
  if (GiveBackLater* open = open_) {
    if (open->count_ < few)
      open->in_place_[open->count_++] = {give_back, owner};
    else
      open->more_.push_back({give_back, owner});
    return;
  }
  if (!Py_IsInitialized()) return;
  PyGILState_STATE state = PyGILState_Ensure();
  give_back(owner);
  PyGILState_Release(state);
}

bool known_elements(nb::handle object, KnownElements* found) {
  const KnownArrays& known = known_arrays;
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (type != known.type) {
    for (int i = 0; i < known.numbers; ++i)
      if (known.number_types[i] == type) {
        DType dtype = known.number_dtypes[i];
        *found = {reinterpret_cast<const std::byte*>(object.ptr()) + known.places[i], dtype, 0, nullptr,
                  static_cast<int64_t>(scalar_bytes(dtype))};
        return true;
      }
    return false;
  }
  auto* array = reinterpret_cast<const NumpyArray*>(object.ptr());
  int number = 0;
  while (number < known.count && known.objects[number] != array->dtype) ++number;
  if (number == known.count || array->axes > max_rank) return false;
  auto width = static_cast<int64_t>(scalar_bytes(known.dtypes[number]));
  int64_t bytes = width;
  for (int i = array->axes; i-- > 0;) {
    if (array->sizes[i] != 1 && array->strides[i] != bytes) return false;
    bytes *= array->sizes[i];
  }
  *found = {array->data, known.dtypes[number], array->axes, array->sizes, bytes};
  return reinterpret_cast<uintptr_t>(array->data) % static_cast<uintptr_t>(width) == 0;
}

Tensor* row_of(Tensor* tensor, int64_t i) {
  int64_t elements = count_elements(tensor->rank - 1u, tensor->shape() + 1);
  if (elements * bits(tensor->dtype) % 8 != 0) fail(Status::invalid_argument, "the rows do not begin at whole bytes");
  int64_t bytes = packed_bytes(tensor->dtype, elements);
  retain(static_cast<Object*>(tensor->storage));
  return new_tensor(tensor->storage, tensor->offset + i * bytes, tensor->dtype, tensor->rank - 1u, tensor->shape() + 1);
}

Value value_of_known(nb::handle object, const KnownElements& elements, int64_t copied) {
  if (elements.axes == 0) {
    uint64_t bits = 0;
    std::memcpy(&bits, elements.data, static_cast<size_t>(elements.bytes));
    return Value::scalar(elements.dtype, bits);
  }
  int64_t shape[max_rank];
  std::copy_n(elements.sizes, elements.axes, shape);
  auto rank = static_cast<uint32_t>(elements.axes);
  if (elements.bytes <= copied) {
    Tensor* copy = new_host_tensor(elements.dtype, rank, shape);
    std::memcpy(copy->data(), elements.data, static_cast<size_t>(elements.bytes));
    return Value::of(copy);
  }
  auto* data = const_cast<std::byte*>(elements.data);
  Storage* storage = new_external_storage(data, elements.bytes, true, nullptr, object.ptr());
  Py_INCREF(object.ptr());
  storage->on_release = release_object;
  storage->lent = true;
  return Value::of(new_tensor(storage, 0, elements.dtype, rank, shape));
}

// Whether the elements are dates or durations: one of NumPy's lends its eight bytes as numbers.
static bool of_time(nb::handle object) {
  nb::object kind = nb::getattr(nb::getattr(object, "dtype", nb::none()), "kind", nb::none());
  return nb::isinstance<nb::str>(kind) && (nb::cast<std::string>(kind) == "M" || nb::cast<std::string>(kind) == "m");
}

Tensor* tensor_from_array(nb::handle object, uint8_t dtype, bool copy) {
  Tensor* tensor = nullptr;
  // Its buffer has numbers under the mask as well.
  if (Py_TYPE(object.ptr()) != known_arrays.type && nb::hasattr(object, "mask") && nb::hasattr(object, "filled"))
    fail(Status::invalid_argument,
         "expected a tensor, found %s, whose mask would be lost; filled() says what stands under it",
         python_type(object).c_str());
  if (!PyBytes_Check(object.ptr()) && !PyByteArray_Check(object.ptr())) {
    if (PyObject_CheckBuffer(object.ptr()) && !of_time(object)) tensor = from_buffer(object, dtype, copy);
    if (tensor == nullptr) tensor = from_extended_array(object, dtype, copy);
    if (tensor == nullptr) tensor = from_dlpack_object(object, dtype, copy);
  }
  if (tensor == nullptr) {
    std::string found = python_type(object);
    if (nb::hasattr(object, "dtype")) {
      nb::object element = object.attr("dtype");
      found += " of " + nb::cast<std::string>(nb::str(element));
      if (nb::getattr(element, "isnative", nb::none()).ptr() == Py_False)
        fail(Status::invalid_argument, "expected a tensor, found %s, which has another byte order than this machine",
             found.c_str());
    }
    fail(Status::invalid_argument, "expected a tensor, found %s, which cannot be used as one", found.c_str());
  }
  return tensor;
}

Tensor* lent_tensor(nb::handle object, uint8_t dtype, bool copy) {
  Tensor* made = tensor_from_array(object, dtype, copy);
  made->storage->lent = made->storage->on_release != nullptr;  // not where it had to be copied
  return made;
}

nb::object tensor_to_numpy(Tensor* tensor) {
  need_host(tensor);
  if (bits(tensor->dtype) < 8) {
    bool is_signed = info(tensor->dtype).kind == DTypeKind::sint;
    int64_t n = tensor->elements();
    auto* out = new uint8_t[static_cast<size_t>(n) + 1];
    nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
    auto* packed = reinterpret_cast<const uint8_t*>(tensor->data());
    for (int64_t i = 0; i < n; ++i) {
      uint8_t nibble = packed[i / 2] >> (i % 2 * 4) & 15;
      out[i] = is_signed && nibble > 7 ? static_cast<uint8_t>(nibble | 0xF0) : nibble;
    }
    nb::object bytes = numpy_view(tensor, is_signed ? DType::int8_ : DType::uint8_, out, owner);
    return bytes.attr("astype")(nb::module_::import_("ml_dtypes").attr(dtype_name(tensor->dtype)));
  }
  retain(static_cast<Object*>(tensor));
  nb::capsule owner(static_cast<void*>(tensor), release_capsule);
  if (tensor->dtype == DType::bfloat16_)
    return numpy_view(tensor, DType::uint16_, tensor->data(), owner)
        .attr("view")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
  return numpy_view(tensor, tensor->dtype, tensor->data(), owner);
}

// Arithmetic and comparisons, which are those of NumPy's view, also where NumPy leaves them to the other operand (which knows arrays, and
// not this class). Those of the second kind have the tensor on the right.
constexpr const char* array_operators[] = {"__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__",
                                           "__pow__", "__matmul__", "__and__", "__or__", "__xor__"};
constexpr const char* array_comparisons[] = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"};

void init_tensor(nb::module_& m) {
  nb::class_<PyTensor> tensor(m, "Tensor",
                              "A dense, immutable tensor. np.asarray(tensor) is a view of it, without a copy.");
  auto define = [&](const char* name) {
    tensor.def(
        name,
        [name](const PyTensor& self, const nb::object& other) -> nb::object {
          return nb::module_::import_("operator").attr(name)(tensor_to_numpy(self.get()), other);
        },
        nb::arg("other").none(), nb::is_operator());
  };
  for (const char* name : array_comparisons) define(name);
  for (const char* name : array_operators) {
    define(name);
    tensor.def(
        (std::string("__r") + (name + 2)).c_str(),
        [name](const PyTensor& self, const nb::object& other) -> nb::object {
          return nb::module_::import_("operator").attr(name)(other, tensor_to_numpy(self.get()));
        },
        nb::arg("other").none(), nb::is_operator());
  }
  tensor.def("__neg__", [](const PyTensor& self) { return tensor_to_numpy(self.get()).attr("__neg__")(); })
      .def("__abs__", [](const PyTensor& self) { return tensor_to_numpy(self.get()).attr("__abs__")(); })
      .def_static(
          "from_numpy", [](nb::handle array, bool copy) { return shared(tensor_from_array(array, any_dtype, copy)); },
          nb::arg("array"), nb::arg("copy") = false,
          "From a NumPy array or any object with the buffer or DLPack protocol. Without a copy where it is contiguous; "
          "the "
          "array must then not be changed while the tensor is in use.")
      .def_prop_ro("shape", [](const PyTensor& self) { return shape_tuple(self.get()); })
      .def_prop_ro("ndim", [](const PyTensor& self) { return static_cast<int>(self.get()->rank); })
      .def_prop_ro("size", [](const PyTensor& self) { return self.get()->elements(); })
      .def_prop_ro("nbytes", [](const PyTensor& self) { return self.get()->bytes(); })
      .def_prop_ro("dtype", [](const PyTensor& self) { return dtype_name(self.get()->dtype); })
      .def_prop_ro("device", [](const PyTensor& self) { return device(self.get()->storage->device).name(); })
      .def(
          "rows", [](const PyTensor& self) { return rows(self.get()); },
          "The parts along the first axis, in order: views, without a copy.")
      .def_prop_ro(
          "donated", [](const PyTensor& self) { return self.donated(); },
          "Whether the tensor was given away to a call.")
      .def_prop_ro(
          "data_ptr", [](const PyTensor& self) { return reinterpret_cast<uintptr_t>(self.get()->data()); },
          "The address of the first element, on the tensor's device.")
      .def(
          "numpy", [](const PyTensor& self) { return tensor_to_numpy(self.get()); },
          "A read-only NumPy view (int4 and uint4: an unpacked copy).")
      .def(
          "to", [](const PyTensor& self, const std::string& name) { return shared(move_to(self.get(), name.c_str())); },
          nb::arg("device"), "A copy on the device: \"cpu\" or \"fake\".")
      .def(
          "__array__",
          [](const PyTensor& self, nb::object dtype, nb::object copy) -> nb::object {
            nb::object array = tensor_to_numpy(self.get());
            bool must_copy = !copy.is_none() && nb::cast<bool>(copy);
            if (!dtype.is_none()) array = array.attr("astype")(dtype, nb::arg("copy") = false);
            return must_copy ? nb::object(array.attr("copy")()) : array;
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def(
          "__reduce__",
          [](const PyTensor& self) {
            // Tensor.from_numpy(array), in words that can be pickled: a function of an extension module cannot be.
            nb::object call = nb::module_::import_("operator").attr("methodcaller");
            return nb::make_tuple(call("from_numpy", tensor_to_numpy(self.get())), nb::make_tuple(nb::type<PyTensor>()));
          },
          "Pickled and copied as its array: a result may go to another process.")
      .def("__dlpack__", to_dlpack_capsule)
      .def("__dlpack_device__",
           [](const PyTensor& self) {
             need_host(self.get());
             return nb::make_tuple(dl_cpu, 0);
           })
      .def("__len__",
           [](const PyTensor& self) {
             if (self.get()->rank == 0) throw nb::type_error("a tensor of rank 0 has no length");
             return self.get()->shape()[0];
           })
      .def("__float__", [](const PyTensor& self) { return tensor_to_numpy(self.get()).attr("__float__")(); })
      .def("__int__", [](const PyTensor& self) { return tensor_to_numpy(self.get()).attr("__int__")(); })
      .def("__bool__", [](const PyTensor& self) { return tensor_to_numpy(self.get()).attr("__bool__")(); })
      .def("item", [](const PyTensor& self) { return tensor_to_numpy(self.get()).attr("item")(); })
      .def(
          "tolist", [](const PyTensor& self) { return tensor_to_numpy(self.get()).attr("tolist")(); },
          "The elements as Python numbers, in lists.")
      .def(
          "__getitem__",
          [](const PyTensor& self, const nb::object& index) -> nb::object {
            return tensor_to_numpy(self.get()).attr("__getitem__")(index);
          },
          nb::arg("index"), "What NumPy's view gives at an index.")
      .def("__iter__", [](const PyTensor& self) { return nb::iter(tensor_to_numpy(self.get())); })
      .def("__repr__", [](const PyTensor& self) {
        if (self.donated()) return std::string("Tensor(donated)");
        Tensor* tensor = self.get();
        std::string head = "Tensor(shape=" + shape_text(tensor) + ", dtype=" + dtype_name(tensor->dtype);
        if (tensor->storage->device != host_device)
          return head + ", device=" + device(tensor->storage->device).name() + ")";
        nb::object text = nb::module_::import_("numpy").attr("array2string")(
            tensor_to_numpy(tensor), nb::arg("threshold") = 64, nb::arg("prefix") = "  ");
        return head + ",\n  " + nb::cast<std::string>(nb::str(text)) + ")";
      });
}

}  // namespace relay
