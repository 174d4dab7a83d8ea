#include "fences.h"

#include <signal.h>
#include <sys/mman.h>

#include <cstring>
#include <mutex>

#include "relay/error.h"

namespace relay {
namespace {

constexpr size_t page = 4096, guard = size_t{64} << 10;

thread_local FaultCatcher* catcher = nullptr;
struct sigaction before[2];
constexpr int signals[2] = {SIGSEGV, SIGBUS};

void on_fault(int number, siginfo_t* info, void* context) {
  if (catcher != nullptr) {
    catcher->touched = info->si_addr;
    siglongjmp(catcher->back, 1);
  }
  const struct sigaction& other = before[number == SIGSEGV ? 0 : 1];
  if (other.sa_flags & SA_SIGINFO) {
    other.sa_sigaction(number, info, context);
  } else if (other.sa_handler != SIG_DFL && other.sa_handler != SIG_IGN) {
    other.sa_handler(number);
  } else {
    sigaction(number, &other, nullptr);  // the access is made again, and ends the process
  }
}

void catch_faults() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction mine = {};
    mine.sa_sigaction = on_fault;
    mine.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 2; ++i) sigaction(signals[i], &mine, &before[i]);
  });
}

size_t in_pages(int64_t bytes) { return (static_cast<size_t>(bytes) + page - 1) / page * page; }

}  // namespace

Fenced::Fenced(int64_t bytes) : bytes_(in_pages(bytes)) {
  void* data = mmap(nullptr, bytes_ + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data != MAP_FAILED) base_ = static_cast<std::byte*>(data) + guard;
  if (base_ != nullptr && mprotect(base_, bytes_, PROT_READ | PROT_WRITE) == 0) return;
  if (base_ != nullptr) munmap(data, bytes_ + 2 * guard);
  fail(Status::out_of_memory, "out of memory: %lld bytes for checking what is touched", static_cast<long long>(bytes));
}

Fenced::~Fenced() {
  if (base_ != nullptr) munmap(base_ - guard, bytes_ + 2 * guard);
}

bool Fenced::fits(int64_t bytes) const { return base_ != nullptr && bytes_ == in_pages(bytes); }

std::byte* Fenced::place(int64_t bytes, uint32_t alignment, bool at_end) const {
  return at_end ? base_ + (bytes_ - static_cast<size_t>(bytes)) / alignment * alignment : base_;
}

const std::byte* Fenced::first() const { return base_ == nullptr ? nullptr : base_ - guard; }
const std::byte* Fenced::end() const { return base_ == nullptr ? nullptr : base_ + bytes_ + guard; }

FaultCatcher::FaultCatcher() {
  catch_faults();
  catcher = this;
}
FaultCatcher::~FaultCatcher() { catcher = nullptr; }

[[gnu::noinline]] void fill_stack(int value) {
  std::byte below[size_t{256} << 10];
  std::memset(below, value, sizeof below);
  asm volatile("" : : "r"(below) : "memory");
}

}  // namespace relay
