#include "run.h"

#include <time.h>

namespace relay {

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000 + time.tv_nsec;
}

void Run::overflow(const Function* function) {
  fail(Status::recursion_limit,
       "recursion limit: the control stack of %lld bytes is full at the call of %s; a higher limit can be set",
       static_cast<long long>(stack_.end() - stack_.begin()), function->name.c_str());
}

void Run::poll_now() {
  constexpr int64_t aim = 2'000'000, ask_every = 10'000'000;  // ns
  int64_t now = now_ns(), passed = now - last_poll_;
  last_poll_ = now;
  if (first_poll_) {
    first_poll_ = false;
    last_asked_ = now;
  } else if (passed < aim / 2) {
    allowance_ = std::min<int64_t>(allowance_ * 2, most_allowance);
  } else if (passed > aim * 2) {
    allowance_ = std::max<int64_t>(1, allowance_ * aim / passed);
  }
  budget_ = allowance_;
  bool stop = options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
  if (!stop && options_.poll != nullptr && now - last_asked_ >= ask_every) {
    stop = options_.poll(options_.poll_data);
    last_asked_ = now_ns();
  }
  if (stop) fail(Status::interrupted, "interrupted");
}

std::string Run::where(const Value* registers, const int32_t* pc) const {
  constexpr int most = 6;
  std::string text;
  for (int depth = 0; registers != nullptr; ++depth) {
    const Frame* frame = reinterpret_cast<const Frame*>(registers) - 1;
    if (depth == most) return text + "\n  called from further functions";
    const Function& function = *frame->function;
    text += format(depth == 0 ? "\n  in %s" : "\n  called from %s", function.name.c_str());
    auto at = static_cast<uint32_t>(pc - function.code);
    auto span = std::upper_bound(function.spans.begin(), function.spans.end(), at,
                                 [](uint32_t word, const Span& s) { return word < s.pc; });
    if (span != function.spans.begin()) text += " at " + std::prev(span)->text;
    pc = frame->resume == nullptr ? nullptr : frame->resume - 1;  // inside the call
    registers = frame->registers;
  }
  return text;
}

}  // namespace relay
