#include "memory_check.h"

#include <algorithm>
#include <cstring>

#include "relay/error.h"

namespace relay {
namespace {

// What results are full of before the two runs (the first makes nan of every floating-point type), and what workspace and stack are:
// something else, so that what is copied from there is not taken for a result that neither run has written.
constexpr int fills[2] = {0xff, 0x41}, inner_fills[2] = {0xfd, 0x43};

int32_t on_this_thread(relay_kernel_context* context, relay_parallel_body body, void* env, int64_t n, int64_t grain) {
  int64_t grains = (n + grain - 1) / grain, workers = std::max<int64_t>(context->num_workers, 1);
  for (int64_t w = 0; w < workers; ++w) {
    int64_t begin = grains * w / workers * grain, end = std::min(n, grains * (w + 1) / workers * grain);
    if (begin >= end) continue;
    if (int32_t result = body(context, env, begin, end, w)) return result;
  }
  return 0;
}

}  // namespace

std::byte* MemoryChecker::room(size_t number, int64_t bytes, uint32_t alignment, bool at_end) {
  if (areas_.size() <= number) areas_.resize(number + 1);
  if (!areas_[number].fits(bytes)) areas_[number] = Fenced(bytes);
  return areas_[number].place(bytes, alignment, at_end);
}

int32_t MemoryChecker::call(const Kernel& kernel, relay_kernel code, const relay_kernel_context& given,
                            const std::vector<CheckedBuffer>& buffers, uint32_t inputs, int64_t workspace_bytes,
                            const int64_t* dims) {
  auto n = static_cast<uint32_t>(buffers.size());
  // An output in an input's memory is that input's copy.
  std::vector<uint32_t> home(n);
  for (uint32_t i = 0; i < n; ++i) {
    home[i] = i;
    for (uint32_t j = 0; i >= inputs && j < inputs; ++j)
      if (buffers[j].data == buffers[i].data && buffers[j].bytes == buffers[i].bytes && buffers[i].bytes > 0) home[i] = j;
  }
  std::vector<std::vector<std::byte>> first(n - inputs);
  std::vector<void*> copies(n);
  int32_t result = 0;
  for (int pass = 0; pass < 2; ++pass) {
    bool at_end = pass == 0;
    for (uint32_t i = 0; i < n; ++i) {
      const CheckedBuffer& buffer = buffers[i];
      auto bytes = static_cast<size_t>(buffer.bytes);
      if (home[i] != i) {
        copies[i] = copies[home[i]];
        continue;
      }
      copies[i] = room(i, buffer.bytes, buffer.alignment, at_end);
      if (i < inputs)
        std::memcpy(copies[i], buffer.data, bytes);
      else
        std::memset(copies[i], fills[pass], bytes);
    }
    relay_kernel_context context = given;
    context.parallel_for = on_this_thread;
    if (given.workspace != nullptr) {
      context.workspace = room(n, workspace_bytes, 64, at_end);
      std::memset(context.workspace, inner_fills[pass], static_cast<size_t>(workspace_bytes));
    }
    fill_stack(inner_fills[pass]);
    const void* touched = touched_by([&] { result = code(&context, copies.data(), dims); });
    if (touched != nullptr) {
      auto* where = static_cast<const std::byte*>(touched);
      for (uint32_t i = 0; i <= n; ++i) {
        if (i < areas_.size() && where >= areas_[i].first() && where < areas_[i].end()) {
          bool is_workspace = i == n;
          int64_t bytes = is_workspace ? workspace_bytes : buffers[i].bytes;
          auto* start = static_cast<std::byte*>(is_workspace ? context.workspace : copies[i]);
          int64_t at = where - start;
          std::string what = is_workspace ? "its workspace" : format(i < inputs ? "input %u" : "output %u", i < inputs ? i : i - inputs);
          fail(Status::failed, "kernel %s touches memory outside of %s: byte %lld of %lld", kernel.name.c_str(), what.c_str(),
               static_cast<long long>(at), static_cast<long long>(bytes));
        }
      }
      fail(Status::failed, "kernel %s touches memory that is none of its operands (at %p)", kernel.name.c_str(), touched);
    }
    if (result != 0) return result;
    for (uint32_t i = inputs; i < n; ++i) {
      auto* made = static_cast<std::byte*>(copies[i]);
      auto bytes = static_cast<size_t>(buffers[i].bytes);
      std::vector<std::byte>& kept = first[i - inputs];
      if (pass == 0) {
        kept.assign(made, made + bytes);
        continue;
      }
      // Of elements smaller than a byte the last byte may have bits that are nobody's.
      size_t whole = bits(kernel.operands[i].dtype) < 8 && bytes > 0 ? bytes - 1 : bytes;
      for (size_t b = 0; b < whole; ++b)
        if (kept[b] != made[b] && !(kept[b] == std::byte(fills[0]) && made[b] == std::byte(fills[1])))
          fail(Status::failed, "kernel %s makes output %u of what nobody has written, or of where its operands lie: byte %lld of %lld",
               kernel.name.c_str(), i - inputs, static_cast<long long>(b), static_cast<long long>(bytes));
    }
  }
  for (uint32_t i = inputs; i < n; ++i)
    std::memcpy(buffers[i].data, first[i - inputs].data(), static_cast<size_t>(buffers[i].bytes));
  return result;
}

}  // namespace relay
