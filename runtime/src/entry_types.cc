#include "entry_types.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

#include "function_types.h"
#include "json.h"
#include "operations.h"
#include "relay/cycles.h"
#include "relay/error.h"
#include "relay/executable.h"
#include "relay/object.h"
#include "sizes.h"

namespace relay {
namespace {

// So many types are found without a lock once they are described. A type is described when a value is met that has it: a type may contain ever
// larger ones.
constexpr size_t found_at_once = 256;

using Meaning = std::map<std::string, Json>;

Json closed_size(const Json& size, const Meaning& meaning) {
  return with_sizes(size, [&](const std::string& name) {
    auto found = meaning.find(name);
    return found != meaning.end() ? found->second["size"] : json_name(name);
  });
}

// What has that name in an object; made, where there is nothing.
Json& member(Json& object, const std::string& key) {
  for (size_t i = 0; i < object.keys.size(); ++i)
    if (object.keys[i] == key) return object.items[i];
  object.keys.push_back(key);
  return object.items.emplace_back();
}

Json closed_shape(const Json& shape, const Meaning& meaning) {
  if (shape.kind == Json::text) {
    auto found = meaning.find(shape.string);
    return found == meaning.end() ? Json{} : found->second["shape"];
  }
  Json out = shape;
  for (Json& size : out.items) size = closed_size(size, meaning);
  return out;
}

// A type with its variables replaced.
Json closed(const Json& type, const Meaning& meaning) {
  const std::string& kind = type["kind"].string;
  if (kind == "var") {
    auto found = meaning.find(type["name"].string);
    return found == meaning.end() ? Json{} : found->second;
  }
  Json out = type;
  if (kind == "tensor" || kind == "shape") member(out, "shape") = closed_shape(type["shape"], meaning);
  if (kind == "tensor")
    if (auto found = meaning.find(type["dtype"].string); found != meaning.end())
      member(out, "dtype") = found->second["dtype"];
  if (kind == "size") member(out, "size") = closed_size(type["size"], meaning);
  if (kind == "ref") member(out, "value") = closed(type["value"], meaning);
  if (kind == "function") {
    for (Json& part : member(out, "params").items) part = closed(part, meaning);
    member(out, "result") = closed(type["result"], meaning);
  }
  if (kind == "tuple" || kind == "adt")
    for (Json& part : member(out, kind == "tuple" ? "fields" : "args").items) part = closed(part, meaning);
  return out;
}

struct Type {
  enum Kind { tensor, tuple, adt, ref, function, other } kind = other;
  int dtype = -1;
  bool any_rank = false;                       // nothing is known of the shape
  std::vector<Json> shape;                     // sizes: numbers, names, what is computed from names, null for any
  std::vector<std::vector<uint32_t>> fields;   // of a tuple one list; of a data type one for each constructor
  std::string name;                            // of a data type
  Json whole;                                  // of a function
};

std::string shape_of(const Type& type, const Known& known) {
  if (type.any_rank) return "any";
  std::string out;
  for (const Json& size : type.shape) {
    Json found = known_size(size, known);
    out += (out.empty() ? "" : ", ") + (found.kind == Json::number ? std::to_string(found.value) : "?");
  }
  return "(" + out + (type.shape.size() == 1 ? ",)" : ")");
}

}  // namespace

struct EntryTypes::Parts {
  std::string entry;
  Json info;
  std::vector<std::string> parameters;
  std::vector<uint32_t> wanted;  // the parameters' types
  struct Made {
    const Json* type;                // of the closure
    std::vector<uint32_t> captured;  // the types of what it holds
  };
  std::unordered_map<uint32_t, Made> made;  // by their functions' numbers: what closures may be made of
  // Types by number, null where they are not described yet: the first by themselves, for whoever finds one, all under the lock.
  std::vector<std::atomic<const Type*>> first = std::vector<std::atomic<const Type*>>(found_at_once);
  std::unordered_map<uint32_t, Type> all;
  std::deque<Json> specs;
  std::unordered_map<std::string, uint32_t> numbers;
  std::mutex mutex;

