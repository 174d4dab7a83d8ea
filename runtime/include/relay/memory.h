// What one run adds to the memory that is alive, and its limit.
#pragma once

#include <cstdint>

namespace relay {

// While it exists, what its thread allocates (storage on any device, objects) is charged to it and what the thread frees
// is credited. A charge beyond the limit is Error(out_of_memory). Accounts nest: the newest counts.
class MemoryAccount {
 public:
  explicit MemoryAccount(int64_t limit);  // 0: no limit, nothing is counted
  ~MemoryAccount();
  MemoryAccount(const MemoryAccount&) = delete;

 private:
  friend void charge_memory(int64_t bytes);
  friend void credit_memory(int64_t bytes);
  MemoryAccount* outer_;
  int64_t limit_, used_ = 0;
};

void charge_memory(int64_t bytes);
void credit_memory(int64_t bytes);

}  // namespace relay
