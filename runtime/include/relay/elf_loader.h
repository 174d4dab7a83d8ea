// Native code from ELF relocatable objects: parse, place, relocate, make executable.
//
// Kernels are small position-independent objects for x86-64 or AArch64 (small code model). They may call memcpy,
// memmove and memset, and nothing else from outside; native code of functions (native.h) also what the runtime gives it.
// The loader checks every offset, so a damaged object is an error;
// the code itself is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace relay {

enum class Machine : uint16_t { x86_64 = 62, aarch64 = 183 };  // ELF's own numbers

Machine host_machine();

class NativeObject {
 public:
  // Throws Error(invalid_file) for a damaged or unsupported object, naming `what`; Error(incompatible) for another
  // machine's. The bytes are not needed afterwards. `outside` gives the addresses of further functions that may be
  // called, by name.
  NativeObject(const std::byte* bytes, size_t size, const std::string& what, Machine machine = host_machine(),
               void* (*outside)(const char* name) = nullptr);
  ~NativeObject();
  NativeObject(const NativeObject&) = delete;

  // The address of a defined global symbol, or null.
  void* find(const std::string& symbol) const;

 private:
  friend class ObjectReader;
  std::byte* memory_ = nullptr;
  size_t size_ = 0;
  std::unordered_map<std::string, void*> symbols_;
};

}  // namespace relay
