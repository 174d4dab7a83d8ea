// The machine on programs built here, and on random ones: whatever passes the verifier runs to a result or a clean
// error.
#include "relay/vm.h"

#include <cstring>
#include <algorithm>
#include <random>
#include <thread>

#include "image.h"
#include "relay/routine.h"
#include "relay/cycles.h"
#include "relay/device.h"
#include "relay/object.h"
#include "test.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

using namespace relay;

static int64_t alive() {
  int64_t total = 0;
  for (int i = 0; i < object_type_count; ++i) total += live_objects(static_cast<ObjectType>(i));
  return total;
}

static Value run_main(const Executable& exe, std::vector<Value> arguments, RunOptions options = {}) {
  return run(exe, 0, arguments.data(), static_cast<uint32_t>(arguments.size()), options);
}

using enum Opcode;

TEST(a_loop_adds_up) {
  ImageBuilder image;
  // r1 = 0; r2 = 1; r3 = 0; top: switch(min(r0, 1)) -> [end, body]; body: r1 += r0; r0 -= 1; goto top; end: ret r1
  image.functions = {{1,
                      4,
                      {number(LoadConsti),
                       1,
                       6,
                       0,
                       0,
                       number(LoadConsti),
                       2,
                       6,
                       1,
                       0,  // 0, 5
                       number(IMin),
                       3,
                       0,
                       2,
                       number(Switch),
                       3,
                       2,
                       29,
                       19,  // 10, 14
                       number(IAdd),
                       1,
                       1,
                       0,
                       number(ISub),
                       0,
                       0,
                       2,
                       number(Goto),
                       10,  // 19, 23, 27
                       number(Ret),
                       1}}};  // 29
  auto exe = image.load();
  Value sum = run_main(*exe, {Value::int64(1000)});
  CHECK(sum.is_scalar(DType::int64_) && sum.bits == 500500);
}

TEST(runs_stop_when_they_are_cancelled) {
  ImageBuilder image;
  image.functions = {{0, 0, {number(Goto), 0}}};
  auto exe = image.load();
  std::atomic<bool> cancel{true};
  RunOptions options;
  options.cancel = &cancel;
  THROWS(interrupted, run_main(*exe, {}, options));
  RunOptions asks;
  int asked = 0;
  asks.poll = [](void* data) { return ++*static_cast<int*>(data) == 3; };
  asks.poll_data = &asked;
  THROWS(interrupted, run_main(*exe, {}, asks));
  CHECK(asked == 3);
}

TEST(recursion_has_a_limit) {
  ImageBuilder image;
  image.functions = {{1, 3, {number(AllocADT), 1, -1, 1, 0, number(Invoke), 2, 0, 1, 1, 0, number(Ret), 2}}};
  auto exe = image.load();
  exe->set_stack_limit(1 << 20);
  int64_t before = alive();
  THROWS(recursion_limit, run_main(*exe, {Value::int64(1)}));
  CHECK(alive() == before);
}

TEST(arguments_are_taken_over_even_by_failing_runs) {
  ImageBuilder image;
  image.functions = {{1, 1, {number(Fatal), 3}}};
  auto exe = image.load();
  int64_t before = alive();
  THROWS(failed, run_main(*exe, {Value::of(new_host_tensor(DType::int8_, 0, nullptr))}));
  THROWS(invalid_argument, run_main(*exe, {Value::of(new_host_tensor(DType::int8_, 0, nullptr)), Value::int64(1)}));
  CHECK(alive() == before);
}

TEST(threads_share_an_executable_and_values) {
  ImageBuilder image;
  // main(cell): write(cell, (cell's content, constant 0, a closure over the cell)); the result is that tuple.
  image.functions = {{1,
                      5,
                      {number(RefRead),
                       1,
                       0,
                       number(LoadConst),
                       2,
                       0,
                       number(AllocClosure),
                       3,
                       0,
                       1,
                       0,
                       number(GetField),
                       1,
                       1,
                       0,
                       number(AllocADT),
                       4,
                       -1,
                       3,
                       1,
                       2,
                       3,
                       number(RefWrite),
                       0,
                       4,
                       number(Ret),
                       4}}};
  int64_t before = alive();
  {
    auto exe = image.load();
    RefList refs;
    Adt* first = new_adt(tuple_tag, 1);
    first->fields()[0] = Value::int64(5);
    Value cell = Value::of(refs.make(Value::of(first)));
    share(cell);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          {
            MutatorScope scope;
            retain(cell);
          }
          Value result = run_main(*exe, {cell});
          CHECK(as_adt(result)->fields()[0].bits == 5 && as_tensor(as_adt(result)->fields()[1])->shape()[0] == 3);
          MutatorScope scope;
          release(result);
        }
        maybe_collect_shared();
      });
    for (auto& thread : threads) thread.join();
    release(cell);
  }
  collect_shared();
  CHECK(alive() == before);
}

