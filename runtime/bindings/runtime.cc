// The process: tables of the runtime, memory statistics, the machine.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "relay/checksum.h"
#include "relay/cpu.h"
#include "relay/device.h"
#include "relay/elf_loader.h"
#include "relay/native.h"
#include "relay/opcode.h"
#include "relay/processors.h"
#include "relay/storage_pool.h"

namespace relay {
namespace {

int32_t need_device(const std::string& name) {
  int32_t index = device_from_name(name.c_str());
  if (index < 0) fail(Status::invalid_argument, "unknown device '%s'; there are cpu and fake", name.c_str());
  return index;
}

// One of Python's gc.callbacks. In C++, because Python delivers signals between the instructions of Python functions, and drops what
// its gc.callbacks raise: Ctrl-C that came while a callback in Python ran would be printed and lost.
void collect_with_python(nb::handle phase, nb::handle info) {
  PyObject* generation = PyDict_GetItemString(info.ptr(), "generation");
  bool all = generation != nullptr && PyLong_Check(generation) && PyLong_AsLong(generation) == 2;
  if (all && PyUnicode_CompareWithASCIIString(phase.ptr(), "stop") == 0) collect_shared();
}

}  // namespace

void init_runtime(nb::module_& m) {
  m.def(
      "opcodes",
      [] {
        nb::list out;
        for (const OpcodeInfo& op : opcode_table) out.append(nb::make_tuple(op.name, op.operands, op.text, op.control));
        return out;
      },
      "The instruction set in the order of its numbers: (name, operand letters, what it does, whether it says what runs next).");
  m.def(
      "dtypes",
      [] {
        nb::list out;
        for (const DTypeInfo& dtype : dtype_table) out.append(nb::make_tuple(dtype.name, static_cast<int>(dtype.bits)));
        return out;
      },
      "The element types in the order of their codes: (name, bits).");
  m.def(
      "devices",
      [] {
        nb::list out;
        for (int32_t i = 0; i < device_count; ++i) out.append(device(i).name());
        return out;
      },
      "The devices in the order of their indices.");
  m.def(
      "routine_arity",
      [](const std::string& name) -> nb::object {
        const Routine* routine = find_routine(name);
        if (routine == nullptr) return nb::none();
        return nb::int_(routine->arguments);
      },
      nb::arg("name"), "How many arguments a runtime routine takes, or None when there is none of that name.");
  m.def(
      "checksum",
      [](nb::handle object, uint64_t seed) {
        Bytes bytes(object);
        return checksum(bytes.data(), bytes.size(), seed);
      },
      nb::arg("bytes"), nb::arg("seed") = 0, "The 64-bit checksum of executable files.");
  nb::class_<Checksum>(m, "Checksum", "The same of bytes that come piece by piece; `bytes`: how many there will be.")
      .def(nb::init<uint64_t, uint64_t>(), nb::arg("bytes"), nb::arg("seed") = 0)
      .def(
          "update",
          [](Checksum& sum, nb::handle object) {
            Bytes bytes(object);
            sum.update(bytes.data(), bytes.size());
          },
          nb::arg("bytes"))
      .def("finish", &Checksum::finish);
  nb::class_<NativeObject>(m, "NativeObject", "An ELF relocatable object in this process, as long as this lives.")
      .def(
          "__init__",
          [](NativeObject* self, nb::handle object, const std::string& what) {
            Bytes bytes(object);
            new (self) NativeObject(static_cast<const std::byte*>(bytes.data()), bytes.size(), what);
          },
          nb::arg("bytes"), nb::arg("what"))
      .def(
          "address",
          [](const NativeObject& self, const std::string& symbol) {
            void* found = self.find(symbol);
            if (found == nullptr) fail(Status::invalid_argument, "the object defines no '%s'", symbol.c_str());
            return reinterpret_cast<uintptr_t>(found);
          },
          nb::arg("symbol"), "Where a global symbol of the object is.");
  m.def(
      "native_layout",
      [] {
        nb::dict out;
        for (const auto& [name, number] : native_layout()) out[name] = number;
        return out;
      },
      "What native code of functions relies on: sizes, offsets of fields, numbers of kinds.");
  m.def("host_architecture", [] { return host_architecture(); });
  m.def("cpu_features", [] { return cpu_features(); }, "LLVM's names of the features this machine has.");
  m.def("cpu_has", [](const std::string& name) { return cpu_has(name); }, nb::arg("feature"));
  m.def("available_threads", [] { return available_threads(); });
  m.def(
      "live_objects",
      [] {
        nb::dict out;
        for (int i = 0; i < object_type_count; ++i) {
          auto type = static_cast<ObjectType>(i);
          constexpr const char* names[] = {"storage", "tensor", "adt", "closure", "ref"};
          out[names[i]] = live_objects(type);
        }
        return out;
      },
      "How many runtime objects of each type are alive.");
  m.def(
      "collect", [] { return collect_shared(); },
      "Free what only cycles through references keep alive. Returns how many references were freed.");
  m.def("collect_with_python", collect_with_python, nb::arg("phase"), nb::arg("info"),
        "The same at the end of a full collection of Python's: a member for gc.callbacks.");
  m.def(
      "pool_statistics",
      [](const std::string& name) {
        PoolStatistics s = pool_statistics(need_device(name));
        nb::dict out;
        out["live_bytes"] = s.live_bytes;
        out["peak_bytes"] = s.peak_bytes;
        out["cached_bytes"] = s.cached_bytes;
        out["allocations"] = s.allocations;
        return out;
      },
      nb::arg("device") = "cpu", "Bytes in use, the most ever in use, bytes waiting for reuse, and blocks handed out.");
  m.def(
      "pool_reset_peak", [](const std::string& name) { pool_reset_peak(need_device(name)); },
      nb::arg("device") = "cpu");
  m.def(
      "pool_trim", [](const std::string& name) { pool_trim(need_device(name)); }, nb::arg("device") = "cpu",
      "Give memory that waits for reuse back to the device.");
}

}  // namespace relay
