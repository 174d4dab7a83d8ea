// Runtime errors as Python exceptions. Which class stands for which status is set by relay.executable, so that they are
// the project's own; until then they are built-in ones.
#include <nanobind/stl/string.h>

#include <cstring>

#include "bindings.h"

namespace relay {
namespace {

constexpr int status_count = 9;
PyObject* error_types[status_count];

}  // namespace

void init_errors(nb::module_& m) {
  PyObject* defaults[status_count] = {PyExc_RuntimeError, PyExc_ValueError,       PyExc_ValueError,
                                      PyExc_ValueError,   PyExc_RuntimeError,     PyExc_RecursionError,
                                      PyExc_MemoryError,  PyExc_KeyboardInterrupt, PyExc_TimeoutError};
  for (int i = 0; i < status_count; ++i) {
    Py_INCREF(defaults[i]);
    error_types[i] = defaults[i];
  }
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      // Messages quote names from files, which may be damaged.
      nb::object text =
          nb::steal(PyUnicode_DecodeUTF8(error.what(), static_cast<Py_ssize_t>(strlen(error.what())), "replace"));
      PyErr_SetObject(error_types[static_cast<int>(error.status)], text.ptr());
    }
  });
  m.def(
      "set_error_type",
      [](int status, nb::type_object type) {
        if (status <= 0 || status >= status_count) throw nb::value_error("no such status");
        Py_XDECREF(error_types[status]);
        error_types[status] = type.release().ptr();
      },
      nb::arg("status"), nb::arg("type"), "Use this exception class for a status of relay/error.h.");
}

}  // namespace relay
