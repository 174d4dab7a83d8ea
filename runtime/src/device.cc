#include "relay/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace relay {
namespace {

class Host final : public Device {
 public:
  const char* name() const override { return "cpu"; }
  void* allocate(int64_t bytes) override {
    size_t rounded = (static_cast<size_t>(bytes) + storage_alignment - 1) & ~static_cast<size_t>(storage_alignment - 1);
    return std::aligned_alloc(storage_alignment, rounded);
  }
  void deallocate(void* data, int64_t) override { std::free(data); }
  void open(void*, int64_t) override {}
  void close(void*, int64_t) override {}
};

class Fake final : public Device {
 public:
  const char* name() const override { return "fake"; }

  void* allocate(int64_t bytes) override {
    void* data = mmap(nullptr, pages(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return data == MAP_FAILED ? nullptr : data;
  }
  void deallocate(void* data, int64_t bytes) override { munmap(data, pages(bytes)); }

  void open(void* block, int64_t bytes) override {
    std::lock_guard guard(mutex_);
    if (users_[block]++ == 0) mprotect(block, pages(bytes), PROT_READ | PROT_WRITE);
  }
  void close(void* block, int64_t bytes) override {
    std::lock_guard guard(mutex_);
    auto entry = users_.find(block);
    if (--entry->second == 0) {
      mprotect(block, pages(bytes), PROT_NONE);
      users_.erase(entry);
    }
  }

 private:
  static size_t pages(int64_t bytes) {
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return (static_cast<size_t>(bytes) + page - 1) / page * page;
  }
  std::mutex mutex_;
  std::unordered_map<void*, int> users_;
};

}  // namespace

Device& device(int32_t index) {
  // Never destroyed: values may still be released while the process exits.
  static Host& host = *new Host;
  static Fake& fake = *new Fake;
  return index == host_device ? static_cast<Device&>(host) : fake;
}

int32_t device_from_name(const char* name) {
  for (int32_t i = 0; i < device_count; ++i)
    if (std::strcmp(name, device(i).name()) == 0) return i;
  return -1;
}

void device_copy(const DeviceSpan& to, const DeviceSpan& from, int64_t bytes) {
  if (bytes == 0) return;
  device(to.device).open(to.block, to.block_bytes);
  device(from.device).open(from.block, from.block_bytes);
  std::memcpy(to.data, from.data, static_cast<size_t>(bytes));
  device(from.device).close(from.block, from.block_bytes);
  device(to.device).close(to.block, to.block_bytes);
}

}  // namespace relay
