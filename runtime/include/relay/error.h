// What can go wrong, and how it is said. The runtime throws Error inside and turns it into a status at its edges (the C
// API, the Python bindings); nothing is thrown through a kernel.
#pragma once

#include <cstdarg>
#include <stdexcept>
#include <string>

namespace relay {

enum class Status : int {
  ok = 0,
  invalid_argument = 1,  // the caller gave something the program does not take
  invalid_file = 2,      // not an executable file, damaged, or bytecode that does not verify
  incompatible = 3,      // a sound file for another machine
  failed = 4,            // the program failed while running
  recursion_limit = 5,   // the control stack is full
  out_of_memory = 6,
  interrupted = 7,  // cancelled, or Ctrl-C
  time_limit = 8,
};

class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& message) : std::runtime_error(message), status(status) {}
  Status status;
};

// printf-style text.
[[gnu::format(printf, 1, 2)]] std::string format(const char* text, ...);

// Throws Error with printf-style text.
[[noreturn, gnu::cold, gnu::format(printf, 2, 3)]] void fail(Status status, const char* text, ...);

}  // namespace relay
