#include "relay/device.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <unordered_map>

namespace relay {
namespace {

// Memory of the host on large pages, where the system has them: what is read from end to end (a cache of keys, a layer's
// activations) is otherwise bound by address translation, and fresh memory by one fault for every small page.
//
// Blocks are cut from regions of many large pages, the first free stretch that is long enough; neighbours that are free join, and
// a region that is all free goes back to the system if another one is.
//
// They begin at different places in a page. A processor takes a read for one of what was just written while the last twelve bits of
// the addresses are the same, so that a result that lies in its page as the operand does (whose memory begins with a page, as all
// that is large does) makes kernels that work on several rows at once wait: a softmax of rows of 1,008 elements for a quarter of its time.
class Regions {
 public:
  void* allocate(size_t bytes) {
    bytes = taken(bytes);
    std::lock_guard guard(mutex_);
    for (auto& [base, region] : regions_)
      for (auto& [at, size] : region.free)
        if (size >= bytes) return take(base, region, at, size, bytes);
    size_t size = rounded(first + bytes, bytes > region_bytes / 2 ? large_page : region_bytes);
    std::byte* base = map(size);
    if (base == nullptr) return nullptr;
    Region& region = regions_[base];
    region.bytes = size;
    return take(base, region, first, size - first, bytes);
  }

  void deallocate(void* data, size_t bytes) {
    bytes = taken(bytes);
    std::lock_guard guard(mutex_);
    auto* where = static_cast<std::byte*>(data);
    auto entry = std::prev(regions_.upper_bound(where));
    Region& region = entry->second;
    auto at = static_cast<size_t>(where - entry->first);
    auto after = region.free.lower_bound(at);
    if (after != region.free.end() && at + bytes == after->first) {
      bytes += after->second;
      after = region.free.erase(after);
    }
    if (after != region.free.begin() && std::prev(after)->first + std::prev(after)->second == at)
      bytes = std::prev(after)->second += bytes;
    else
      region.free.emplace_hint(after, at, bytes);
    if (bytes != region.bytes - first) return;
    if (spare_ == nullptr && region.bytes == region_bytes) {
      spare_ = entry->first;
      return;
    }
    munmap(entry->first, region.bytes);
    regions_.erase(entry);
  }

  std::mutex& mutex() { return mutex_; }

 private:
  static constexpr size_t page = 4096, large_page = size_t{2} << 20, region_bytes = size_t{32} << 20;
  // Where a region's first block begins, and how much further in its page each one than the one before: an odd number of lines, so that
  // all places in a page have their turn. Reads run ahead of writes by a few lines, so that results suffer most one to four lines behind an
  // operand, or behind another of its rows, which begin at all multiples of half a page, a quarter or an eighth of one: the first five
  // blocks are at no such place, nor are two of which one is up to five behind the other.
  static constexpr size_t first = 21 * storage_alignment;

  struct Region {
    size_t bytes = 0;
    std::map<size_t, size_t> free;  // where from the base, from `first` on, and how long
  };

  static size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
  // What a block takes: the next one begins elsewhere in its page.
  static size_t taken(size_t bytes) { return rounded(bytes, page) + first; }

  void* take(std::byte* base, Region& region, size_t at, size_t size, size_t bytes) {
    region.free.erase(at);
    if (size > bytes) region.free.emplace(at + bytes, size - bytes);
    if (base == spare_) spare_ = nullptr;
    return base + at;
  }

  static std::byte* map(size_t bytes) {
    size_t room = bytes + large_page;
    void* data = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    auto start = reinterpret_cast<uintptr_t>(data), aligned = rounded(start, large_page);
    if (aligned != start) munmap(data, aligned - start);
    munmap(reinterpret_cast<void*>(aligned + bytes), start + room - aligned - bytes);
    auto* base = reinterpret_cast<std::byte*>(aligned);
    madvise(base, bytes, MADV_HUGEPAGE);
    return base;
  }

  std::mutex mutex_;
  std::map<std::byte*, Region> regions_;
  std::byte* spare_ = nullptr;  // a region that is all free
};

class Host final : public Device {
 public:
  Host() {
    static Regions* for_fork;
    for_fork = &regions_;
    // A child starts with one thread: no other may hold the lock at the moment of the fork.
    pthread_atfork([] { for_fork->mutex().lock(); }, [] { for_fork->mutex().unlock(); }, [] { for_fork->mutex().unlock(); });
  }
  const char* name() const override { return "cpu"; }
  void* allocate(int64_t bytes) override {
    auto size = static_cast<size_t>(bytes);
    if (bytes >= least_in_regions) return regions_.allocate(size);
    void* data = nullptr;
    return posix_memalign(&data, storage_alignment, size) == 0 ? data : nullptr;
  }
  void deallocate(void* data, int64_t bytes) override {
    if (bytes >= least_in_regions)
      regions_.deallocate(data, static_cast<size_t>(bytes));
    else
      std::free(data);
  }
  void open(void*, int64_t) override {}
  void close(void*, int64_t) override {}

 private:
  static constexpr int64_t least_in_regions = int64_t{256} << 10;
  Regions regions_;
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
