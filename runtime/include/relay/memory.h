// What one run adds to the memory that is alive, and its limit.
#pragma once

#include <cstdint>

namespace relay {

struct Storage;

// Where storage of the host comes from instead of the pool.
class StorageSource {
 public:
  virtual Storage* make(int64_t bytes) = 0;

 protected:
  ~StorageSource() = default;
};

// While it exists, what its thread allocates (storage on any device, objects) is charged to it and what the thread frees
// is credited. A charge beyond the limit is Error(out_of_memory). Accounts nest: the newest counts.
class MemoryAccount {
 public:
  explicit MemoryAccount(int64_t limit);  // 0: no limit, nothing is counted
  explicit MemoryAccount(StorageSource& source);  // within the limit of the account before, storage from another source
  ~MemoryAccount();
  MemoryAccount(const MemoryAccount&) = delete;

 private:
  friend void charge_memory(int64_t bytes);
  friend void credit_memory(int64_t bytes);
  friend Storage* new_storage(int64_t bytes, int64_t alignment, int32_t device);
  MemoryAccount* outer_;
  StorageSource* source_ = nullptr;
  int64_t limit_, used_ = 0;
};

void charge_memory(int64_t bytes);
void credit_memory(int64_t bytes);

}  // namespace relay