// Routines that do what they must not, on a tensor of five float32.
static Value faulty(const Value* arguments, int64_t read, int64_t write, bool fill) {
  Tensor* x = as_tensor(arguments[0]);
  Tensor* out = new_host_tensor(x->dtype, x->rank, x->shape());
  volatile auto* from = reinterpret_cast<float*>(x->data());
  volatile auto* to = reinterpret_cast<float*>(out->data());
  for (int i = fill ? 0 : 4; i < 5; ++i) to[i] = fill ? 1.0f : to[i] * 2;
  to[write] = from[read];
  return Value::of(out);
}
constexpr Routine faulty_routines[] = {
    {"right", 1, [](const Value* a, relay_kernel_context*) { return faulty(a, 4, 0, true); }, false},
    {"reads behind", 1, [](const Value* a, relay_kernel_context*) { return faulty(a, 5, 0, true); }, false},
    {"reads before", 1, [](const Value* a, relay_kernel_context*) { return faulty(a, -1, 0, true); }, false},
    {"writes behind", 1, [](const Value* a, relay_kernel_context*) { return faulty(a, 0, 5, true); }, false},
    {"writes before", 1, [](const Value* a, relay_kernel_context*) { return faulty(a, 0, -1, true); }, false},
    {"reads what is not written", 1, [](const Value* a, relay_kernel_context*) { return faulty(a, 0, 0, false); }, false},
};

TEST(routines_that_touch_what_is_not_theirs) {
#ifdef __SANITIZE_ADDRESS__
  __lsan::ScopedDisabler what_they_held_is_lost;
#endif
  ImageBuilder image;
  image.functions = {{1, 2, {number(InvokeRoutine), 1, 0, 1, 0, number(Ret), 1}}};
  image.routines = {"unique"};
  auto exe = image.load();
  exe->checks_memory = true;
  int64_t five = 5;
  for (const Routine& routine : faulty_routines) {
    exe->routines[0] = &routine;
    Tensor* x = new_host_tensor(DType::float32_, 1, &five);
    for (int i = 0; i < 5; ++i) reinterpret_cast<float*>(x->data())[i] = static_cast<float>(i);
    bool right = &routine == &faulty_routines[0];
    try {
      Value result = run_main(*exe, {Value::of(x)});
      CHECK(right && *reinterpret_cast<float*>(as_tensor(result)->data()) == 4.0f);
      release(result);
    } catch (const Error& error) {
      std::string said = error.what(), name = routine.name;
      CHECK(!right && said.find("routine " + name) != std::string::npos);
      CHECK(name[0] != 'r' || name.find("not") != std::string::npos || said.find("outside of argument 0") != std::string::npos);
      CHECK(name[0] != 'w' || said.find("outside of memory that it made") != std::string::npos);
    }
  }
}

// --- random programs ---------------------------------------------------------------------------------------------

namespace {

class Generator {
 public:
  explicit Generator(uint32_t seed) : dice_(seed) {}

  ImageBuilder image() {
    ImageBuilder out;
    out.routines = {"unique", "sort", "topk"};
    int count = pick(1, 3);
    for (int f = 0; f < count; ++f) out.functions.push_back({pick(0, 3), 6, {}});
    functions_ = &out.functions;
    for (Code& f : out.functions) code(f);
    return out;
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(dice_); }

