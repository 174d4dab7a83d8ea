#include "bindings.h"

NB_MODULE(_runtime, m) {
  m.doc() = "The Relay runtime: tensors, values, executables.";
  relay::init_errors(m);
  relay::init_tensor(m);
  relay::init_value(m);
  relay::init_convert(m);
  relay::init_executable(m);
  relay::init_runtime(m);
  nb::set_leak_warnings(false);  // interpreter shutdown leaves modules' globals alive
}
