// How many threads are worth having.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace relay {

// How many threads the process uses where nobody says: one for each core that its CPU affinity allows, cut by the control group's CPU
// quota; at least 1. Two threads on one core share its arithmetic units and its caches, and kernels leave neither idle.
int64_t available_threads();

// The core of each of so many processors, by the files that the system keeps in a folder (/sys/devices/system/cpu): the lowest of the
// processors that share it. One that the folder says nothing of has its own.
std::vector<int> cores_of(int64_t processors, const std::string& folder);

}  // namespace relay
