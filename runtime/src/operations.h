// What instructions do beyond moving registers: the parts of the virtual machine that check and allocate. Each throws
// Error(failed) with a sentence when a value is not of the kind it needs.
#pragma once

#include <cstdint>

#include "relay/executable.h"
#include "relay/object.h"

namespace relay {

// "a float32 tensor of shape (2, 3)", "an int64 scalar", "nothing"; for messages.
std::string describe(const Value& v);

// The number in an int64 scalar, or in a one-element int64 host tensor.
int64_t to_int64_slow(const Value& v);
inline int64_t to_int64(const Value& v) {
  if (v.is_scalar(DType::int64_)) [[likely]]
    return static_cast<int64_t>(v.bits);
  return to_int64_slow(v);
}
bool to_bool_slow(const Value& v);
inline bool to_bool(const Value& v) {
  if (v.is_scalar(DType::bool_)) [[likely]]
    return (v.bits & 1) != 0;
  return to_bool_slow(v);
}

// Whether the register holds what allocate_tensor would make, and nobody else does: a loop's tensor of the last iteration.
inline bool is_already(const Value& v, const Value& storage, int64_t offset, DType dtype, uint32_t rank,
                       const int64_t* dims) {
  Tensor* tensor = as_tensor(v);
  if (tensor == nullptr || !storage.is_object(tensor->storage) || tensor->offset != offset || tensor->dtype != dtype ||
      tensor->rank != rank || !unique(tensor))
    return false;
  for (uint32_t i = 0; i < rank; ++i)
    if (tensor->shape()[i] != dims[i]) return false;
  return true;
}

// Whether a value is a tensor of these dims that nobody else holds, on storage that the run allocated for it.
inline bool is_own(const Value& v, DType dtype, int32_t device, uint32_t rank, const int64_t* dims) {
  Tensor* tensor = as_tensor(v);
  if (tensor == nullptr || !unique(tensor) || !unique(tensor->storage) || tensor->dtype != dtype ||
      tensor->rank != rank || tensor->offset != 0 || tensor->storage->capacity == 0 || tensor->storage->read_only ||
      tensor->storage->device != device)
    return false;
  for (uint32_t i = 0; i < rank; ++i)
    if (tensor->shape()[i] != dims[i]) return false;
  return true;
}

// The listed registers as sizes.
inline void read_dims(const Value* registers, const int32_t* list, int32_t n, int64_t* dims) {
  for (int32_t i = 0; i < n; ++i) dims[i] = to_int64(registers[list[i]]);
}

// A shape from an int64 vector on the host; returns its rank.
uint32_t read_shape(const Value& v, int64_t* dims);

Tensor* allocate_tensor(const Value& storage, int64_t offset, DType dtype, uint32_t rank, const int64_t* dims);
Tensor* allocate_fresh(int64_t bytes, DType dtype, int32_t device, uint32_t rank, const int64_t* dims);
Tensor* allocate_reuse(const Value& candidate, int64_t bytes, DType dtype, int32_t device, uint32_t rank,
                       const int64_t* dims);
Tensor* reshape(const Value& v, uint32_t rank, const int64_t* dims);
Tensor* view(const Value& v, int64_t offset, uint32_t rank, const int64_t* dims);
Value copy_to_device(const Value& v, int32_t device);
Tensor* shape_of(const Value& v);
int64_t dim_of(const Value& v, int32_t axis);
Value scalar_of(const Value& v);
Value scalar_of(const Value& v, DType dtype);                   // of that dtype, or fatal
Value element_of(const Value& v, DType dtype, int64_t index);  // in row-major order
Value field_of(const Value& v, int32_t index);  // with a reference for the caller
bool is_tensor(const Value& v, DType dtype, int32_t rank);

// The message with {0} and {1} replaced by the numbers.
std::string fill(const std::string& message, int64_t a, int64_t b);

// The pointer of a kernel operand that is not an ordinary host tensor of the right type; throws when it is none.
void* odd_buffer(const Kernel& kernel, uint32_t index, Value& v, uint32_t* devices);

// Memory that a kernel uses while it runs.
struct Workspace {
  Storage* storage = nullptr;  // that it lies in; none: a kernel without
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

// The memory of a storage, or of a tensor that may be written; without storage: of anything else.
inline Workspace workspace_in(const Value& v) {
  if (auto* storage = cast<Storage>(v, ObjectType::storage)) return {storage, storage->data, storage->bytes};
  auto* tensor = cast<Tensor>(v, ObjectType::tensor);
  if (tensor == nullptr || tensor->storage->read_only) return {};
  return {tensor->storage, tensor->data(), tensor->bytes()};
}

// Runs a kernel with buffers on a device other than the host.
int32_t call_on_device(const Kernel& kernel, relay_kernel code, relay_kernel_context* context, uint32_t devices,
                       const Value* registers, const int32_t* operands, const Workspace& workspace, void** buffers,
                       const int64_t* dims);

}  // namespace relay