  uint32_t number_of(Json spec) {
    auto [at, is_new] = numbers.try_emplace(json_text(spec), static_cast<uint32_t>(specs.size()));
    if (is_new) specs.push_back(std::move(spec));
    return at->second;
  }
  std::vector<uint32_t> numbers_of(const Json& list, const Meaning& meaning) {
    std::vector<uint32_t> out;
    for (const Json& item : list.items) out.push_back(number_of(closed(item, meaning)));
    return out;
  }

  Type described(uint32_t number) {
    Json spec = specs[number];
    const std::string& kind = spec["kind"].string;
    Type type;
    if (kind == "tensor") {
      type.kind = Type::tensor;
      type.dtype = dtype_from_name(spec["dtype"].string);
      type.any_rank = spec["shape"].kind != Json::list;
      type.shape = spec["shape"].items;
    } else if (kind == "tuple") {
      type.kind = Type::tuple;
      type.fields.push_back(numbers_of(spec["fields"], {}));
    } else if (kind == "ref") {
      type.kind = Type::ref;
      type.fields.push_back({number_of(spec["value"])});
    } else if (kind == "function") {
      type.kind = Type::function;
      type.whole = std::move(spec);
    } else if (kind == "adt") {
      type.kind = Type::adt;
      type.name = spec["name"].string;
      const Json& definition = info["adts"][type.name];
      Meaning meaning;
      const auto &names = definition["params"].items, &given = spec["args"].items;
      for (size_t i = 0; i < std::min(names.size(), given.size()); ++i) meaning[names[i].string] = given[i];
      for (const Json& constructor : definition["constructors"].items)
        type.fields.push_back(numbers_of(constructor["fields"], meaning));
    }
    return type;
  }

  const Type& type_at(uint32_t number) {
    if (number < found_at_once)
      if (const Type* found = first[number].load(std::memory_order_acquire)) return *found;
    std::lock_guard<std::mutex> lock(mutex);
    auto at = all.find(number);
    if (at == all.end()) at = all.emplace(number, described(number)).first;
    if (number < found_at_once) first[number].store(&at->second, std::memory_order_release);
    return at->second;
  }
};

namespace {

// One check of the arguments of a call.
class Check {
 public:
  Check(const std::string& entry, const std::vector<std::string>& parameters, const Json& bounds)
      : entry_(entry), parameters_(parameters), bounds_(bounds) {}

  [[noreturn]] void refuse(size_t argument, const std::string& what) const {
    fail(Status::invalid_argument, "argument %%%s of @%s: %s", parameters_[argument].c_str(), entry_.c_str(), what.c_str());
  }

  Known* entry_scope() { return &known_; }
  // Sizes in the names of a closure's function, of which each closure has its own.
  Known* new_scope() { return &scopes_.emplace_back(); }

  // What an argument that is a tensor says of sizes with names; the rest is the entry's own to check.
  void bind(const Type& type, const Value& value, size_t argument) {
    const Tensor* tensor = as_tensor(value);
    if (tensor == nullptr || tensor->rank != type.shape.size()) return;
    for (size_t i = 0; i < type.shape.size(); ++i) {
      if (type.shape[i].kind == Json::text) known_.try_emplace(type.shape[i].string, tensor->shape()[i]);
      if (type.shape[i].kind == Json::list) computed_.push_back({&type.shape[i], tensor->shape()[i], argument, &known_});
    }
  }

  void function(const Json* found, const Known* of, const Type& type, Known* scope, size_t argument) {
    functions_.add(found, of, &type.whole, scope, argument);
  }

  void tensor(const Type& type, const Value& value, Known* scope, size_t argument) {
    const Tensor* tensor = as_tensor(value);
    if (tensor == nullptr && value.kind != Kind::scalar)
      refuse(argument, format("expected a tensor of %s inside of it, found %s", dtype(type), describe(value).c_str()));
    int found = static_cast<int>(tensor == nullptr ? value.dtype : tensor->dtype);
    size_t rank = tensor == nullptr ? 0 : tensor->rank;
    bool right = found == type.dtype && (type.any_rank || rank == type.shape.size());
    for (size_t i = 0; right && !type.any_rank && i < rank; ++i) {
      const Json& size = type.shape[i];
      int64_t has = tensor->shape()[i];
      if (size.kind == Json::number) right = size.value == has;
      if (size.kind == Json::text) right = scope->try_emplace(size.string, has).first->second == has;
      if (size.kind == Json::list) computed_.push_back({&size, has, argument, scope});
    }
    if (!right)
      refuse(argument, format("a tensor inside of it must be of %s and shape %s and is %s", dtype(type),
                              shape_of(type, *scope).c_str(), describe(value).c_str()));
  }

