// Whether functions that arrive at an entry are of the types that it says: closures are made by runs that had sizes of their own, and what a
// closure captured has those. The compiler describes each function that closures are made of: the types of what it captures, what it takes
// and what it gives, in names of its own. What a closure holds says what some of those names are; the others are whatever a call gives.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "sizes.h"

namespace relay {

class FunctionTypes {
 public:
  // A function of type `found`, in whose names `of` knows some sizes, stands where one of type `wanted` does, in the names of `in`. `from`:
  // the argument it came with.
  void add(const Json* found, const Known* of, const Json* wanted, Known* in, size_t from);

  // Compares them, and notes what they say of sizes that nothing else said. The first that is not of its type, or none.
  struct Wrong {
    size_t from;
    std::string found, wanted;
  };
  // `told`: called when all is known that numbers say.
  template <class Told>
  std::vector<Wrong> settle(const Told& told) {
    while (pass(numbers)) {
    }
    for (const Pair& pair : pairs_) told(pair.own);
    while (pass(names)) {
    }
    pass(strict);
    return wrong_;
  }

 private:
  // What a comparison may do. Numbers are told from side to side; then sizes that nobody knows get one that no tensor has, each its own, so
  // that a function is of a type only if it is for any size; then all must agree.
  enum Stage { numbers, names, strict };
  struct Pair {
    const Json* found;
    const Known* of;
    const Json* wanted;
    Known* in;
    size_t from;
    Known own;  // sizes of `found` that the place it stands in says
  };

  // The way of values: out of the function, into it, or both, as of what references hold.
  enum Flow { out, in, both };
  static Flow turned(Flow flow) { return flow == both ? both : flow == in ? out : in; }

  bool pass(Stage stage);
  bool types(Pair& pair, const Json& own, const Json& other, Flow flow);
  bool functions(Pair& pair, const Json& own, const Json& other, Flow flow);
  bool size(Pair& pair, const Json& own, const Json& other, Flow flow);
  int64_t unknown() { return next_unknown_ -= int64_t{1} << 20; }

  std::deque<Pair> pairs_;
  std::vector<Wrong> wrong_;
  Stage stage_ = numbers;
  bool news_ = false;
  int64_t next_unknown_ = -(int64_t{1} << 40);
};

}  // namespace relay
