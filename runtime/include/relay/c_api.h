/* Running saved Relay executables from C.
 *
 * Functions that can fail return a status (RELAY_OK is 0) or a null pointer; relay_last_error() then says why, per
 * thread. A null pointer where none may be is such a failure, or reads as a value that holds nothing: what a call that
 * failed gave may be handed on, and the run says so. A relay_value is one owned reference, given back with
 * relay_value_free; its contents never change. One executable may be run by any number of threads at once. The native
 * code in an executable is trusted; arguments are not: values inside of tuples, algebraic values and references are
 * compared with the entry's types, too. */
#ifndef RELAY_C_API_H
#define RELAY_C_API_H

#include <stddef.h>
#include <stdint.h>

#include "kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RELAY_API __attribute__((visibility("default")))
#else
#define RELAY_API
#endif

typedef enum relay_status {
  RELAY_OK = 0,
  RELAY_INVALID_ARGUMENT = 1,
  RELAY_INVALID_FILE = 2,
  RELAY_INCOMPATIBLE = 3,
  RELAY_FAILED = 4,
  RELAY_RECURSION_LIMIT = 5,
  RELAY_OUT_OF_MEMORY = 6,
  RELAY_INTERRUPTED = 7,
  RELAY_TIME_LIMIT = 8
} relay_status;

typedef enum relay_kind { RELAY_TENSOR = 0, RELAY_ADT = 1, RELAY_CLOSURE = 2, RELAY_REF = 3, RELAY_NIL = 4 } relay_kind;

typedef struct relay_executable relay_executable;
typedef struct relay_value relay_value;

/* What went wrong in this thread's last failing call. */
RELAY_API const char* relay_last_error(void);

/* --- executables --- */
RELAY_API relay_executable* relay_load(const char* path);

/* A program that is linked in: `relay compile -o NAME.so` (or NAME.o) makes one, with a header that declares it. */
typedef struct relay_program {
  uint32_t version;
  uint32_t kernel_count;
  const void* image; /* constants and tables, in the format of executable files */
  uint64_t image_bytes;
  const relay_kernel* kernels;
  const void* (*functions)(uint32_t version, uint32_t count); /* the native code of its functions */
} relay_program;

RELAY_API relay_executable* relay_open(const relay_program* program);
RELAY_API void relay_executable_free(relay_executable* executable);
RELAY_API size_t relay_entry_count(const relay_executable* executable);
RELAY_API const char* relay_entry_name(const relay_executable* executable, size_t entry);
RELAY_API size_t relay_entry_parameters(const relay_executable* executable, size_t entry);
/* The number of the entry of that name, or -1. */
RELAY_API int64_t relay_find(const relay_executable* executable, const char* name);
/* The most bytes that the control stack of one run may take. */
RELAY_API relay_status relay_set_stack_limit(relay_executable* executable, int64_t bytes);

/* How a run goes on; all zero is the default, and so is a null pointer. */
typedef struct relay_run_options {
  int64_t threads;                      /* how many may take part; 0: all there are */
  int64_t memory_bytes;                 /* that the run may add to what is alive (RELAY_OUT_OF_MEMORY); 0: any */
  double seconds;                       /* that it may take, looked at between kernels (RELAY_TIME_LIMIT); 0: any */
  int64_t depth;                        /* calls that may be open at once (RELAY_RECURSION_LIMIT); 0: any */
  const volatile unsigned char* cancel; /* another thread sets it to non-zero: stop (RELAY_INTERRUPTED); may be null */
  int32_t flush_subnormals;             /* not 0: subnormal numbers are taken for zero, which some processors compute faster with */
  /* Null, or for each argument whether it is given up, so that results may take its memory (a cache that grows is appended to where it is).
   * Its relay_value holds nothing from the start of the run on, and is still freed. Where arguments are refused all stay what they are. */
  const unsigned char* donate;
} relay_run_options;

/* Runs an entry. The arguments stay the caller's. *result is a new reference. */
RELAY_API relay_status relay_run(relay_executable* executable, size_t entry, relay_value* const* arguments,
                                 size_t count, const relay_run_options* options, relay_value** result);

/* --- values --- dtype: "float32", "int64", "bool", ...; dims may be null when rank is 0 */
RELAY_API relay_value* relay_tensor_copy(const char* dtype, size_t rank, const int64_t* dims, const void* data);
/* Uses the memory where it is, without writing it; release(user) when it is no longer needed (release may be null). Until then it must not
 * change: results may be views of it, and functions and references may hold it. */
RELAY_API relay_value* relay_tensor_borrow(const char* dtype, size_t rank, const int64_t* dims, const void* data,
                                           void (*release)(void* user), void* user);
/* A constructor's value; tag -1 is a tuple. The fields stay the caller's. */
RELAY_API relay_value* relay_adt(int32_t tag, relay_value* const* fields, size_t count);
RELAY_API void relay_value_free(relay_value* value);

RELAY_API relay_kind relay_value_kind(const relay_value* value);
/* Of tensors on the host (null or 0 for other values). */
RELAY_API const void* relay_tensor_data(const relay_value* tensor);
RELAY_API size_t relay_tensor_bytes(const relay_value* tensor);
RELAY_API size_t relay_tensor_rank(const relay_value* tensor);
RELAY_API const int64_t* relay_tensor_dims(const relay_value* tensor);
RELAY_API const char* relay_tensor_dtype(const relay_value* tensor);
/* Of constructor values and tuples. The field is a new reference; null when there is none. */
RELAY_API int32_t relay_value_tag(const relay_value* value);
RELAY_API size_t relay_value_field_count(const relay_value* value);
RELAY_API relay_value* relay_value_field(const relay_value* value, size_t index);

#ifdef __cplusplus
}
#endif

#endif
