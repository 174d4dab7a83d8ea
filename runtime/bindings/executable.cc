// relay.executable's loaded programs: running them from Python.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <time.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "../src/entry_types.h"
#include "bindings.h"
#include "relay/vm.h"

namespace relay {
namespace {

const Entry& need_entry(const Executable& exe, std::string_view name) {
  const Entry* entry = exe.find_entry(name);
  if (entry != nullptr) return *entry;
  std::string known;
  for (const Entry& e : exe.entries) known += (known.empty() ? "" : ", ") + e.name;
  fail(Status::invalid_argument, "the executable has no entry '%.*s'; it has: %s", static_cast<int>(name.size()),
       name.data(), known.c_str());
}

// Python's lock during a run. Giving it up and taking it back costs more than a short run, and much more when many threads
// wait for it; so a run keeps it when the entry's runs are usually short, and gives it up if this one turns out long.
class PythonLock {
 public:
  explicit PythonLock(const Entry& entry)
      : usual_(entry.usual_nanoseconds), start_(entry.python_calls++ % timed_one_in == 0 ? now() : 0) {
    if (usual_.load(std::memory_order_relaxed) > short_run) give_up();
  }
  ~PythonLock() {
    if (start_ != 0) {
      // The mean of late, in which some long runs count; but one that the system interrupted is no sign of long runs.
      int64_t usual = usual_.load(std::memory_order_relaxed), took = std::min(now() - start_, usual * most_times_usual);
      usual_.store(usual + (took - usual) / 8, std::memory_order_relaxed);
    }
    if (given_up_ == nullptr) return;
    wait();
    PyEval_RestoreThread(given_up_);
  }
  PythonLock(const PythonLock&) = delete;
  int64_t usual() const { return usual_.load(std::memory_order_relaxed); }
  static constexpr int64_t brief_run = 100'000;

  // Polling: lets Python's signal handlers run (only the main thread ever sees a signal here). True: stop.
  static bool interrupted(void* self) {
    auto* lock = static_cast<PythonLock*>(self);
    if (lock->given_up_ != nullptr) {
      PyGILState_STATE state = PyGILState_Ensure();
      bool raised = PyErr_CheckSignals() != 0;
      PyGILState_Release(state);
      return raised;
    }
    if (PyErr_CheckSignals() != 0) return true;
    lock->give_up();
    return false;
  }

 private:
  static constexpr int64_t short_run = 5'000;
  static constexpr uint32_t timed_one_in = 8;  // reading the clock costs as much as the lock
  static constexpr int64_t most_times_usual = 16;
  static constexpr int64_t patience = 3'000;  // ns, of the order of what going to sleep and being woken costs
  static int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
  }
  // Who holds the lock mostly gives it up within a microsecond, where a run begins. A thread that sleeps until then has to
  // be woken, and the two switches cost as much as a run of ten microseconds: so look for a moment whether a thread has it.
  // (From Python 3.12 on nothing tells who has it.)
  static void wait() {
#if PY_VERSION_HEX < 0x030C0000
    if (_PyThreadState_UncheckedGet() == nullptr) return;
    for (int64_t end = now() + patience; _PyThreadState_UncheckedGet() != nullptr && now() < end;) {
    }
#endif
  }
  void give_up() { given_up_ = PyEval_SaveThread(); }

  std::atomic_ref<int64_t> usual_;
  int64_t start_;
  PyThreadState* given_up_ = nullptr;
};

// Arguments of one call: few fit in place.
class Arguments {
 public:
  explicit Arguments(size_t n) {
    if (n > few) many_.resize(n);
    data_ = n > few ? many_.data() : in_place_;
  }
  ~Arguments() {
    for (size_t i = 0; i < filled_; ++i) release(data_[i]);
  }
  Arguments(const Arguments&) = delete;
  void add(Value v) { data_[filled_++] = v; }
  Value* data() { return data_; }
  size_t size() const { return filled_; }

