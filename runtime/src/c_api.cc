#include "relay/c_api.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "entry_types.h"
#include "relay/cycles.h"
#include "relay/device.h"
#include "relay/error.h"
#include "relay/executable.h"
#include "relay/object.h"
#include "relay/vm.h"

using namespace relay;

struct relay_executable {
  std::shared_ptr<Executable> program;
};
struct relay_value {
  Value value;  // shared
};

namespace {

// What a call that failed before gave is null: used all the same it is an error, not a crash.
template <class T>
const T& given(const T* pointer, const char* what) {
  if (pointer == nullptr) fail(Status::invalid_argument, "%s is a null pointer", what);
  return *pointer;
}

thread_local std::string last_error;

relay_status note(const std::exception& error) {
  last_error = error.what();
  if (auto* known = dynamic_cast<const Error*>(&error)) return static_cast<relay_status>(known->status);
  return dynamic_cast<const std::bad_alloc*>(&error) ? RELAY_OUT_OF_MEMORY : RELAY_FAILED;
}

// Runs what returns a pointer; null when it throws.
template <class F>
auto guarded(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& error) {
    note(error);
    return nullptr;
  }
}

// Takes over the reference.
relay_value* wrap(Value value) {
  if (value.kind == Kind::scalar) value = Value::of(box_scalar(value));
  share(value);
  return new relay_value{value};
}

struct Layout {
  DType dtype;
  int64_t bytes;
};
Layout layout(const char* name, size_t rank, const int64_t* dims) {
  int code = dtype_from_name(&given(name, "the dtype"));
  if (code < 0) fail(Status::invalid_argument, "unknown dtype '%s'", name);
  if (rank > max_rank) fail(Status::invalid_argument, "a tensor has at most %d axes", max_rank);
  if (rank > 0) given(dims, "the list of sizes");
  auto dtype = static_cast<DType>(code);
  int64_t n = count_elements(static_cast<uint32_t>(rank), dims), bytes = n < 0 ? -1 : packed_bytes(dtype, n);
  if (bytes < 0) fail(Status::invalid_argument, "a tensor cannot have these sizes");
  return {dtype, bytes};
}

// The tensor in a value, if it is one on the host.
const Tensor* host_tensor(const relay_value* value) {
  const Tensor* tensor = value == nullptr ? nullptr : as_tensor(value->value);
  return tensor != nullptr && tensor->storage->device == host_device ? tensor : nullptr;
}

int64_t nanoseconds(double seconds) {
  if (!(seconds > 0)) return 0;
  return seconds < 9e9 ? std::max<int64_t>(1, static_cast<int64_t>(seconds * 1e9)) : INT64_MAX;
}

// What another thread sets is looked at from the run's polling points.
bool cancelled(void* flag) { return *static_cast<const volatile unsigned char*>(flag) != 0; }

}  // namespace