  // When all is known that tensors say: functions, sizes that are computed from others, and bounds.
  void settle() {
    auto wrong = functions_.settle([&](const Known& known) { within_bounds(known); });
    if (!wrong.empty())
      refuse(wrong[0].from, format("expected a function of type %s, found a closure of type %s (its sizes are those of the run that made it)",
                                   wrong[0].wanted.c_str(), wrong[0].found.c_str()));
    for (const Computed& c : computed_) solve(c);
    std::map<const Known*, Known> computed;
    for (const Computed& c : computed_) {
      Json expected = known_size(*c.size, *c.scope);
      if (expected.kind != Json::number)
        expected = json_number(computed[c.scope].try_emplace(json_text(*c.size), c.found).first->second);
      if (expected.value != c.found)
        refuse(c.argument, format("an axis of a tensor has size %lld, expected %lld", static_cast<long long>(c.found),
                                  static_cast<long long>(expected.value)));
    }
    within_bounds(known_);
    for (const Known& known : scopes_) within_bounds(known);
  }

 private:
  struct Computed {
    const Json* size;
    int64_t found;
    size_t argument;
    Known* scope;
  };
  // What a computed size says of the one name in it that nothing else says: the value that gives it, which there has to be.
  void solve(const Computed& c) const {
    Json left = with_sizes(*c.size, [&](const std::string& name) {
      auto at = c.scope->find(name);
      return at != c.scope->end() ? json_number(at->second) : json_name(name);
    });
    if (left.kind != Json::list) return;
    std::optional<Linear> size = linear(left);
    if (!size) return;
    int64_t rest = 0;
    bool some = !__builtin_sub_overflow(c.found, size->constant, &rest);
    if (!some || rest < 0 || rest % size->factor != 0)
      refuse(c.argument, format("an axis of a tensor has size %lld, which no size %s gives", static_cast<long long>(c.found),
                                size->name.c_str()));
    c.scope->emplace(size->name, rest / size->factor);
  }
  void within_bounds(const Known& known) const {
    for (size_t i = 0; i < bounds_.keys.size(); ++i) {
      auto at = known.find(bounds_.keys[i]);
      const auto& ends = bounds_.items[i].items;
      if (at == known.end() || at->second < 0 || ends.size() != 2) continue;  // below 0: of a function that is for any
      if (at->second < ends[0].value || (ends[1].kind == Json::number && at->second > ends[1].value))
        fail(Status::invalid_argument, "the arguments of @%s: the size %s is %lld, which is outside of its bounds",
             entry_.c_str(), at->first.c_str(), static_cast<long long>(at->second));
    }
  }
  static const char* dtype(const Type& type) {
    return type.dtype < 0 ? "another dtype" : dtype_name(static_cast<DType>(type.dtype));
  }