  void code(Code& f) {
    std::vector<int32_t> starts;
    std::vector<size_t> labels;
    auto& words = f.words;
    for (int n = pick(3, 25); n > 0; --n) {
      // Half of them make values, so that programs get further before something does not fit.
      constexpr Opcode makers[] = {AllocADT, AllocClosure, RefNew, LoadConst, LoadConsti, Move, AllocScalar, RefWrite};
      int op = pick(0, 1) ? number(makers[pick(0, 7)]) : pick(0, opcode_count - 1);
      if (op == number(InvokeKernel) || op == number(Fatal)) continue;
      starts.push_back(static_cast<int32_t>(words.size()));
      words.push_back(op);
      int used = 0;
      for (const char* letter = opcode_table[op].operands; *letter; ++letter) switch (*letter) {
          case 'd':
          case 'r': words.push_back(pick(0, f.registers - 1)); break;
          case 'o': words.push_back(pick(-1, f.registers - 1)); break;
          case 'i': words.push_back(pick(0, 3)); break;
          case 'I':
            if (op == number(AllocStorage) || op == number(KeepStorage))
              words.push_back(1 << pick(0, 12));  // an alignment
            else
              words.push_back(pick(-4, 40));
            words.push_back(words.back() >= 0 ? 0 : -1);
            break;
          case 't': words.push_back(pick(0, 2) ? 6 : pick(0, dtype_count - 1)); break;
          case 'v': words.push_back(pick(0, device_count - 1)); break;
          case 'f': words.push_back(used = pick(0, static_cast<int>(functions_->size()) - 1)); break;
          case 'u': words.push_back(used = pick(0, 2)); break;
          case 'c': words.push_back(0); break;
          case 'm': words.push_back(3); break;
          case 'l':
            labels.push_back(words.size());
            words.push_back(0);
            break;
          case 'L':
            words.push_back(2);
            labels.push_back(words.size());
            labels.push_back(words.size() + 1);
            words.insert(words.end(), 2, 0);
            break;
          case 'R': {
            int size = pick(0, 3);
            bool arguments = letter == std::strchr(opcode_table[op].operands, 'R');
            if (arguments && (op == number(Invoke) || op == number(TailInvoke))) size = (*functions_)[static_cast<size_t>(used)].arity;
            if (op == number(AllocClosure)) size = pick(0, (*functions_)[static_cast<size_t>(used)].arity);
            if (op == number(InvokeRoutine)) size = used == 0 ? 1 : used == 1 ? 3 : 5;
            words.push_back(size);
            for (int i = 0; i < size; ++i) words.push_back(pick(0, f.registers - 1));
            break;
          }
          default: break;
        }
    }
    starts.push_back(static_cast<int32_t>(words.size()));
    words.push_back(number(Ret));
    words.push_back(pick(0, f.registers - 1));
    for (size_t at : labels) words[at] = starts[static_cast<size_t>(pick(0, static_cast<int>(starts.size()) - 1))];
  }

  std::mt19937 dice_;
  std::vector<Code>* functions_ = nullptr;
};

}  // namespace

TEST(random_programs_end_cleanly) {
  int64_t before = alive();
  int finished = 0, failed = 0, stopped = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    ImageBuilder image = Generator(seed).image();
    auto exe = image.load();
    exe->set_stack_limit(1 << 16);
    std::vector<Value> arguments;
    for (int32_t i = 0; i < image.functions[0].arity; ++i) {
      int64_t shape[] = {2};
      Tensor* tensor = new_host_tensor(DType::int64_, 1, shape);
      reinterpret_cast<int64_t*>(tensor->data())[0] = 1;
      reinterpret_cast<int64_t*>(tensor->data())[1] = 2;
      arguments.push_back(i == 0 ? Value::of(tensor) : Value::int64(i));
      if (i != 0) release(static_cast<Object*>(tensor));
    }
    RunOptions options;
    int polls = 0;
    options.cancel = nullptr;
    options.poll = [](void* data) { return ++*static_cast<int*>(data) >= 1; };
    options.poll_data = &polls;
    try {
      release(run_main(*exe, arguments, options));
      ++finished;
    } catch (const Error& error) {
      (error.status == Status::interrupted ? stopped : failed)++;
    }
  }
  collect_shared();
  CHECK(alive() == before);
  std::printf("random programs: %d finished, %d failed, %d were stopped\n", finished, failed, stopped);
  CHECK(finished > 100 && failed > 100);
}

TEST(damaged_images_are_refused) {
  std::mt19937 dice(7);
  std::vector<unsigned char> good = Generator(1).image().bytes();
  for (int round = 0; round < 3000; ++round) {
    std::vector<unsigned char> bad = good;
    for (int i = 0; i < 3; ++i) bad[32 + dice() % (bad.size() - 32)] = static_cast<unsigned char>(dice());
    uint64_t sum = checksum(bad.data() + 32, bad.size() - 32, checksum(bad.data(), 24));
    std::memcpy(bad.data() + 24, &sum, 8);
    try {
      Executable::from_bytes(bad.data(), bad.size());
    } catch (const Error& error) {
      CHECK(error.status == Status::invalid_file || error.status == Status::incompatible);
    }
  }
}
