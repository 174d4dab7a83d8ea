#include "run.h"

#include "relay/processors.h"

namespace relay {

Run::Run(const Executable& executable, uint32_t function, const RunOptions& options)
    : exe_(executable), options_(options), stack_(executable.stack_limit()) {
  top = highest = stack_.begin();
  limit = stack_.end() - executable.scratch_bytes;
  functions = executable.native.data();
  if (options.limits.depth > 0)
    most_depth = static_cast<uint32_t>(std::min<int64_t>(options.limits.depth, UINT32_MAX) - 1);
  if (options.limits.nanoseconds > 0 && __builtin_add_overflow(now_ns(), options.limits.nanoseconds, &deadline_))
    deadline_ = INT64_MAX;
  if (options.brief && deadline_ == 0) budget = allowance_ = most_allowance;
  context_.parallel_for = parallel_for;
  context_.workspace = nullptr;
  context_.num_workers = options.threads > 0 ? std::min(options.threads, max_threads) : available_threads();
  context_.stream = nullptr;
  context_.runtime = this;
  context_.turn = 0;
  context_.flush_subnormals = options.flush_subnormals || executable.flushes_subnormals.load(std::memory_order_relaxed);
  if (executable.checks_memory.load(std::memory_order_relaxed)) checker_ = std::make_unique<MemoryChecker>();
  if (executable.profiling.load(std::memory_order_relaxed)) {
    recorder_ = std::make_unique<Recorder>(function, context_.num_workers, now_ns());
    context_.parallel_for = [](relay_kernel_context* context, relay_parallel_body body, void* env, int64_t n,
                               int64_t grain) {
      auto* run = static_cast<Run*>(context->runtime);
      return Recorder::parallel_for(run->recorder_.get(), context, body, env, n, grain);
    };
  }
}

Value* Run::replace(const Function* function, Value* gathered, Value** r, const int32_t** pc) {
  Frame saved = *frame_of(*r);
  pop(*r);
  // Gathered values lie above the old frame and may overlap the new one: they are moved down in order, after the check.
  size_t bytes = sizeof(Frame) + function->registers * sizeof(Value);
  if (top > limit || static_cast<size_t>(limit - top) < bytes) {
    for (uint32_t i = 0; i < function->arity; ++i) release(gathered[i]);
    *r = saved.registers;
    *pc = saved.resume == nullptr ? nullptr : saved.resume - 1;
    overflow(function, saved.depth);
  }
  auto* frame = reinterpret_cast<Frame*>(top);
  *frame = saved;
  frame->function = function;
  auto* fresh = reinterpret_cast<Value*>(frame + 1);
  std::memmove(static_cast<void*>(fresh), gathered, function->arity * sizeof(Value));
  std::memset(static_cast<void*>(fresh + function->arity), 0, (function->registers - function->arity) * sizeof(Value));
  top += bytes;
  if (top > highest) highest = top;
  return fresh;
}

void Run::overflow(const Function* function, uint32_t depth) {
  if (depth > most_depth)
    fail(Status::recursion_limit, "recursion limit: %lld calls are open at the call of %s; a higher limit can be set",
         static_cast<long long>(depth), function->name.c_str());
  fail(Status::recursion_limit,
       "recursion limit: the control stack of %lld bytes is full at the call of %s; a higher limit can be set",
       static_cast<long long>(stack_.end() - stack_.begin()), function->name.c_str());
}

void Run::unwind(Value* r, const int32_t* pc) {
  Status status = Status::failed;
  std::string message;
  try {
    throw;
  } catch (const Error& error) {
    status = error.status;
    message = error.what();
  } catch (const std::bad_alloc&) {
    status = Status::out_of_memory;
    message = "out of memory";
  }
  unwind(r, pc, status, std::move(message));
}

void Run::unwind(Value* r, const int32_t* pc, Status status, std::string message) {
  if (status != Status::interrupted && r != nullptr) {
    constexpr size_t most = 6;
    size_t shown = 0;
    for (const Place& place : open_calls(place_of(r, pc))) {
      if (shown == most) {
        message += "\n  called from further functions";
        break;
      }
      message += format(shown++ == 0 ? "\n  in %s" : "\n  called from %s", place.function->name.c_str());
      if (const Span* span = place.function->span_at(place.word)) message += " at " + span->text;
    }
  }
  while (r != nullptr) {
    Value* below = frame_of(r)->registers;
    pop(r);
    r = below;
  }
  refs_.collect();
  throw Error(status, message);
}

void Run::poll_now() {
  constexpr int64_t aim = 2'000'000, ask_every = 10'000'000;  // ns
  int64_t now = now_ns(), passed = now - last_poll_;
  last_poll_ = now;
  if (first_poll_) {
    first_poll_ = false;
    last_asked_ = now;
  } else if (passed < aim / 2) {
    allowance_ = std::min<int64_t>(allowance_ * (passed < aim / 16 ? 8 : 2), most_allowance);
  } else if (passed > aim * 2) {
    allowance_ = std::max<int64_t>(1, allowance_ * aim / passed);
  }
  budget = allowance_;
  if (deadline_ != 0 && now >= deadline_)
    fail(Status::time_limit, "time limit: the run took longer than %.3g s; a higher limit can be set",
         static_cast<double>(options_.limits.nanoseconds) * 1e-9);
  bool stop = options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
  if (!stop && options_.poll != nullptr && now - last_asked_ >= ask_every) {
    stop = options_.poll(options_.poll_data);
    last_asked_ = now_ns();
  }
  if (stop) fail(Status::interrupted, "interrupted");
}

// Operands after the opcode: k, o, n, n buffers, m, m dims.
void Run::invoke_kernel(const int32_t* operands, Value* registers) {
  Kernel& kernel = *exe_.kernels[static_cast<size_t>(operands[0])];
  const int32_t* buffer_list = operands + 3;
  auto n = static_cast<uint32_t>(operands[2]);
  auto inputs = n - kernel.outputs;
  auto** buffers = reinterpret_cast<void**>(top);
  auto* dims = reinterpret_cast<int64_t*>(buffers + n);
  uint32_t devices = 0;
  const KernelOperand* operand = kernel.operands.data();
  for (uint32_t i = 0; i < n; ++i, ++operand) {
    Value& v = registers[buffer_list[i]];
    Tensor* tensor = as_tensor(v);
    if (tensor != nullptr && tensor->dtype == operand->dtype && (tensor->rank == 0) == (operand->rank == 0) &&
        tensor->storage->device == host_device && !(i >= inputs && tensor->storage->read_only) &&
        !(reinterpret_cast<uintptr_t>(tensor->data()) & (operand->alignment - 1u))) [[likely]] {
      buffers[i] = tensor->data();
      devices |= 1u << host_device;
    } else if (v.is_scalar(operand->dtype) && operand->rank == 0) {
      buffers[i] = &v.bits;
    } else {
      buffers[i] = odd_buffer(kernel, i, v, &devices);
    }
  }
  const int32_t* dim_list = buffer_list + n + 1;
  read_dims(registers, dim_list, dim_list[-1], dims);
  Workspace workspace;
  if (operands[1] >= 0) {
    workspace = workspace_in(registers[operands[1]]);
    if (workspace.storage == nullptr)
      fail(Status::failed, "kernel %s: its workspace must be a storage or a tensor that may be written and is %s", kernel.name.c_str(),
           describe(registers[operands[1]]).c_str());
    if (workspace.storage->device != host_device) devices |= 1u << workspace.storage->device;
  }
  context_.workspace = workspace.data;
  relay_kernel code = kernel.entry.load(std::memory_order_acquire);
  // Nothing that all threads share is written for the others: its line would go from processor to processor at every call.
  if (kernel.alternates.load(std::memory_order_relaxed)) {
    uint32_t turn = kernel.turn.load(std::memory_order_relaxed);
    context_.turn = turn;
    kernel.turn.store(turn ^ 1, std::memory_order_relaxed);
  }
  int64_t start = 0;
  if (recorder_ != nullptr) [[unlikely]] {
    recorder_->enter(operands[0]);
    start = now_ns();
  }
  int32_t result;
  if (devices <= 1u << host_device) [[likely]]
    result = checker_ == nullptr ? code(&context_, buffers, dims)
                                 : check_kernel(kernel, code, registers, buffer_list, workspace, buffers, dims);
  else
    result = call_on_device(kernel, code, &context_, devices, registers, buffer_list, workspace, buffers, dims);
  if (recorder_ != nullptr) [[unlikely]] {
    int64_t end = now_ns();
    kernel.calls.fetch_add(1, std::memory_order_relaxed);
    kernel.nanoseconds.fetch_add(static_cast<uint64_t>(end - start), std::memory_order_relaxed);
    recorder_->leave(start, end, dims, kernel.dims);
  }
  // relay.loop.errors has the codes.
  if (result == 1) [[unlikely]]
    fail(Status::failed, "kernel %s: an index is outside of the tensor that it reads", kernel.name.c_str());
  if (result == Kernel::not_there) [[unlikely]]
    fail(Status::failed, "kernel %s is not compiled yet: it is when many requests are asked for (run_batch)",
         kernel.name.c_str());
  if (result != 0) [[unlikely]]
    fail(Status::failed, "kernel %s failed with code %d", kernel.name.c_str(), result);
}

int32_t Run::check_kernel(const Kernel& kernel, relay_kernel code, const Value* registers, const int32_t* buffer_list,
                          const Workspace& workspace, void** buffers, const int64_t* dims) {
  std::vector<CheckedBuffer> checked;
  for (size_t i = 0; i < kernel.operands.size(); ++i) {
    const KernelOperand& operand = kernel.operands[i];
    Tensor* tensor = as_tensor(registers[buffer_list[i]]);
    int64_t bytes = tensor != nullptr ? tensor->bytes() : scalar_bytes(operand.dtype);
    checked.push_back({buffers[i], bytes, std::max<uint32_t>(operand.alignment, 1)});
  }
  auto inputs = static_cast<uint32_t>(kernel.operands.size()) - kernel.outputs;
  return checker_->call(kernel, code, context_, checked, inputs, workspace.bytes, dims);
}

Place place_of(const Value* registers, const int32_t* pc) {
  const Frame* frame = Run::frame_of(registers);
  return {frame->function, static_cast<uint32_t>(pc - frame->function->code), registers, frame->depth};
}

std::vector<Place> open_calls(const Place& newest) {
  std::vector<Place> calls{newest};
  for (const Value* r = newest.registers;;) {
    const Frame* frame = Run::frame_of(r);
    if (frame->resume == nullptr) return calls;
    calls.push_back(place_of(frame->registers, frame->resume - 1));  // inside the call
    r = frame->registers;
  }
}

void Run::observe_after(Value* registers, const int32_t* pc) { options_.observer->after(place_of(registers, pc)); }

}  // namespace relay
