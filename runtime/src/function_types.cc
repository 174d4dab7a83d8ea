#include "function_types.h"

#include <algorithm>

namespace relay {
namespace {

template <class Sizes>
std::string text_of(const Json& type, const Sizes& sizes);

template <class Sizes>
std::string list_of(const Json& types, const Sizes& sizes) {
  std::string out;
  for (const Json& type : types.items) out += (out.empty() ? "" : ", ") + text_of(type, sizes);
  return out;
}

// The type as the language writes it, with the sizes that are known.
template <class Sizes>
std::string text_of(const Json& type, const Sizes& sizes) {
  const std::string& kind = type["kind"].string;
  auto size = [&](const Json& of) {
    Json found = sizes(of);
    if (found.kind == Json::number && found.value >= 0) return std::to_string(found.value);
    return of.kind == Json::text ? of.string.substr(0, of.string.find('.')) : "?";  // without what tells equal names apart
  };
  auto shape = [&](const Json& of) {
    if (of.kind != Json::list) return std::string("?");
    std::string out;
    for (const Json& axis : of.items) out += (out.empty() ? "" : ", ") + size(axis);
    return "(" + out + (of.items.size() == 1 ? ",)" : ")");
  };
  if (kind == "tensor") {
    const std::string& dtype = type["dtype"].string;
    return type["shape"].kind == Json::list && type["shape"].items.empty() ? dtype : "Tensor[" + shape(type["shape"]) + ", " + dtype + "]";
  }
  if (kind == "tuple") return "(" + list_of(type["fields"], sizes) + (type["fields"].items.size() == 1 ? ",)" : ")");
  if (kind == "adt") return type["name"].string + (type["args"].items.empty() ? "" : "[" + list_of(type["args"], sizes) + "]");
  if (kind == "ref") return "Ref[" + text_of(type["value"], sizes) + "]";
  if (kind == "function") return "fn (" + list_of(type["params"], sizes) + ") -> " + text_of(type["result"], sizes);
  if (kind == "size") return size(type["size"]);
  if (kind == "shape") return shape(type["shape"]);
  return kind == "base type" ? type["dtype"].string : "_";
}

// What a closure holds says of a size; one that nobody knows there may be any here.
Json known_of(const Json& size, const Known& own, const Known& of) {
  return with_sizes(size, [&](const std::string& name) {
    if (auto at = of.find(name); at != of.end() && at->second >= 0) return json_number(at->second);
    auto at = own.find(name);
    return at == own.end() ? Json{} : json_number(at->second);
  });
}

}  // namespace

void FunctionTypes::add(const Json* found, const Known* of, const Json* wanted, Known* in, size_t from) {
  // What is for any size is asked for all of them.
  for (const Json& name : (*wanted)["sizes"].items) in->try_emplace(name.string, unknown());
  pairs_.push_back({found, of, wanted, in, from, {}});
}

bool FunctionTypes::pass(Stage stage) {
  stage_ = stage;
  news_ = false;
  for (Pair& pair : pairs_) {
    bool right = functions(pair, *pair.found, *pair.wanted, out);
    for (const auto& [name, value] : pair.own)  // what the closure holds may have been heard of later
      if (auto at = pair.of->find(name); at != pair.of->end() && at->second >= 0 && at->second != value) right = false;
    if (right || stage != strict) continue;
    auto found = text_of(*pair.found, [&](const Json& size) { return known_of(size, pair.own, *pair.of); });
    wrong_.push_back({pair.from, found, text_of(*pair.wanted, [&](const Json& size) { return known_size(size, *pair.in); })});
  }
  return news_;
}

bool FunctionTypes::functions(Pair& pair, const Json& own, const Json& other, Flow flow) {
  const auto &own_params = own["params"].items, &other_params = other["params"].items;
  if (own_params.size() != other_params.size()) return false;
  bool right = true;
  for (size_t i = 0; i < own_params.size(); ++i) right &= types(pair, own_params[i], other_params[i], turned(flow));
  return types(pair, own["result"], other["result"], flow) && right;
}

// `flow`: the way that values go, both where they are written and read.
bool FunctionTypes::types(Pair& pair, const Json& own, const Json& other, Flow flow) {
  const std::string& kind = own["kind"].string;
  if (kind != other["kind"].string) return false;
  auto each = [&](const char* member) {
    const auto &a = own[member].items, &b = other[member].items;
    bool right = a.size() == b.size();
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) right &= types(pair, a[i], b[i], flow);
    return right;
  };
  if (kind == "tensor" || kind == "shape") {
    if (own["dtype"].string != other["dtype"].string) return false;
    const Json &a = own["shape"], &b = other["shape"];
    bool any_a = a.kind != Json::list, any_b = b.kind != Json::list;
    if (any_a || any_b) return (any_a || flow == out) && (any_b || flow == in);
    bool right = a.items.size() == b.items.size();
    for (size_t i = 0; right && i < a.items.size(); ++i) right &= size(pair, a.items[i], b.items[i], flow);
    return right;
  }
  if (kind == "tuple") return each("fields");
  if (kind == "adt") return own["name"].string == other["name"].string && each("args");
  if (kind == "ref") return types(pair, own["value"], other["value"], both);
  if (kind == "size") return size(pair, own["size"], other["size"], flow);
  if (kind == "base type") return own["dtype"].string == other["dtype"].string;
  if (kind == "function") {
    const auto &a = own["sizes"].items, &b = other["sizes"].items;
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i)
      pair.own[a[i].string] = pair.in->try_emplace(b[i].string, unknown()).first->second;
    return functions(pair, own, other, flow);
  }
  return true;
}

bool FunctionTypes::size(Pair& pair, const Json& own, const Json& other, Flow flow) {
  bool any_own = own.kind == Json::null, any_other = other.kind == Json::null;
  if (any_own || (any_other && flow == out)) return any_other || flow == in;
  Json found = known_of(own, pair.own, *pair.of);
  if (any_other) {
    // Any may come: right for a size that nothing else is said of.
    if (stage_ != strict) return true;
    if (own.kind != Json::text || found.kind == Json::number) return false;
    pair.own[own.string] = unknown();
    return true;
  }
  Json wanted = known_size(other, *pair.in);
  if (wanted.kind != Json::number) {
    bool is_name = other.kind == Json::text;
    if (is_name && found.kind == Json::number && found.value >= 0) {
      wanted = found;
    } else if (is_name && stage_ == names) {
      wanted = json_number(unknown());
    } else {
      return stage_ != strict;
    }
    pair.in->emplace(other.string, wanted.value);
    news_ = true;
  }
  if (found.kind == Json::number) return found.value == wanted.value;
  if (own.kind != Json::text) return stage_ != strict;
  pair.own[own.string] = wanted.value;
  news_ = true;
  return true;
}

}  // namespace relay
