// Executable: a loaded, verified program. Immutable but for its kernel table, so any number of threads may run it.
//
// The file (.rlx), little-endian throughout:
//   header   magic "RELAYEXE", version u32, section count u32, total length u64, checksum u64 of all bytes but its own
//   sections a table of {kind u32, zero u32, offset u64, length u64}, then their bytes, each aligned to 64
// Section kinds and their contents are listed beside the reader (image.cc) and in relay.executable.format, which writes
// them. The file is read into memory, where constant tensors are used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "relay/c_api.h"
#include "relay/elf_loader.h"
#include "relay/kernel.h"
#include "relay/object.h"
#include "relay/profile.h"
#include "relay/routine.h"

namespace relay {

struct Span {
  uint32_t pc;  // from this word of the function's code on
  std::string text;
};

struct Function {
  std::string name;
  uint32_t arity = 0;
  uint32_t registers = 0;  // the parameters are the first of them
  const int32_t* code = nullptr;
  uint32_t words = 0;
  std::vector<Span> spans;

  // Where in the source the word's code comes from, or null.
  const Span* span_at(uint32_t word) const;
};

// Native code of (part of) a function: runs on until the program is done or has failed (native.h).
struct RunState;
using NativeCode = int32_t (*)(RunState* run, Value* registers);

// What native code looks up of a function.
struct NativeFunction {
  const Function* function;
  const int32_t* code;  // the function's bytecode, whose operands the runtime's part of an instruction reads
  NativeCode entry;
};

struct KernelOperand {
  DType dtype;
  uint8_t rank;  // as declared; a kernel reads elements and is told sizes, so any tensor with axes stands for one with axes
  uint16_t alignment;  // bytes that the address must be a multiple of
  int32_t in_place;    // for an output: the input it may share memory with, or -1
};

struct Kernel {
  std::string name;
  std::vector<KernelOperand> operands;  // inputs, then outputs
  uint32_t outputs = 0;
  uint32_t dims = 0;
  uint32_t object = 0;
  std::string symbol;
  std::string info;                                // a JSON text: what the compiler knows of its work
  static constexpr int32_t not_there = -1;         // what is returned in place of a kernel whose code has not come yet
  std::atomic<relay_kernel> entry{nullptr};        // replaceable while the program runs
  std::atomic<bool> alternates{false};             // it asks whether its call is an even or an odd one
  std::atomic<uint64_t> calls{0}, nanoseconds{0};  // while profiling is on
  // Whether the next call is odd; several threads may well take the same. On a line of its own, because calls write it.
  alignas(64) std::atomic<uint32_t> turn{0};
};

class EntryTypes;
struct LateTypes;

struct Entry {
  std::string name;
  uint32_t function;
  std::string info;             // a JSON text for the embedding program
  std::vector<uint8_t> dtypes;  // per parameter: its element type or any_dtype
  // The types of its parameters, read when they are first asked for; null where all are tensors, or it does not say what they are.
  const EntryTypes* types() const;
  std::shared_ptr<LateTypes> late_types;
  bool holds = false;  // whether references or closures are among what its parameters may hold

  // For the bindings to Python: how long runs take, the mean of late (used through std::atomic_ref), and how many there
  // were (under Python's lock).
  mutable int64_t usual_nanoseconds = 10'000'000;
  mutable uint32_t python_calls = 0;
};

inline constexpr int64_t default_stack_bytes = int64_t{1} << 30;

class Executable {
 public:
  // Both throw Error (invalid_file, incompatible). from_bytes copies.
  static std::shared_ptr<Executable> load(const std::string& path);
  static std::shared_ptr<Executable> from_bytes(const void* bytes, size_t size);
  // The program that a library holds (relay.aot made it): its tables, and its kernels and functions as linked code.
  static std::shared_ptr<Executable> from_library(const relay_program& program);
  ~Executable();
  Executable(const Executable&) = delete;

  uint64_t id = 0;  // never used twice in a process
  std::string triple;
  std::vector<std::string> features;
  std::vector<std::string> strings;
  std::vector<Function> functions;
  std::vector<Tensor*> constants;  // immortal
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::vector<const Routine*> routines;
  std::vector<Entry> entries;
  std::vector<NativeFunction> native;  // one per function, or empty: there is bytecode only
  std::string_view later;  // what the native objects that are not there are made of, for the embedding program; empty: all are

  // Bytes that the control stack of a run may take. Set: rounded up to pages; Error(invalid_argument) below 64 KiB.
  int64_t stack_limit() const { return stack_limit_.load(std::memory_order_relaxed); }
  void set_stack_limit(int64_t bytes);

  std::atomic<bool> profiling{false};  // runs that begin now record what happens
  mutable Profile profile;
  std::atomic<bool> checks_memory{false};  // runs that begin now check what kernels touch (runtime/src/memory_check.h)
  std::atomic<bool> flushes_subnormals{false};  // runs that begin now take subnormal numbers for zero
  uint32_t scratch_bytes = 0;  // what a run needs above its newest frame for the operands of one instruction

  const Entry* find_entry(std::string_view name) const;

  // The bytes of its file as they were read: a uint8 tensor on them (one reference).
  Tensor* image() const;

  // Replaces the code of every kernel of that name. Running programs pick it up at their next call; old code stays
  // mapped as long as the executable lives.
  void replace_kernel(const std::string& name, const void* object, size_t size, const std::string& symbol);

  // Gives the native object of this number, which came without one; runs call its kernels from then on. Error(invalid_argument)
  // where it is there, or has not what they need.
  void supply(uint32_t number, const void* object, size_t size);

 private:
  Executable() = default;
  friend class ImageReader;
  Storage* image_ = nullptr;  // the file's bytes; constants keep it alive after the executable is gone
  std::atomic<int64_t> stack_limit_{default_stack_bytes};
  std::mutex mutex_;
  std::vector<std::unique_ptr<NativeObject>> objects_;
  std::unordered_map<std::string_view, const Entry*> by_name_;
};

// Checks all bytecode of the executable; Error(invalid_file) says where and why. What has passed cannot make the
// dispatch loop read or jump outside its tables: registers, labels, indices and arities are right, and code cannot fall
// off its end. That values are of the kinds an instruction needs is checked as it runs.
void verify(const Executable& executable);

}  // namespace relay