  const std::string& entry_;
  const std::vector<std::string>& parameters_;
  const Json& bounds_;
  Known known_;
  std::deque<Known> scopes_;
  std::vector<Computed> computed_;
  FunctionTypes functions_;
};

}  // namespace

EntryTypes::EntryTypes(const std::string& name, const std::string& info) : parts_(std::make_unique<Parts>()) {
  parts_->entry = name;
  parts_->info = parse_json(info);
  for (const Json& parameter : parts_->info["params"].items) {
    parts_->parameters.push_back(parameter["name"].string);
    parts_->wanted.push_back(parts_->number_of(parameter["type"]));
  }
  const Json& closures = parts_->info["closures"];
  for (size_t i = 0; i < closures.keys.size(); ++i) {
    Parts::Made& made = parts_->made[static_cast<uint32_t>(std::stoul(closures.keys[i]))];
    made.type = &closures.items[i]["type"];
    made.captured = parts_->numbers_of(closures.items[i]["captured"], {});
  }
}

EntryTypes::~EntryTypes() = default;

void EntryTypes::check(const Value* arguments, size_t count, uint64_t executable) const {
  Parts& parts = *parts_;
  if (count != parts.wanted.size()) return;  // of an entry that says nothing of its types
  struct Open {
    Value value;
    uint32_t type;
    size_t argument;
    Known* scope;  // of the names in the type
  };
  using Found = std::pair<uint32_t, const Known*>;
  MutatorScope mutator;
  std::vector<Open> open;
  std::vector<Owned> read_out;  // of references: they hold what is looked at
  std::unordered_map<const Object*, std::vector<Found>> seen;  // what others may refer to, with the types it was found to be of
  std::unordered_map<const Closure*, Known*> inside;           // what is known in the names of closures' functions
  Check check(parts.entry, parts.parameters, parts.info["bounds"]);
  for (size_t i = 0; i < count; ++i) {
    const Type& type = parts.type_at(parts.wanted[i]);
    if (type.kind == Type::tensor)
      check.bind(type, arguments[i], i);
    else
      open.push_back({arguments[i], parts.wanted[i], i, check.entry_scope()});
  }
  std::reverse(open.begin(), open.end());
  while (!open.empty()) {
    auto [value, number, argument, scope] = open.back();
    open.pop_back();
    const Type& type = parts.type_at(number);
    if (type.kind == Type::tensor) {
      check.tensor(type, value, scope, argument);
      continue;
    }
    if (type.kind == Type::other) continue;
    if (value.kind == Kind::object && (type.kind == Type::ref || value.object->count.load(std::memory_order_relaxed) > 1)) {
      auto& types = seen[value.object];
      Found found{number, scope};
      if (std::find(types.begin(), types.end(), found) != types.end()) continue;
      types.push_back(found);
    }
    if (type.kind == Type::function) {
      const Closure* closure = as_closure(value);
      if (closure == nullptr) check.refuse(argument, format("expected a function and got %s", describe(value).c_str()));
      auto made = parts.made.find(closure->function);
      if (closure->executable != executable || made == parts.made.end()) continue;  // nothing calls another program's
      auto [at, is_new] = inside.try_emplace(closure, nullptr);
      if (is_new) at->second = check.new_scope();
      check.function(made->second.type, at->second, type, scope, argument);
      if (!is_new) continue;
      const auto& captured = made->second.captured;
      for (size_t i = std::min<size_t>(closure->size, captured.size()); i-- > 0;)
        open.push_back({closure->captured()[i], captured[i], argument, at->second});
      continue;
    }
    if (type.kind == Type::ref) {
      Ref* ref = as_ref(value);
      if (ref == nullptr) check.refuse(argument, format("expected a reference and got %s", describe(value).c_str()));
      read_out.emplace_back(read(ref));
      open.push_back({read_out.back().get(), type.fields[0][0], argument, scope});
      continue;
    }
    const Adt* adt = as_adt(value);
    bool is_tuple = type.kind == Type::tuple;
    size_t constructor = adt == nullptr || is_tuple ? 0 : static_cast<size_t>(adt->tag);
    if (adt == nullptr || (is_tuple ? adt->tag != tuple_tag : adt->tag < 0 || constructor >= type.fields.size()) ||
        adt->size != type.fields[constructor].size())
      check.refuse(argument, (is_tuple ? format("expected a tuple of %zu", type.fields[0].size())
                                       : "expected a value of " + type.name) +
                                 (adt != nullptr && !is_tuple && adt->tag >= 0 && constructor < type.fields.size()
                                      ? format(", of whose constructor %zu there are %zu fields, found %u", constructor,
                                               type.fields[constructor].size(), adt->size)
                                      : ", found " + describe(value)));
    for (size_t i = adt->size; i-- > 0;) open.push_back({adt->fields()[i], type.fields[constructor][i], argument, scope});
  }
  check.settle();
}

const EntryTypes* Entry::types() const {
  if (late_types == nullptr) return nullptr;
  std::call_once(late_types->once, [&] { late_types->types = std::make_unique<EntryTypes>(name, info); });
  return late_types->types.get();
}

}  // namespace relay
