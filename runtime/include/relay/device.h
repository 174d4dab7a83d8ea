// Devices and their memory. Every storage names a device; device 0 is the host.
//
// Device 1 is a fake: ordinary memory that nobody can touch (PROT_NONE) except while one of its own copies or kernels
// runs. A host access that forgot to copy faults at once, in tests, without any hardware.
#pragma once

#include <cstddef>
#include <cstdint>

namespace relay {

inline constexpr int32_t host_device = 0;
inline constexpr int32_t fake_device = 1;
inline constexpr int32_t device_count = 2;
inline constexpr int64_t storage_alignment = 64;

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;
  // Memory of `bytes` (> 0) aligned to 64, or null.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void deallocate(void* data, int64_t bytes) = 0;
  // Between these two the process may touch the block. Calls nest and may come from several threads.
  virtual void open(void* block, int64_t bytes) = 0;
  virtual void close(void* block, int64_t bytes) = 0;
};

// The device of an index below device_count.
Device& device(int32_t index);

// The index of "cpu" or "fake", or -1.
int32_t device_from_name(const char* name);

// Copies bytes between two blocks on any two devices. `block` and `block_bytes` bound what `data` lies in.
struct DeviceSpan {
  int32_t device;
  void* block;
  int64_t block_bytes;
  std::byte* data;
};
void device_copy(const DeviceSpan& to, const DeviceSpan& from, int64_t bytes);

}  // namespace relay
