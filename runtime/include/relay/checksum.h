// The 64-bit checksum of executable files: every byte counts, and it reads memory at several bytes per cycle.
#pragma once

#include <cstddef>
#include <cstdint>

namespace relay {

uint64_t checksum(const void* data, size_t bytes, uint64_t seed = 0);

}  // namespace relay
