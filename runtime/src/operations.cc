#include "operations.h"

#include <vector>

#include "relay/device.h"
#include "relay/error.h"

namespace relay {
namespace {

std::string shape_text(uint32_t rank, const int64_t* dims) {
  std::string text = "(";
  for (uint32_t i = 0; i < rank; ++i) text += format(i ? ", %lld" : "%lld", static_cast<long long>(dims[i]));
  return text + (rank == 1 ? ",)" : ")");
}

Tensor* need_tensor(const Value& v, const char* what) {
  Tensor* tensor = as_tensor(v);
  if (tensor == nullptr) fail(Status::failed, "%s needs a tensor and got %s", what, describe(v).c_str());
  return tensor;
}

const std::byte* need_host(const Tensor* tensor, const char* what) {
  if (tensor->storage->device != host_device)
    fail(Status::failed, "%s needs a tensor on the host and got one on device %s", what,
         device(tensor->storage->device).name());
  return tensor->data();
}

int64_t tensor_bytes(DType dtype, uint32_t rank, const int64_t* dims) {
  int64_t n = count_elements(rank, dims);
  int64_t bytes = n < 0 ? -1 : packed_bytes(dtype, n);
  if (bytes < 0) fail(Status::failed, "a tensor cannot have the shape %s", shape_text(rank, dims).c_str());
  return bytes;
}

// A tensor of the given shape over part of the storage of another.
Tensor* over(Tensor* tensor, int64_t offset, uint32_t rank, const int64_t* dims) {
  retain(static_cast<Object*>(tensor->storage));
  return new_tensor(tensor->storage, offset, tensor->dtype, rank, dims);
}

}  // namespace

std::string describe(const Value& v) {
  switch (v.kind) {
    case Kind::nil: return "nothing";
    case Kind::scalar: return format("a scalar of %s", dtype_name(v.dtype));
    case Kind::object: break;
  }
  if (Tensor* tensor = as_tensor(v)) {
    std::string text = format("a tensor of %s and shape %s", dtype_name(tensor->dtype),
                              shape_text(tensor->rank, tensor->shape()).c_str());
    if (tensor->storage->device != host_device) text += format(" on device %s", device(tensor->storage->device).name());
    return text;
  }
  if (Adt* adt = as_adt(v))
    return adt->tag == tuple_tag ? format("a tuple of %u", adt->size)
                                 : format("a constructor value with tag %d", adt->tag);
  return format("a %s", type_name(v.object->type));
}

int64_t to_int64_slow(const Value& v) {
  Value scalar = scalar_of(v);
  if (!scalar.is_scalar(DType::int64_))
    fail(Status::failed, "expected an int64 number and got %s", describe(v).c_str());
  return static_cast<int64_t>(scalar.bits);
}

bool to_bool_slow(const Value& v) {
  Value scalar = scalar_of(v);
  if (!scalar.is_scalar(DType::bool_)) fail(Status::failed, "expected a boolean and got %s", describe(v).c_str());
  return (scalar.bits & 1) != 0;
}

uint32_t read_shape(const Value& v, int64_t* dims) {
  Tensor* tensor = need_tensor(v, "a shape");
  if (tensor->dtype != DType::int64_ || tensor->rank != 1 || tensor->shape()[0] > max_rank)
    fail(Status::failed, "a shape must be an int64 vector of at most %d sizes and is %s", max_rank,
         describe(v).c_str());
  auto rank = static_cast<uint32_t>(tensor->shape()[0]);
  std::memcpy(dims, need_host(tensor, "a shape"), rank * sizeof(int64_t));
  return rank;
}

Tensor* allocate_tensor(const Value& v, int64_t offset, DType dtype, uint32_t rank, const int64_t* dims) {
  auto* storage = cast<Storage>(v, ObjectType::storage);
  if (storage == nullptr) fail(Status::failed, "a tensor needs a storage and got %s", describe(v).c_str());
  int64_t bytes = tensor_bytes(dtype, rank, dims);
  if (offset < 0 || offset > storage->bytes || bytes > storage->bytes - offset)
    fail(Status::failed, "a tensor of %s and shape %s at byte %lld does not fit its storage of %lld bytes",
         dtype_name(dtype), shape_text(rank, dims).c_str(), static_cast<long long>(offset),
         static_cast<long long>(storage->bytes));
  retain(static_cast<Object*>(storage));
  return new_tensor(storage, offset, dtype, rank, dims);
}

Tensor* allocate_reuse(const Value& candidate, int64_t bytes, DType dtype, int32_t device_index, uint32_t rank,
                       const int64_t* dims) {
  if (tensor_bytes(dtype, rank, dims) > bytes)
    fail(Status::failed, "a tensor of %s and shape %s does not fit %lld bytes", dtype_name(dtype),
         shape_text(rank, dims).c_str(), static_cast<long long>(bytes));
  Tensor* tensor = as_tensor(candidate);
  // (A view from further on would be written where others of its elements are still to be read.)
  if (tensor != nullptr && tensor->offset == 0 && unique(tensor) && unique(tensor->storage)) {
    Storage* storage = tensor->storage;
    if (!storage->read_only && storage->capacity >= bytes && storage->device == device_index) {
      if (storage->bytes < bytes) storage->bytes = bytes;
      storage->grown.store(-1, std::memory_order_relaxed);  // the new tensor may be longer than what was claimed
      retain(static_cast<Object*>(storage));
      return new_tensor(storage, 0, dtype, rank, dims);
    }
  }
  return new_tensor(new_storage(bytes, storage_alignment, device_index), 0, dtype, rank, dims);
}

Tensor* allocate_fresh(int64_t bytes, DType dtype, int32_t device_index, uint32_t rank, const int64_t* dims) {
  if (tensor_bytes(dtype, rank, dims) > bytes)
    fail(Status::failed, "a tensor of %s and shape %s does not fit %lld bytes", dtype_name(dtype),
         shape_text(rank, dims).c_str(), static_cast<long long>(bytes));
  return new_tensor(new_storage(bytes, storage_alignment, device_index), 0, dtype, rank, dims);
}

Tensor* reshape(const Value& v, uint32_t rank, const int64_t* dims) {
  Owned boxed;
  if (v.kind == Kind::scalar) boxed = Owned(Value::of(box_scalar(v)));
  Tensor* tensor = v.kind == Kind::scalar ? as_tensor(boxed.get()) : need_tensor(v, "reshape");
  if (count_elements(rank, dims) != tensor->elements())
    fail(Status::failed, "cannot reshape %s to %s: the number of elements differs", describe(v).c_str(),
         shape_text(rank, dims).c_str());
  return over(tensor, tensor->offset, rank, dims);
}

Tensor* view(const Value& v, int64_t offset, uint32_t rank, const int64_t* dims) {
  Tensor* tensor = need_tensor(v, "a view");
  int64_t bytes = tensor_bytes(tensor->dtype, rank, dims), room = tensor->bytes();
  if (offset < 0 || offset > room || bytes > room - offset)
    fail(Status::failed, "a view of shape %s at byte %lld lies outside %s", shape_text(rank, dims).c_str(),
         static_cast<long long>(offset), describe(v).c_str());
  return over(tensor, tensor->offset + offset, rank, dims);
}

Value copy_to_device(const Value& v, int32_t device_index) {
  Owned boxed;
  if (v.kind == Kind::scalar) {
    if (device_index == host_device) return v;
    boxed = Owned(Value::of(box_scalar(v)));
  }
  Tensor* tensor = v.kind == Kind::scalar ? as_tensor(boxed.get()) : need_tensor(v, "a copy between devices");
  int64_t bytes = tensor->bytes();
  Storage* storage = new_storage(bytes, storage_alignment, device_index);
  Tensor* copy = new_tensor(storage, 0, tensor->dtype, tensor->rank, tensor->shape());
  Storage* from = tensor->storage;
  device_copy({device_index, storage->block, storage->block_bytes, storage->data},
              {from->device, from->block, from->block_bytes, tensor->data()}, bytes);
  return Value::of(copy);
}

Tensor* shape_of(const Value& v) {
  if (v.kind == Kind::scalar) {
    int64_t none = 0;
    return new_host_tensor(DType::int64_, 1, &none);
  }
  Tensor* tensor = need_tensor(v, "shape_of");
  int64_t rank = tensor->rank;
  Tensor* shape = new_host_tensor(DType::int64_, 1, &rank);
  std::memcpy(shape->data(), tensor->shape(), static_cast<size_t>(rank) * sizeof(int64_t));
  return shape;
}

int64_t dim_of(const Value& v, int32_t axis) {
  Tensor* tensor = need_tensor(v, "the size of an axis");
  if (axis >= tensor->rank) fail(Status::failed, "there is no axis %d in %s", axis, describe(v).c_str());
  return tensor->shape()[axis];
}

Value scalar_of(const Value& v) {
  if (v.kind == Kind::scalar) return v;
  Tensor* tensor = need_tensor(v, "a scalar");
  if (tensor->elements() != 1) fail(Status::failed, "expected one element and got %s", describe(v).c_str());
  Value scalar = Value::scalar(tensor->dtype, 0);
  std::memcpy(&scalar.bits, need_host(tensor, "a scalar"), scalar_bytes(tensor->dtype));
  if (bits(tensor->dtype) < 8) scalar.bits &= (1u << bits(tensor->dtype)) - 1;
  return scalar;
}

Value scalar_of(const Value& v, DType dtype) {
  Value scalar = scalar_of(v);
  if (scalar.dtype != dtype) fail(Status::failed, "expected a scalar of %s and got %s", dtype_name(dtype), describe(v).c_str());
  return scalar;
}

Value element_of(const Value& v, DType dtype, int64_t index) {
  Tensor* tensor = need_tensor(v, "an element");
  uint32_t size = scalar_bytes(dtype);
  if (tensor->dtype != dtype || bits(dtype) < 8)
    fail(Status::failed, "expected a tensor of whole elements of %s and got %s", dtype_name(dtype), describe(v).c_str());
  if (index < 0 || index >= tensor->elements())
    fail(Status::failed, "there is no element %lld in %s", static_cast<long long>(index), describe(v).c_str());
  Value scalar = Value::scalar(dtype, 0);
  int64_t at = tensor->offset + index * size;
  Storage* from = tensor->storage;
  if (from->device == host_device) [[likely]] {
    std::memcpy(&scalar.bits, from->data + at, size);
    return scalar;
  }
  int64_t none = 0;
  Owned copy(Value::of(new_host_tensor(dtype, 0, &none)));
  Tensor* element = as_tensor(copy.get());
  Storage* to = element->storage;
  device_copy({host_device, to->block, to->block_bytes, to->data},
              {from->device, from->block, from->block_bytes, from->data + at}, size);
  std::memcpy(&scalar.bits, element->data(), size);
  return scalar;
}

Value field_of(const Value& v, int32_t index) {
  const Value* fields;
  uint32_t size;
  if (Adt* adt = as_adt(v)) {
    fields = adt->fields();
    size = adt->size;
  } else if (Closure* closure = as_closure(v)) {
    fields = closure->captured();
    size = closure->size;
  } else {
    fail(Status::failed, "expected a constructor value or tuple and got %s", describe(v).c_str());
  }
  if (static_cast<uint32_t>(index) >= size)
    fail(Status::failed, "there is no field %d in %s", index, describe(v).c_str());
  retain(fields[index]);
  return fields[index];
}

bool is_tensor(const Value& v, DType dtype, int32_t rank) {
  if (v.kind == Kind::scalar) return v.dtype == dtype && rank == 0;
  Tensor* tensor = as_tensor(v);
  return tensor != nullptr && tensor->dtype == dtype && tensor->rank == rank;
}

std::string fill(const std::string& message, int64_t a, int64_t b) {
  std::string out;
  for (size_t i = 0; i < message.size(); ++i) {
    bool hole = message[i] == '{' && i + 2 < message.size() && message[i + 2] == '}' &&
                (message[i + 1] == '0' || message[i + 1] == '1');
    if (!hole) {
      out += message[i];
      continue;
    }
    out += std::to_string(message[i + 1] == '0' ? a : b);
    i += 2;
  }
  return out;
}

void* odd_buffer(const Kernel& kernel, uint32_t index, Value& v, uint32_t* devices) {
  const KernelOperand& operand = kernel.operands[index];
  auto inputs = static_cast<uint32_t>(kernel.operands.size()) - kernel.outputs;
  const char* name = kernel.name.c_str();
  Tensor* tensor = as_tensor(v);
  bool fits = tensor == nullptr ? is_tensor(v, operand.dtype, operand.rank)
                                : tensor->dtype == operand.dtype && (tensor->rank == 0) == (operand.rank == 0);
  if (!fits)
    fail(Status::failed, "kernel %s: operand %u must be a tensor of %s and rank %u and is %s", name, index,
         dtype_name(operand.dtype), operand.rank, describe(v).c_str());
  if (v.kind == Kind::scalar) return &v.bits;
  if (index >= inputs && tensor->storage->read_only)
    fail(Status::failed, "kernel %s: output %u is on memory that must not be written", name, index - inputs);
  if (reinterpret_cast<uintptr_t>(tensor->data()) & (operand.alignment - 1u))
    fail(Status::failed, "kernel %s: operand %u must be aligned to %u bytes", name, index, operand.alignment);
  *devices |= 1u << tensor->storage->device;
  return tensor->data();
}

int32_t call_on_device(const Kernel& kernel, relay_kernel code, relay_kernel_context* context, uint32_t devices,
                       const Value* registers, const int32_t* operands, const Workspace& workspace, void** buffers,
                       const int64_t* dims) {
  if (devices & (devices - 1))
    fail(Status::failed, "kernel %s has buffers on several devices; copy them to one", kernel.name.c_str());
  std::vector<Storage*> used;
  for (size_t i = 0; i < kernel.operands.size(); ++i)
    if (Tensor* tensor = as_tensor(registers[operands[i]])) used.push_back(tensor->storage);
  if (workspace.storage != nullptr) used.push_back(workspace.storage);
  for (Storage* storage : used) device(storage->device).open(storage->block, storage->block_bytes);
  int32_t result = code(context, buffers, dims);
  for (Storage* storage : used) device(storage->device).close(storage->block, storage->block_bytes);
  return result;
}

}  // namespace relay
