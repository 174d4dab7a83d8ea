// The types of an entry's parameters, from the JSON text that travels with it (src/relay/lower/signature.py), and whether values are of
// them. Compiled code asks of a tensor that it is given what its type says; of what tuples, algebraic values and references hold it trusts
// sizes, and reads as far as those go that it knows from elsewhere. The bindings to Python check what they convert, which references are
// not; C gives values as they are.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "relay/value.h"

namespace relay {

class EntryTypes {
 public:
  // `name` is the entry's, for errors. Error(invalid_file) for a text that is none.
  EntryTypes(const std::string& name, const std::string& info);
  ~EntryTypes();

  // Error(invalid_argument) where an argument, or a value inside of one, is not of its type, or sizes of one name differ. Tensors that are
  // arguments themselves only say what sizes with names are: the entry's own code checks them. `executable`: the id of the entry's, whose
  // closures it knows.
  void check(const Value* arguments, size_t count, uint64_t executable) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

struct LateTypes {
  std::once_flag once;
  std::unique_ptr<EntryTypes> types;
};

}  // namespace relay