extern "C" {

const char* relay_last_error(void) { return last_error.c_str(); }

relay_executable* relay_load(const char* path) {
  return guarded([&] { return new relay_executable{Executable::load(&given(path, "the path"))}; });
}
relay_executable* relay_open(const relay_program* program) {
  return guarded([&] { return new relay_executable{Executable::from_library(given(program, "the program"))}; });
}
void relay_executable_free(relay_executable* executable) { delete executable; }

size_t relay_entry_count(const relay_executable* executable) {
  return executable == nullptr ? 0 : executable->program->entries.size();
}
const char* relay_entry_name(const relay_executable* executable, size_t entry) {
  if (executable == nullptr) return nullptr;
  const auto& entries = executable->program->entries;
  return entry < entries.size() ? entries[entry].name.c_str() : nullptr;
}
size_t relay_entry_parameters(const relay_executable* executable, size_t entry) {
  if (executable == nullptr) return 0;
  const auto& entries = executable->program->entries;
  return entry < entries.size() ? entries[entry].dtypes.size() : 0;
}
int64_t relay_find(const relay_executable* executable, const char* name) {
  if (executable == nullptr || name == nullptr) return -1;
  const Entry* entry = executable->program->find_entry(name);
  return entry == nullptr ? -1 : entry - executable->program->entries.data();
}
relay_status relay_set_stack_limit(relay_executable* executable, int64_t bytes) {
  try {
    given(executable, "the executable").program->set_stack_limit(bytes);
    return RELAY_OK;
  } catch (const std::exception& error) {
    return note(error);
  }
}

relay_status relay_run(relay_executable* executable, size_t index, relay_value* const* arguments, size_t count,
                       const relay_run_options* chosen, relay_value** result) {
  try {
    given(result, "the place of the result");
    const Executable& program = *given(executable, "the executable").program;
    if (index >= program.entries.size()) fail(Status::invalid_argument, "there is no entry %zu", index);
    const Entry& entry = program.entries[index];
    if (count != entry.dtypes.size())
      fail(Status::invalid_argument, "%s takes %zu arguments and got %zu", entry.name.c_str(), entry.dtypes.size(),
           count);
    if (count > 0) given(arguments, "the list of arguments");
    for (size_t i = 0; i < count; ++i) {
      if (arguments[i] == nullptr) fail(Status::invalid_argument, "argument %zu of %s is a null pointer", i, entry.name.c_str());
      if (arguments[i]->value.is_nil()) fail(Status::invalid_argument, "argument %zu of %s was donated to a run and is gone", i, entry.name.c_str());
      const Tensor* tensor = as_tensor(arguments[i]->value);
      if (entry.dtypes[i] == any_dtype) continue;
      auto expected = static_cast<DType>(entry.dtypes[i]);
      if (tensor == nullptr || tensor->dtype != expected)
        fail(Status::invalid_argument, "argument %zu of %s: expected a tensor of %s, found %s", i, entry.name.c_str(),
             dtype_name(expected), tensor == nullptr ? "another value" : dtype_name(tensor->dtype));
    }
    std::vector<Value> values;
    for (size_t i = 0; i < count; ++i) values.push_back(arguments[i]->value);
    if (const EntryTypes* types = entry.types()) types->check(values.data(), values.size(), program.id);
    for (const Value& value : values) retain(value);
    RunOptions options;
    if (chosen != nullptr) {
      options.threads = chosen->threads;
      options.limits = {chosen->memory_bytes, nanoseconds(chosen->seconds), chosen->depth};
      options.flush_subnormals = chosen->flush_subnormals != 0;
      if (chosen->cancel != nullptr) {
        options.poll = cancelled;
        options.poll_data = const_cast<unsigned char*>(chosen->cancel);
      }
      MutatorScope scope;
      for (size_t i = 0; chosen->donate != nullptr && i < count; ++i)
        if (chosen->donate[i] != 0) release(std::exchange(arguments[i]->value, Value{}));
    }
    *result = wrap(run(program, entry.function, values.data(), static_cast<uint32_t>(count), options));
    maybe_collect_shared();
    return RELAY_OK;
  } catch (const std::exception& error) {
    if (result != nullptr) *result = nullptr;
    return note(error);
  }
}

relay_value* relay_tensor_copy(const char* dtype, size_t rank, const int64_t* dims, const void* data) {
  return guarded([&] {
    Layout l = layout(dtype, rank, dims);
    if (l.bytes > 0) given(static_cast<const char*>(data), "the data");
    Tensor* tensor = new_host_tensor(l.dtype, static_cast<uint32_t>(rank), dims);
    if (l.bytes > 0) std::memcpy(tensor->data(), data, static_cast<size_t>(l.bytes));
    return wrap(Value::of(tensor));
  });
}

relay_value* relay_tensor_borrow(const char* dtype, size_t rank, const int64_t* dims, const void* data,
                                 void (*release)(void* user), void* user) {
  return guarded([&]() -> relay_value* {
    Layout l = layout(dtype, rank, dims);
    if (l.bytes > 0) given(static_cast<const char*>(data), "the data");
    if (reinterpret_cast<uintptr_t>(data) % scalar_bytes(l.dtype) != 0)
      fail(Status::invalid_argument, "borrowed memory must be aligned to its elements");
    Storage* storage = new_external_storage(const_cast<void*>(data), l.bytes, true, release, user);
    return wrap(Value::of(new_tensor(storage, 0, l.dtype, static_cast<uint32_t>(rank), dims)));
  });
}

relay_value* relay_adt(int32_t tag, relay_value* const* fields, size_t count) {
  return guarded([&]() -> relay_value* {
    if (tag < tuple_tag || count > 0xFFFFFFFF) fail(Status::invalid_argument, "no such constructor value");
    if (count > 0) given(fields, "the list of fields");
    for (size_t i = 0; i < count; ++i) {
      if (fields[i] == nullptr) fail(Status::invalid_argument, "field %zu is a null pointer", i);
      if (fields[i]->value.is_nil()) fail(Status::invalid_argument, "field %zu was donated to a run and is gone", i);
    }
    MutatorScope scope;
    Adt* adt = new_adt(tag, static_cast<uint32_t>(count));
    for (size_t i = 0; i < count; ++i) {
      adt->fields()[i] = fields[i]->value;
      retain(fields[i]->value);
    }
    return wrap(Value::of(adt));
  });
}

void relay_value_free(relay_value* value) {
  if (value == nullptr) return;
  {
    MutatorScope scope;
    release(value->value);
  }
  delete value;
}

relay_kind relay_value_kind(const relay_value* value) {
  if (value == nullptr || value->value.kind != Kind::object) return RELAY_NIL;
  switch (value->value.object->type) {
    case ObjectType::tensor: return RELAY_TENSOR;
    case ObjectType::adt: return RELAY_ADT;
    case ObjectType::closure: return RELAY_CLOSURE;
    case ObjectType::ref: return RELAY_REF;
    case ObjectType::storage: break;
  }
  return RELAY_NIL;
}
const void* relay_tensor_data(const relay_value* value) {
  const Tensor* tensor = host_tensor(value);
  return tensor == nullptr ? nullptr : tensor->data();
}
size_t relay_tensor_bytes(const relay_value* value) {
  const Tensor* tensor = host_tensor(value);
  return tensor == nullptr ? 0 : static_cast<size_t>(tensor->bytes());
}
size_t relay_tensor_rank(const relay_value* value) {
  const Tensor* tensor = host_tensor(value);
  return tensor == nullptr ? 0 : tensor->rank;
}
const int64_t* relay_tensor_dims(const relay_value* value) {
  const Tensor* tensor = host_tensor(value);
  return tensor == nullptr ? nullptr : tensor->shape();
}
const char* relay_tensor_dtype(const relay_value* value) {
  const Tensor* tensor = host_tensor(value);
  return tensor == nullptr ? nullptr : dtype_name(tensor->dtype);
}
int32_t relay_value_tag(const relay_value* value) {
  const Adt* adt = value == nullptr ? nullptr : as_adt(value->value);
  return adt == nullptr ? 0 : adt->tag;
}
size_t relay_value_field_count(const relay_value* value) {
  const Adt* adt = value == nullptr ? nullptr : as_adt(value->value);
  return adt == nullptr ? 0 : adt->size;
}
relay_value* relay_value_field(const relay_value* value, size_t index) {
  return guarded([&]() -> relay_value* {
    const Adt* adt = as_adt(given(value, "the value").value);
    if (adt == nullptr || index >= adt->size) fail(Status::invalid_argument, "there is no field %zu", index);
    MutatorScope scope;
    retain(adt->fields()[index]);
    return wrap(adt->fields()[index]);
  });
}

}  // extern "C"