 private:
  static constexpr size_t few = 16;
  Value in_place_[few];
  std::vector<Value> many_;
  Value* data_;
  size_t filled_ = 0;
};

// An open call as an observer sees it, while it looks.
class PlaceView {
 public:
  PlaceView(const Place& place, std::shared_ptr<bool> open) : place_(place), open_(std::move(open)) {}
  const Place& get() const {
    if (!*open_) fail(Status::invalid_argument, "a place can only be looked at while its observer is called");
    return place_;
  }
  std::vector<PlaceView> open_calls() const {
    std::vector<PlaceView> calls;
    for (const Place& place : relay::open_calls(get())) calls.emplace_back(place, open_);
    return calls;
  }

 private:
  Place place_;
  std::shared_ptr<bool> open_;
};

// Calls the methods `before` and `after` of a Python object, those that it has.
class PythonObserver : public Observer {
 public:
  explicit PythonObserver(nb::handle object)
      : before_(nb::getattr(object, "before", nb::none())), after_(nb::getattr(object, "after", nb::none())) {}
  void before(const Place& place) override { call(before_, place); }
  void after(const Place& place) override { call(after_, place); }

 private:
  static void call(const nb::object& method, const Place& place) {
    if (method.is_none()) return;
    nb::gil_scoped_acquire held;
    auto open = std::make_shared<bool>(true);
    try {
      method(PlaceView(place, open));
    } catch (nb::python_error& error) {
      *open = false;
      error.restore();
      throw Error(Status::interrupted, "stopped by the observer");
    }
    *open = false;
  }

  nb::object before_, after_;
};

nb::object run_entry(const std::shared_ptr<Executable>& self, std::string_view name, nb::handle sequence,
                     int64_t threads, nb::handle donate, nb::handle limits, nb::handle observer,
                     bool interpret, bool tuples) {
  std::shared_ptr<Executable> exe = self;  // another thread may drop the Python object meanwhile
  const Entry& entry = need_entry(*exe, name);
  nb::object items = nb::steal(PySequence_Fast(sequence.ptr(), "arguments must be a sequence"));
  if (!items.is_valid()) throw nb::python_error();
  auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  if (count != entry.dtypes.size())
    fail(Status::invalid_argument, "%s takes %zu arguments and got %zu", entry.name.c_str(), entry.dtypes.size(),
         count);
  std::vector<bool> donated;
  if (PyTuple_Check(donate.ptr()) && PyTuple_GET_SIZE(donate.ptr()) > 0) {
    donated.resize(count);
    for (nb::handle index : nb::borrow<nb::tuple>(donate)) {
      auto i = nb::cast<int64_t>(index);
      if (i < 0 || static_cast<size_t>(i) >= count)
        fail(Status::invalid_argument, "%s has no argument %lld to donate", entry.name.c_str(),
             static_cast<long long>(i));
      donated[static_cast<size_t>(i)] = true;
    }
  }
  GiveBackLater later;
  Arguments arguments(count);
  PyObject** item = PySequence_Fast_ITEMS(items.ptr());
  for (size_t i = 0; i < count; ++i) {
    try {
      arguments.add(from_python(item[i], entry.dtypes[i]));
    } catch (const Error& error) {
      throw Error(error.status, format("argument %zu of %s: %s", i, entry.name.c_str(), error.what()));
    }
  }
  // What references and closures hold is not converted: it came from a run that had sizes of its own.
  const EntryTypes* types = entry.holds ? entry.types() : nullptr;
  if (types != nullptr) types->check(arguments.data(), count, exe->id);
  // Nothing is given up for arguments that are refused, and what is given twice is held by the other argument.
  for (size_t i = 0; i < donated.size(); ++i)
    if (PyTensor* tensor; donated[i] && nb::try_cast(nb::handle(item[i]), tensor, false) && tensor != nullptr) tensor->donate();
  RunOptions options;
  options.threads = threads;
  options.poll = PythonLock::interrupted;
  if (!limits.is_none()) {
    auto [memory, seconds, depth] = nb::cast<std::tuple<int64_t, double, int64_t>>(limits);
    // 0 would be no limit, so the least one is a nanosecond.
    options.limits = {memory, seconds > 0 ? static_cast<int64_t>(std::clamp(seconds * 1e9, 1.0, 9e18)) : 0, depth};
  }
  options.interpret = interpret;
  std::optional<PythonObserver> looks_on;
  if (!observer.is_none()) options.observer = &looks_on.emplace(observer);
  Value result;
  try {
    PythonLock lock(entry);
    options.poll_data = &lock;
    options.brief = lock.usual() < PythonLock::brief_run;
    result = run(*exe, entry.function, arguments.data(), static_cast<uint32_t>(count), options);
  } catch (const Error& error) {
    if (error.status == Status::interrupted && PyErr_Occurred()) throw nb::python_error();
    throw;
  }
  maybe_collect_shared();
  return tuples ? tuples_to_python(result) : to_python(result);
}

std::shared_ptr<Executable> load_bytes(nb::handle object) {
  Bytes bytes(object);
  return Executable::from_bytes(bytes.data(), bytes.size());
}

}  // namespace

