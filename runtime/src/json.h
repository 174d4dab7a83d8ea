// JSON as the compiler writes it into executables: integers, text, lists, objects, true, false and null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace relay {

struct Json {
  enum Kind { null, boolean, number, text, list, object } kind = null;
  int64_t value = 0;  // of a number or a boolean
  std::string string;
  std::vector<Json> items;  // of a list; of an object the values, in the order of `keys`
  std::vector<std::string> keys;

  // What an object has by that name; null where it has nothing.
  const Json& operator[](std::string_view key) const;
};

// Error(invalid_file) for what is no JSON, or has numbers that are no integers of 64 bits.
Json parse_json(std::string_view text);
// The text of a value, the same for equal ones.
std::string json_text(const Json& json);

}  // namespace relay
