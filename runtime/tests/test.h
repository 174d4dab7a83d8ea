// Thirty lines of test framework: TEST(name) { CHECK(condition); } and THROWS(status, expression).
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "relay/error.h"

struct Test {
  const char* name;
  void (*run)();
};
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

#define TEST(name)                                    \
  static void name();                                 \
  static const Register register_##name(#name, name); \
  static void name()

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (0)

#define THROWS(expected, expression)                    \
  do {                                                  \
    bool thrown = false;                                \
    try {                                               \
      (void)(expression);                               \
    } catch (const relay::Error& error) {               \
      thrown = error.status == relay::Status::expected; \
    }                                                   \
    CHECK(thrown);                                      \
  } while (0)

int main() {
  for (const Test& test : tests()) test.run();
  std::printf("%zu tests\n", tests().size());
}
