// The machine that runs: its architecture, and which of LLVM's named CPU features it has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace relay {

// "x86_64" or "aarch64".
const char* host_architecture();

// Does the CPU (and the operating system, for wide registers) have the feature? Unknown names are features it lacks.
bool cpu_has(std::string_view feature);

// Every feature that cpu_has knows and the machine has.
std::vector<std::string> cpu_features();

// Bytes of the second-level cache of a core; 512 KiB where the system does not say.
int64_t second_level_cache();

}  // namespace relay
