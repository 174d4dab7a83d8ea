// Sizes as the types of an executable's JSON texts have them: numbers, names, [operation, size, size], and null for what is not known.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "json.h"

namespace relay {

using Known = std::unordered_map<std::string, int64_t>;

Json json_number(int64_t value);
Json json_name(const std::string& name);

// A size computed from two; null where there is none, or no 64 bits hold it.
Json computed_size(const std::string& operation, int64_t a, int64_t b);

// A size by those that are known: a number, or null where it is not.
Json known_size(const Json& size, const Known& known);

// A size that is `factor * name + constant`, with a positive factor; none for any other.
struct Linear {
  std::string name;
  int64_t factor, constant;
};
std::optional<Linear> linear(const Json& size);

// A size with others in place of its names, computed where it has none left: a number, or null where it is not known.
template <class NameMeaning>
Json with_sizes(const Json& size, const NameMeaning& meaning) {
  if (size.kind == Json::text) return meaning(size.string);
  if (size.kind != Json::list || size.items.size() != 3) return size;
  Json out = size;
  for (size_t i = 1; i < 3; ++i) {
    out.items[i] = with_sizes(size.items[i], meaning);
    if (out.items[i].kind == Json::null) return {};
  }
  if (out.items[1].kind != Json::number || out.items[2].kind != Json::number) return out;
  return computed_size(size.items[0].string, out.items[1].value, out.items[2].value);
}

}  // namespace relay
