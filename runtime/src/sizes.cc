#include "sizes.h"

#include <algorithm>

namespace relay {

Json json_number(int64_t value) {
  Json out;
  out.kind = Json::number;
  out.value = value;
  return out;
}

Json json_name(const std::string& name) {
  Json out;
  out.kind = Json::text;
  out.string = name;
  return out;
}

Json known_size(const Json& size, const Known& known) {
  return with_sizes(size, [&](const std::string& name) {
    auto at = known.find(name);
    return at == known.end() ? Json{} : json_number(at->second);
  });
}

std::optional<Linear> linear(const Json& size) {
  if (size.kind == Json::text) return Linear{size.string, 1, 0};
  if (size.kind != Json::list || size.items.size() != 3) return std::nullopt;
  const std::string& operation = size.items[0].string;
  const Json &a = size.items[1], &b = size.items[2];
  if ((operation != "add" && operation != "mul") || (a.kind == Json::number) == (b.kind == Json::number)) return std::nullopt;
  int64_t number = a.kind == Json::number ? a.value : b.value;
  std::optional<Linear> out = linear(a.kind == Json::number ? b : a);
  if (!out) return out;
  bool overflow = false;
  if (operation == "add") {
    overflow = __builtin_add_overflow(out->constant, number, &out->constant);
  } else {
    overflow = number <= 0 || __builtin_mul_overflow(out->factor, number, &out->factor) ||
               __builtin_mul_overflow(out->constant, number, &out->constant);
  }
  return overflow ? std::nullopt : out;
}

Json computed_size(const std::string& operation, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  if (operation == "add") {
    overflow = __builtin_add_overflow(a, b, &out);
  } else if (operation == "mul") {
    overflow = __builtin_mul_overflow(a, b, &out);
  } else if (operation == "min" || operation == "max") {
    out = operation == "min" ? std::min(a, b) : std::max(a, b);
  } else {
    if (b == 0 || b == -1) return b == 0 ? Json{} : json_number(operation == "mod" ? 0 : -a);
    int64_t rest = a % b;
    bool down = rest != 0 && (rest < 0) != (b < 0);  // towards minus infinity
    out = operation == "mod" ? rest + (down ? b : 0) : a / b - (down ? 1 : 0);
  }
  return overflow ? Json{} : json_number(out);
}

}  // namespace relay