void init_executable(nb::module_& m) {
  nb::class_<PlaceView>(m, "Place", "An open call, for observers of a run; valid while the observer is called.")
      .def_prop_ro("function", [](const PlaceView& v) { return v.get().function->name; })
      .def_prop_ro("word", [](const PlaceView& v) { return v.get().word; }, "The instruction's place in the function's code.")
      .def_prop_ro("depth", [](const PlaceView& v) { return v.get().depth; }, "How many calls are open below.")
      .def_prop_ro(
          "span",
          [](const PlaceView& v) {
            const Span* span = v.get().function->span_at(v.get().word);
            return span == nullptr ? std::string() : span->text;
          },
          "The source place, or an empty text.")
      .def("open_calls", &PlaceView::open_calls, "This call and those below it, newest first.")
      .def(
          "register",
          [](const PlaceView& v, uint32_t index) -> nb::object {
            if (index >= v.get().function->registers) fail(Status::invalid_argument, "there is no register %u", index);
            Value value = v.get().registers[index];
            if (value.is_nil()) return nb::none();
            retain(value);
            share(value);
            return to_python(value);
          },
          nb::arg("index"), "What the register holds, None when that is nothing.");
  nb::class_<Executable>(m, "Executable", "A loaded program. Any number of threads may run it at the same time.")
      .def_static("load", &Executable::load, nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
                  "Load a .rlx file. The native code in it is trusted.")
      .def_static("from_bytes", load_bytes, nb::arg("bytes"), "The same from the bytes of such a file.")
      .def_prop_ro("triple", [](const Executable& e) { return e.triple; })
      .def_prop_ro("features", [](const Executable& e) { return e.features; })
      .def_prop_ro("native", [](const Executable& e) { return !e.native.empty(); },
                   "Whether its functions are native code.")
      .def_prop_ro(
          "image",
          [](const Executable& e) {
            Value image = Value::of(e.image());
            share(image);
            return to_python(image);
          },
          "The bytes of its file as they were read: a tensor of uint8 on them.")
      .def_prop_ro("entries",
                   [](const Executable& e) {
                     std::vector<std::string> names;
                     for (const Entry& entry : e.entries) names.push_back(entry.name);
                     return names;
                   })
      .def(
          "entry_info", [](const Executable& e, std::string_view name) { return need_entry(e, name).info; },
          nb::arg("name"), "The text the compiler left with the entry.")
      .def("run", run_entry, nb::arg("name"), nb::arg("args"), nb::arg("threads") = 0,
           nb::arg("donate") = nb::make_tuple(), nb::arg("limits") = nb::none(),
           nb::arg("observer") = nb::none(), nb::arg("interpret") = false, nb::arg("tuples") = false,
           "Run an entry. Arguments: tensors (of this or any library), numbers, tuples, Values. threads: how many may "
           "take "
           "part (0: all that are available). donate: numbers of the arguments whose Tensor is given up, so that its "
           "memory can hold the result. limits: (bytes, seconds, depth), 0 for none of the kind. observer: see Observer. interpret: "
           "by the virtual machine, though there is native code. tuples: a result of tuples (few inside each other) comes as "
           "Python's.")
      .def(
          "set_limits", [](Executable& e, int64_t stack_bytes) { e.set_stack_limit(stack_bytes); },
          nb::arg("stack_bytes"), "How large the control stack of a run may grow.")
      .def(
          "replace_kernel",
          [](Executable& e, const std::string& name, nb::handle object, const std::string& symbol) {
            Bytes bytes(object);
            e.replace_kernel(name, bytes.data(), bytes.size(), symbol);
          },
          nb::arg("name"), nb::arg("object"), nb::arg("symbol"),
          "Use another native function for the kernels of that name, also in runs that are in progress.")
      .def_prop_ro(
          "later",
          [](const Executable& e) -> nb::object {
            return e.later.empty() ? nb::object(nb::none()) : nb::object(nb::bytes(e.later.data(), e.later.size()));
          },
          "What the native objects that it came without are made of, as the compiler wrote it; None: it came with all.")
      .def(
          "supply",
          [](Executable& e, uint32_t number, nb::handle object) {
            Bytes bytes(object);
            e.supply(number, bytes.data(), bytes.size());
          },
          nb::arg("number"), nb::arg("object"), "Give it a native object that it came without.")
      .def(
          "profile", [](Executable& e, bool on) { e.profiling.store(on); }, nb::arg("on"),
          "Switch the recording of runs that begin from now on on or off.")
      .def(
          "check_memory", [](Executable& e, bool on) { e.checks_memory.store(on); }, nb::arg("on"),
          "Switch on or off that runs that begin from now on run each kernel on copies of its operands, where what it touches outside of "
          "them and what it reads and nobody has written are errors. Many times slower.")
      .def(
          "flush_subnormals", [](Executable& e, bool on) { e.flushes_subnormals.store(on); }, nb::arg("on"),
          "Switch on or off that runs that begin from now on take subnormal numbers for zero.")
      .def(
          "kernel_statistics",
          [](const Executable& e) {
            nb::dict out;
            for (const auto& kernel : e.kernels) {
              nb::str name(kernel->name.c_str(), kernel->name.size());
              uint64_t calls = kernel->calls.load(), ns = kernel->nanoseconds.load();
              if (out.contains(name)) {
                nb::object before = out[name];
                calls += nb::cast<uint64_t>(before[0]);
                ns += nb::cast<uint64_t>(before[1]);
              }
              out[name] = nb::make_tuple(calls, ns);
            }
            return out;
          },
          "For every kernel its calls and nanoseconds while profiling was on.")
      .def_prop_ro(
          "kernels",
          [](const Executable& e) {
            nb::list out;
            for (const auto& kernel : e.kernels) out.append(nb::make_tuple(kernel->name, kernel->dims, kernel->info));
            return out;
          },
          "For every kernel its name, how many sizes it takes, and what the compiler left with it.")
      .def(
          "recorded",
          [](const Executable& e) {
            std::vector<Event> events;
            std::vector<int64_t> sizes;
            uint64_t dropped = e.profile.copy(&events, &sizes);
            return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(events.data()), events.size() * sizeof(Event)),
                                  nb::bytes(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t)),
                                  dropped);
          },
          "What runs that began while profiling was on have done: events (relay/profile.h), the sizes of kernel calls, "
          "and how many events were left out.")
      .def("reset_statistics",
           [](Executable& e) {
             for (const auto& kernel : e.kernels) {
               kernel->calls = 0;
               kernel->nanoseconds = 0;
             }
             e.profile.clear();
           })
      .def("statistics", [](const Executable& e) {
        int64_t constant_bytes = 0;
        for (const Tensor* constant : e.constants) constant_bytes += constant->bytes();
        int64_t words = 0;
        for (const Function& f : e.functions) words += f.words;
        nb::dict out;
        out["functions"] = e.functions.size();
        out["code_words"] = words;
        out["kernels"] = e.kernels.size();
        out["constants"] = e.constants.size();
        out["constant_bytes"] = constant_bytes;
        return out;
      });
}

}  // namespace relay
