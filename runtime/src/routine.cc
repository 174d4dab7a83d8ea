#include "relay/routine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "linearise.h"
#include "operations.h"
#include "relay/cpu.h"
#include "relay/device.h"
#include "relay/error.h"
#include "relay/object.h"
#include "relay/thread_pool.h"

namespace relay {
namespace {

// --- elements ----------------------------------------------------------------------------------------------------

// The two half-width floats order and compare as the float32 they stand for.
struct Half {
  uint16_t raw;
  operator float() const {
    uint32_t sign = static_cast<uint32_t>(raw & 0x8000) << 16, exponent = raw >> 10 & 31, fraction = raw & 0x3FF;
    float magnitude;
    if (exponent == 0) {
      magnitude = std::ldexp(static_cast<float>(fraction), -24);
    } else {
      uint32_t word = exponent == 31 ? 0x7F800000u | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
      std::memcpy(&magnitude, &word, 4);
    }
    return sign ? -magnitude : magnitude;
  }
};
struct Brain {
  uint16_t raw;
  operator float() const {
    uint32_t word = static_cast<uint32_t>(raw) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  }
};

template <class T>
constexpr bool is_floating = std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, Brain>;

// A total order: NaN after every number.
template <class T>
bool before(const T& a, const T& b) {
  if constexpr (is_floating<T>) {
    auto x = static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(a);
    auto y = static_cast<decltype(x)>(b);
    return x < y || (std::isnan(y) && !std::isnan(x));
  } else {
    return a < b;
  }
}

template <class T>
bool nonzero_element(const T& x) {
  if constexpr (is_floating<T>)
    return static_cast<float>(x) != 0.0f;
  else
    return x != 0;
}
template <>
bool nonzero_element(const double& x) {
  return x != 0.0;
}

// Calls f with a null pointer of the element type.
template <class F>
auto with_type(DType dtype, const char* routine, F&& f) {
  switch (dtype) {
    case DType::bool_:
    case DType::uint8_: return f(static_cast<uint8_t*>(nullptr));
    case DType::int8_: return f(static_cast<int8_t*>(nullptr));
    case DType::int16_: return f(static_cast<int16_t*>(nullptr));
    case DType::int32_: return f(static_cast<int32_t*>(nullptr));
    case DType::int64_: return f(static_cast<int64_t*>(nullptr));
    case DType::uint16_: return f(static_cast<uint16_t*>(nullptr));
    case DType::uint32_: return f(static_cast<uint32_t*>(nullptr));
    case DType::uint64_: return f(static_cast<uint64_t*>(nullptr));
    case DType::float16_: return f(static_cast<Half*>(nullptr));
    case DType::bfloat16_: return f(static_cast<Brain*>(nullptr));
    case DType::float32_: return f(static_cast<float*>(nullptr));
    case DType::float64_: return f(static_cast<double*>(nullptr));
    case DType::int4_:
    case DType::uint4_: break;
  }
  fail(Status::failed, "%s does not take tensors of %s", routine, dtype_name(dtype));
}

// --- arguments ---------------------------------------------------------------------------------------------------

// A tensor argument on the host; a scalar counts as a tensor of rank 0. Imported memory may sit at any address, so
// elements are copied into vectors before they are worked on.
class Input {
 public:
  Input(const Value& v, const char* routine) {
    if (v.kind == Kind::scalar) {
      boxed_ = Owned(Value::of(box_scalar(v)));
      tensor_ = as_tensor(boxed_.get());
    } else {
      tensor_ = as_tensor(v);
    }
    if (tensor_ == nullptr) fail(Status::failed, "%s needs a tensor and got %s", routine, describe(v).c_str());
    if (tensor_->storage->device != host_device)
      fail(Status::failed, "%s needs a tensor on the host and got one on device %s", routine,
           device(tensor_->storage->device).name());
  }
  DType dtype() const { return tensor_->dtype; }
  uint32_t rank() const { return tensor_->rank; }
  const int64_t* shape() const { return tensor_->shape(); }
  const Tensor* operator->() const { return tensor_; }
  template <class T>
  std::vector<T> elements() const {
    std::vector<T> out(static_cast<size_t>(tensor_->elements()));
    if (!out.empty()) std::memcpy(static_cast<void*>(out.data()), tensor_->data(), out.size() * sizeof(T));
    return out;
  }
  // The elements where they are; in `copy` when they are not aligned (imported memory may be anywhere).
  template <class T>
  const T* aligned(std::vector<T>& copy) const {
    if (reinterpret_cast<uintptr_t>(tensor_->data()) % alignof(T) == 0)
      return reinterpret_cast<const T*>(tensor_->data());
    copy = elements<T>();
    return copy.data();
  }

 private:
  Owned boxed_;
  const Tensor* tensor_;
};

double to_double(const Value& v, const char* routine) {
  Value scalar = scalar_of(v);
  if (scalar.dtype == DType::int64_) return static_cast<double>(static_cast<int64_t>(scalar.bits));
  if (scalar.dtype == DType::float32_) {
    float x;
    std::memcpy(&x, &scalar.bits, 4);
    return static_cast<double>(x);
  }
  if (scalar.dtype != DType::float64_)
    fail(Status::failed, "%s expects a number and got %s", routine, describe(v).c_str());
  double x;
  std::memcpy(&x, &scalar.bits, 8);
  return x;
}

bool to_flag(const Value& v) {
  Value scalar = scalar_of(v);
  return scalar.dtype == DType::bool_ ? (scalar.bits & 1) != 0 : to_int64(scalar) != 0;
}

uint32_t to_axis(const Value& v, uint32_t rank, const char* routine) {
  int64_t axis = to_int64(v);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= static_cast<int64_t>(rank))
    fail(Status::failed, "%s: there is no axis %lld in a tensor of rank %u", routine,
         static_cast<long long>(to_int64(v)), rank);
  return static_cast<uint32_t>(axis);
}

DType to_index_dtype(const Value& v, const char* routine) {
  int64_t code = to_int64(v);
  if (code != static_cast<int64_t>(DType::int32_) && code != static_cast<int64_t>(DType::int64_))
    fail(Status::failed, "%s: indices are int32 or int64, not dtype %lld", routine, static_cast<long long>(code));
  return static_cast<DType>(code);
}

template <class T>
T* data(Tensor* tensor) {
  return reinterpret_cast<T*>(tensor->data());
}

void put_index(Tensor* tensor, int64_t at, int64_t index) {
  if (tensor->dtype == DType::int32_)
    data<int32_t>(tensor)[at] = static_cast<int32_t>(index);
  else
    data<int64_t>(tensor)[at] = index;
}

Value tuple(Owned& a, Owned& b) {
  Adt* pair = new_adt(tuple_tag, 2);
  pair->fields()[0] = a.take();
  pair->fields()[1] = b.take();
  return Value::of(pair);
}

// A tensor split around one axis: outer x size x inner elements.
struct Lines {
  int64_t outer = 1, size, inner = 1;
  Lines(const Input& x, uint32_t axis) : size(x.shape()[axis]) {
    for (uint32_t i = 0; i < axis; ++i) outer *= x.shape()[i];
    for (uint32_t i = axis + 1; i < x.rank(); ++i) inner *= x.shape()[i];
  }
};

// The most that are put in order by insertion.
constexpr int64_t most_inserted = 16;

// The first `wanted` of some items, in order, ties in the order that they come in: `add` them one by one.
template <class Item, class F>
class Insertion {
 public:
  Insertion(Item* first, int64_t wanted, F better) : first_(first), wanted_(wanted), better_(better) {}
  void add(const Item& item) {
    if (count_ == wanted_ && (count_ == 0 || !better_(item, first_[count_ - 1]))) return;
    int64_t j = count_ < wanted_ ? count_++ : count_ - 1;
    for (; j > 0 && better_(item, first_[j - 1]); --j) first_[j] = first_[j - 1];
    first_[j] = item;
  }

 private:
  Item* first_;
  int64_t wanted_, count_ = 0;
  F better_;
};

// What `choose_first` writes while it works, kept from line to line.
template <class T>
struct Choice {
  struct Item {
    T value;
    int64_t at;
  };
  std::vector<T> line, bests, ordered;
  std::vector<Item> found;
};

// The first `wanted` of the positions of n neighbours in order, ties by position; false, with nothing done, where that would
// not pay or where a NaN is among them. The best of every few neighbours are found without a branch. As many of those as are
// wanted are as good as the last of them, so whatever comes after it is none of the first: what is left is little more.
template <bool descending, int64_t bytes, class T>
[[gnu::always_inline]] inline bool choose_by(const T* x, int64_t n, int64_t wanted, Choice<T>& choice, int64_t* order) {
  constexpr int64_t lanes = bytes / static_cast<int64_t>(sizeof(T)), bests_of_one = 4;
  typedef T Vector __attribute__((vector_size(bytes)));
  auto better = [](const auto& u, const auto& v) __attribute__((always_inline)) {
    if constexpr (descending)
      return u > v;
    else
      return u < v;
  };
  auto load = [](const T* from) __attribute__((always_inline)) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
  };
  auto any = [](const auto& mask) __attribute__((always_inline)) {
    int64_t words[bytes / 8], found = 0;
    std::memcpy(words, &mask, sizeof words);
    for (int64_t word : words) found |= word;
    return found != 0;
  };
  // A group of neighbours has a best for each lane.
  int64_t together = wanted > 0 ? std::min(n / (bests_of_one * wanted), n / lanes) * lanes : 0;
  if (together < 2 * lanes) return false;
  int64_t groups = n / together, whole = groups * together;
  if (groups * lanes < 2 * wanted) return false;

  choice.bests.resize(static_cast<size_t>(groups * lanes));
  decltype(Vector{} != Vector{}) nan{};
  for (int64_t g = 0; g < groups; ++g) {
    const T* from = x + g * together;
    Vector best = load(from);
    if constexpr (std::is_floating_point_v<T>) nan |= best != best;
    for (int64_t i = lanes; i < together; i += lanes) {
      Vector v = load(from + i);
      if constexpr (std::is_floating_point_v<T>) nan |= v != v;
      best = better(v, best) ? v : best;
    }
    std::memcpy(choice.bests.data() + g * lanes, &best, sizeof best);
  }
  if (any(nan)) return false;
  if constexpr (std::is_floating_point_v<T>)
    for (int64_t at = whole; at < n; ++at)
      if (x[at] != x[at]) return false;

  choice.ordered = choice.bests;
  auto last = choice.ordered.begin() + wanted - 1;
  std::nth_element(choice.ordered.begin(), last, choice.ordered.end(), better);
  Vector bound = Vector{} + *last;
  auto& found = choice.found;
  found.clear();
  for (int64_t g = 0; g < groups; ++g) {
    if (!any(~better(bound, load(choice.bests.data() + g * lanes)))) continue;
    for (int64_t i = g * together; i < (g + 1) * together; i += lanes) {
      auto hits = ~better(bound, load(x + i));
      if (!any(hits)) [[likely]]
        continue;
      for (int64_t lane = 0; lane < lanes; ++lane)
        if (hits[lane]) found.push_back({x[i + lane], i + lane});
    }
  }
  for (int64_t at = whole; at < n; ++at)
    if (!better(*last, x[at])) found.push_back({x[at], at});

  using Item = typename Choice<T>::Item;
  if (wanted > most_inserted) {
    auto less = [&](const Item& a, const Item& b) {
      return better(a.value, b.value) || (a.value == b.value && a.at < b.at);
    };
    std::partial_sort(found.begin(), found.begin() + wanted, found.end(), less);
  } else {
    // In their own memory: never more have been put in order than were looked at.
    Insertion insertion(found.data(), wanted, [&](const Item& a, const Item& b) { return better(a.value, b.value); });
    for (Item item : found) insertion.add(item);
  }
  for (int64_t j = 0; j < wanted; ++j) order[j] = found[static_cast<size_t>(j)].at;
  return true;
}

#if defined(__x86_64__)
template <bool descending, class T>
[[gnu::target("avx512f,avx512bw,avx512dq")]] bool choose_in_long_vectors(const T* x, int64_t n, int64_t wanted,
                                                                         Choice<T>& choice, int64_t* order) {
  return choose_by<descending, 64>(x, n, wanted, choice, order);
}
#endif

template <bool descending, class T>
bool choose_first(const T* x, int64_t n, int64_t wanted, Choice<T>& choice, int64_t* order) {
#if defined(__x86_64__)
  static const bool long_vectors = cpu_has("avx512f") && cpu_has("avx512bw") && cpu_has("avx512dq");
  if (long_vectors) return choose_in_long_vectors<descending>(x, n, wanted, choice, order);
#endif
  return choose_by<descending, 16>(x, n, wanted, choice, order);
}

// Lines of so many elements are sorted by the digits of their keys.
constexpr int64_t least_by_digits = 96;

// Unsigned numbers that compare as elements do in the total order of `before`: equal elements have equal keys.
template <class T>
auto key_of(T x) {
  if constexpr (is_floating<T>) {
    std::conditional_t<std::is_same_v<T, double>, double, float> value = x;
    std::conditional_t<std::is_same_v<T, double>, uint64_t, uint32_t> bits;
    if (value != value) return ~decltype(bits){0};
    if (value == 0) value = 0;  // zeros are equal
    std::memcpy(&bits, &value, sizeof bits);
    constexpr decltype(bits) sign = decltype(bits){1} << (8 * sizeof bits - 1);
    return bits & sign ? ~bits : bits | sign;
  } else {
    using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    constexpr Key sign = std::is_signed_v<T> ? Key{1} << (8 * sizeof(Key) - 1) : 0;
    return static_cast<Key>(static_cast<Key>(x) ^ sign);
  }
}

// What `sort_by_digits` writes while it works, kept from line to line.
template <class T>
struct Digits {
  using Key = decltype(key_of(T{}));
  struct Item {
    Key key;
    uint32_t at;
  };
  std::vector<Item> from, to;
};

// The positions of a line in order, by its keys' digits from the last to the first; each pass keeps the order of those before,
// so that ties stay in the order of positions. Digits that all keys share are left out.
template <class T>
void sort_by_digits(const T* line, int64_t stride, bool descending, Digits<T>& memory, std::vector<int64_t>& order) {
  using Key = Digits<T>::Key;
  using Item = Digits<T>::Item;
  constexpr size_t digits = sizeof(Key);
  size_t n = order.size();
  auto &from = memory.from, &to = memory.to;
  from.resize(n);
  to.resize(n);
  uint32_t counts[digits][256] = {};
  for (size_t i = 0; i < n; ++i) {
    Key key = key_of(line[static_cast<int64_t>(i) * stride]);
    if (descending) key = ~key;
    from[i] = {key, static_cast<uint32_t>(i)};
    for (size_t d = 0; d < digits; ++d) ++counts[d][key >> 8 * d & 255];
  }
  for (size_t d = 0; d < digits; ++d) {
    auto& count = counts[d];
    if (count[from[0].key >> 8 * d & 255] == n) continue;
    uint32_t next = 0;
    for (uint32_t& c : count) next += std::exchange(c, next);
    for (const Item& item : from) to[count[item.key >> 8 * d & 255]++] = item;
    std::swap(from, to);
  }
  for (size_t i = 0; i < n; ++i) order[i] = from[i].at;
}

// Lines of fewer elements are taken so many at a time, and one by one where fewer are left than these.
constexpr int64_t lines_together = 16, least_together = 4;

// A key as processors compare them: signed.
template <class T>
auto signed_key(T x, bool descending) {
  using Bits = typename Digits<T>::Key;
  Bits key = key_of(x);
  return static_cast<std::make_signed_t<Bits>>((descending ? ~key : key) ^ Bits{1} << (8 * sizeof(Bits) - 1));
}

// How many keys of a line are before each of its keys, which is its place in order: all are compared with all, without a branch and a lane
// for each of so many lines, in vectors of so many bytes. Equal keys keep the order of positions.
template <int bytes, class Key>
[[gnu::always_inline]] inline void places_of_lines(const Key* keys, int64_t n, int64_t lines, Key* places) {
  using Lanes [[gnu::vector_size(bytes)]] = Key;
  for (int64_t lane = 0; lane < lines; lane += bytes / static_cast<int64_t>(sizeof(Key))) {
    auto load = [&](int64_t i) __attribute__((always_inline)) {
      Lanes found;
      std::memcpy(&found, keys + i * lines_together + lane, bytes);
      return found;
    };
    for (int64_t i = 0; i < n; ++i) {
      Lanes mine = load(i), count = {};
      for (int64_t j = 0; j < i; ++j) count -= load(j) <= mine;
      for (int64_t j = i + 1; j < n; ++j) count -= load(j) < mine;
      std::memcpy(places + i * lines_together + lane, &count, bytes);
    }
  }
}

// The same of the keys of one line, which are beside each other: a lane for each key. There are whole vectors of them.
template <class Key>
[[gnu::always_inline]] inline void places_of_line(const Key* __restrict keys, int64_t n, Key* __restrict places) {
  auto count = static_cast<Key>(n), padded = static_cast<Key>((n + 15) & ~int64_t{15});
  std::fill_n(places, padded, Key{0});
  for (Key j = 0; j < count; ++j) {
    Key key = keys[j];
    for (Key i = 0; i < padded; ++i) {
      Key earlier = key < keys[i], tied = key == keys[i], behind = j < i;
      places[i] += earlier | (tied & behind);
    }
  }
}

#if defined(__x86_64__)
template <class Key>
[[gnu::target("avx2")]] void places_in_long_vectors(const Key* keys, int64_t n, int64_t lines, Key* places) {
  if (lines == 1) return places_of_line(keys, n, places);
  places_of_lines<32>(keys, n, lines, places);
}
#endif

// Short lines, up to `lines_together` of them: their keys, lane by lane (of one line beside each other), and the places of these.
template <class T>
class ShortLines {
 public:
  void begin(int64_t lines) {
    lines_ = lines;
    pitch_ = lines == 1 ? 1 : lines_together;
  }

  void take(int64_t lane, const T* line, int64_t n, int64_t stride, bool descending) {
    for (int64_t i = 0; i < n; ++i) keys_[i * pitch_ + lane] = signed_key(line[i * stride], descending);
  }

  void sort(int64_t n) {
#if defined(__x86_64__)
    static const bool long_vectors = cpu_has("avx2");
    if (long_vectors) return places_in_long_vectors(keys_, n, lines_, places_);
#endif
    if (lines_ == 1) return places_of_line(keys_, n, places_);
    places_of_lines<16>(keys_, n, lines_, places_);
  }

  void positions(int64_t lane, std::vector<int64_t>& order) const {
    for (size_t i = 0; i < order.size(); ++i)
      order[static_cast<size_t>(places_[static_cast<int64_t>(i) * pitch_ + lane])] = static_cast<int64_t>(i);
  }

 private:
  using Key = decltype(signed_key(T{}, false));
  int64_t lines_ = 0, pitch_ = 0;
  alignas(64) Key keys_[least_by_digits * lines_together] = {};
  alignas(64) Key places_[least_by_digits * lines_together];
};

// For the lines along the axis from one on up to another, their elements' positions in order: f(line's first element, outer
// and inner number, positions). Only the first `wanted` positions of each line are in order.
template <class T, class F>
void each_order(const T* x, const Lines& lines, int64_t from, int64_t to, bool descending, int64_t wanted, F&& f) {
  using Held = std::conditional_t<std::is_arithmetic_v<T>, T, float>;
  Choice<Held> choice;
  Digits<T> memory;
  std::vector<int64_t> order;
  auto chosen = [&](const T* line) {
    const Held* neighbours;
    if constexpr (std::is_same_v<T, Held>) neighbours = line;
    if (lines.inner != 1 || !std::is_same_v<T, Held>) {
      choice.line.resize(static_cast<size_t>(lines.size));
      for (int64_t at = 0; at < lines.size; ++at)
        choice.line[static_cast<size_t>(at)] = static_cast<Held>(line[at * lines.inner]);
      neighbours = choice.line.data();
    }
    return descending ? choose_first<true>(neighbours, lines.size, wanted, choice, order.data())
                      : choose_first<false>(neighbours, lines.size, wanted, choice, order.data());
  };
  auto first = [&](int64_t number) { return x + number / lines.inner * lines.size * lines.inner + number % lines.inner; };
  if (wanted == lines.size && lines.size < least_by_digits) {
    ShortLines<T> block;
    order.resize(static_cast<size_t>(lines.size));
    while (from < to) {
      int64_t count = to - from < least_together ? 1 : std::min(lines_together, to - from);
      block.begin(count);
      for (int64_t n = 0; n < count; ++n) block.take(n, first(from + n), lines.size, lines.inner, descending);
      block.sort(lines.size);
      for (int64_t n = 0; n < count; ++n, ++from) {
        block.positions(n, order);
        f(first(from), from / lines.inner, from % lines.inner, order);
      }
    }
    return;
  }
  for (int64_t number = from; number < to; ++number) {
    int64_t o = number / lines.inner, i = number % lines.inner;
    const T* line = first(number);
    auto strictly = [&](int64_t a, int64_t b) {
      const T &u = line[a * lines.inner], &v = line[b * lines.inner];
      return descending ? before(v, u) : before(u, v);
    };
    if (wanted < lines.size) {  // room for all positions would be several times the line
      order.resize(static_cast<size_t>(wanted));
      if (chosen(line)) {
        f(line, o, i, order);
        continue;
      }
      if (wanted <= most_inserted) {
        Insertion insertion(order.data(), wanted, strictly);
        for (int64_t at = 0; at < lines.size; ++at) insertion.add(at);
        f(line, o, i, order);
        continue;
      }
    }
    order.resize(static_cast<size_t>(lines.size));
    if (lines.size <= UINT32_MAX) {
      sort_by_digits(line, lines.inner, descending, memory, order);
      f(line, o, i, order);
      continue;
    }
    std::iota(order.begin(), order.end(), 0);
    // Ties keep their positions' order, which also makes the order total: partial and full sorts agree.
    auto less = [&](int64_t a, int64_t b) {
      if (strictly(a, b)) return true;
      if (strictly(b, a)) return false;
      return a < b;
    };
    if (wanted < lines.size)
      std::partial_sort(order.begin(), order.begin() + wanted, order.end(), less);
    else
      std::sort(order.begin(), order.end(), less);
    f(line, o, i, order);
  }
}

// Elements that are worth the attention of another thread.
constexpr int64_t elements_of_piece = 4096;

// f(from, to) for pieces of n lines of so many elements, by as many threads as may take part. What it does for a line must not
// depend on the piece.
template <class F>
void share_lines(relay_kernel_context* context, int64_t n, int64_t size, F&& f) {
  relay_parallel_body body = [](relay_kernel_context*, void* env, int64_t from, int64_t to, int64_t) -> int32_t {
    try {
      (*static_cast<std::remove_reference_t<F>*>(env))(from, to);
      return 0;
    } catch (...) {  // there was no memory to work in
      return 1;
    }
  };
  int64_t grain = std::max<int64_t>(elements_of_piece / std::max<int64_t>(size, 1), 1);
  if (parallel_for(context, body, &f, n, grain) != 0) throw std::bad_alloc();
}

// --- the routines ------------------------------------------------------------------------------------------------

Value unique_values(const Value* arguments) {
  Input x(arguments[0], "unique");
  if (x.rank() != 1) fail(Status::failed, "unique takes a vector and got rank %u", x.rank());
  return with_type(x.dtype(), "unique", [&]<class T>(T*) {
    std::vector<T> values = x.elements<T>();
    if (values.size() >= least_by_digits && values.size() <= UINT32_MAX) {
      Digits<T> memory;
      std::vector<int64_t> order(values.size());
      sort_by_digits(values.data(), 1, false, memory, order);
      const auto& in_order = memory.from;
      std::vector<T> found;
      for (size_t i = 0; i < in_order.size(); ++i)
        if (i == 0 || in_order[i].key != in_order[i - 1].key) found.push_back(values[in_order[i].at]);
      values = std::move(found);
    } else {
      std::sort(values.begin(), values.end(), before<T>);
      auto same = [](const T& a, const T& b) { return !before(a, b) && !before(b, a); };
      values.erase(std::unique(values.begin(), values.end(), same), values.end());
    }
    auto n = static_cast<int64_t>(values.size());
    Tensor* out = new_host_tensor(x.dtype(), 1, &n);
    if (n > 0) std::memcpy(static_cast<void*>(out->data()), values.data(), values.size() * sizeof(T));
    return Value::of(out);
  });
}

Value nonzero_indices(const Value* arguments, const char* routine, bool by_row) {
  Input x(arguments[0], routine);
  return with_type(x.dtype(), routine, [&]<class T>(T*) {
    std::vector<T> copy;
    const T* values = x.aligned<T>(copy);
    int64_t rank = x.rank(), line = rank > 0 ? x.shape()[rank - 1] : 1, lines = 1, n = 0;
    for (int64_t axis = 0; axis + 1 < rank; ++axis) lines *= x.shape()[axis];
    for (int64_t i = 0; i < lines * line; ++i) n += nonzero_element(values[i]);
    int64_t shape[2] = {by_row ? n : rank, by_row ? rank : n};
    Tensor* out = new_host_tensor(DType::int64_, 2, shape);
    auto* indices = data<int64_t>(out);
    if (rank == 0 || n == 0) return Value::of(out);
    int64_t next_row = by_row ? rank : 1, next_axis = by_row ? 1 : n;
    std::vector<int64_t> at(static_cast<size_t>(rank)), inside(static_cast<size_t>(line));
    for (int64_t row = 0; row < lines; ++row, values += line) {
      // Each place is written, and kept where the next one is written behind it: no branch asks what the data decide.
      int64_t found = 0;
      for (int64_t i = 0; i < line; ++i) {
        inside[static_cast<size_t>(found)] = i;
        found += nonzero_element(values[i]);
      }
      for (int64_t axis = 0; axis < rank; ++axis)
        for (int64_t i = 0; i < found; ++i)
          indices[axis * next_axis + i * next_row] =
              axis + 1 < rank ? at[static_cast<size_t>(axis)] : inside[static_cast<size_t>(i)];
      indices += found * next_row;
      for (int64_t axis = rank - 1; axis-- > 0;) {
        if (++at[static_cast<size_t>(axis)] < x.shape()[axis]) break;
        at[static_cast<size_t>(axis)] = 0;
      }
    }
    return Value::of(out);
  });
}
Value nonzero(const Value* arguments) { return nonzero_indices(arguments, "nonzero", false); }
Value argwhere(const Value* arguments) { return nonzero_indices(arguments, "argwhere", true); }

// The values, indices, or both of the first `k` of every line in order.
Value ordered(relay_kernel_context* context, const Input& x, uint32_t axis, bool descending, int64_t k,
              bool want_values, bool want_indices, DType index_dtype, const char* routine) {
  return with_type(x.dtype(), routine, [&]<class T>(T*) {
    std::vector<T> copy;
    const T* elements = x.aligned<T>(copy);
    Lines lines(x, axis);
    int64_t shape[max_rank];
    std::copy(x.shape(), x.shape() + x.rank(), shape);
    shape[axis] = k;
    Owned values, indices;
    if (want_values) values = Owned(Value::of(new_host_tensor(x.dtype(), x.rank(), shape)));
    if (want_indices) indices = Owned(Value::of(new_host_tensor(index_dtype, x.rank(), shape)));
    auto put = [&](const T* line, int64_t o, int64_t i, const auto& order) {
      int64_t first = o * k * lines.inner + i, step = lines.inner;
      if (want_values) {
        T* out = data<T>(as_tensor(values.get())) + first;
        for (int64_t j = 0; j < k; ++j) out[j * step] = line[order[static_cast<size_t>(j)] * step];
      }
      if (want_indices) {
        Tensor* out = as_tensor(indices.get());
        for (int64_t j = 0; j < k; ++j) put_index(out, first + j * step, order[static_cast<size_t>(j)]);
      }
    };
    share_lines(context, lines.outer * lines.inner, lines.size, [&](int64_t from, int64_t to) {
      each_order<T>(elements, lines, from, to, descending, k, put);
    });
    if (!want_indices) return values.take();
    if (!want_values) return indices.take();
    return tuple(values, indices);
  });
}

Value sort_values(const Value* arguments, relay_kernel_context* context) {
  Input x(arguments[0], "sort");
  uint32_t axis = to_axis(arguments[1], x.rank(), "sort");
  return ordered(context, x, axis, !to_flag(arguments[2]), x.shape()[axis], true, false, DType::int64_, "sort");
}

Value argsort(const Value* arguments, relay_kernel_context* context) {
  Input x(arguments[0], "argsort");
  uint32_t axis = to_axis(arguments[1], x.rank(), "argsort");
  return ordered(context, x, axis, !to_flag(arguments[2]), x.shape()[axis], false, true,
                 to_index_dtype(arguments[3], "argsort"), "argsort");
}

Value topk(const Value* arguments, relay_kernel_context* context) {
  Input x(arguments[0], "topk");
  int64_t k = to_int64(arguments[1]);
  uint32_t axis = to_axis(arguments[2], x.rank(), "topk");
  if (k < 0) fail(Status::failed, "topk: k is %lld", static_cast<long long>(k));
  return ordered(context, x, axis, !to_flag(arguments[3]), std::min(k, x.shape()[axis]), true, true,
                 to_index_dtype(arguments[4], "topk"), "topk");
}

struct Box {
  double y1, x1, y2, x2;
  double area() const { return (y2 - y1) * (x2 - x1); }
};

double overlap(const Box& a, const Box& b) {
  double height = std::min(a.y2, b.y2) - std::max(a.y1, b.y1), width = std::min(a.x2, b.x2) - std::max(a.x1, b.x1);
  if (height <= 0 || width <= 0) return 0;
  double both = height * width;
  return both / (a.area() + b.area() - both);
}

Value non_max_suppression(const Value* arguments) {
  constexpr const char* me = "non_max_suppression";
  Input boxes(arguments[0], me), scores(arguments[1], me);
  if (boxes.rank() != 2 || scores.rank() != 1 || boxes.shape()[1] != 4 || boxes.shape()[0] != scores.shape()[0])
    fail(Status::failed, "%s takes boxes of shape (n, 4) and scores of shape (n,); got %s and %s", me,
         describe(arguments[0]).c_str(), describe(arguments[1]).c_str());
  double iou = to_double(arguments[2], me), least = to_double(arguments[3], me);
  int64_t most = to_int64(arguments[4]), n = scores.shape()[0];
  if (most < 0) most = n;

  auto as_doubles = [](const Input& x) {
    return with_type(x.dtype(), me, [&]<class T>(T*) {
      std::vector<T> elements = x.elements<T>();
      std::vector<double> out(elements.size());
      for (size_t i = 0; i < out.size(); ++i) {
        if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Brain>)
          out[i] = static_cast<double>(static_cast<float>(elements[i]));
        else
          out[i] = static_cast<double>(elements[i]);
      }
      return out;
    });
  };
  std::vector<double> score = as_doubles(scores), corner = as_doubles(boxes);
  auto box = [&](int64_t i) {
    const double* at = corner.data() + 4 * i;
    return Box{std::min(at[0], at[2]), std::min(at[1], at[3]), std::max(at[0], at[2]), std::max(at[1], at[3])};
  };
  std::vector<int64_t> order;
  for (int64_t i = 0; i < n; ++i)
    if (score[static_cast<size_t>(i)] > least) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return before(score[static_cast<size_t>(b)], score[static_cast<size_t>(a)]);
  });

  Storage* storage = new_storage(n * 8, storage_alignment, host_device);  // the upper bound
  auto* kept = reinterpret_cast<int64_t*>(storage->data);
  int64_t count = 0;
  for (int64_t candidate : order) {
    if (count == most) break;
    Box mine = box(candidate);
    bool suppressed = std::any_of(kept, kept + count, [&](int64_t other) { return overlap(mine, box(other)) > iou; });
    if (!suppressed) kept[count++] = candidate;
  }
  return Value::of(new_tensor(storage, 0, DType::int64_, 1, &count));
}

// `data` and the rows after it: several, or one, of one axis less. Where nobody reads `data` any more and there is room, it grows itself.
Value append(const Value* arguments) {
  constexpr const char* me = "append";
  Input data(arguments[0], me);
  const Value& given = arguments[1];
  bool element = given.kind == Kind::scalar;  // one row of a vector, as it is in its register
  std::optional<Input> rows;
  if (!element) rows.emplace(given, me);
  uint32_t rank = data.rank(), added = element ? 0 : rows->rank();
  DType dtype = element ? given.dtype : rows->dtype();
  if (rank == 0 || rank - added > 1 || data.dtype() != dtype ||
      (rank > 1 && !std::equal(data.shape() + 1, data.shape() + rank, rows->shape() + (added + 1 - rank))))
    fail(Status::failed, "append takes tensors of one dtype that agree in all axes but the first; got %s and %s",
         describe(arguments[0]).c_str(), describe(given).c_str());
  if (bits(dtype) < 8) fail(Status::failed, "append: %s elements share bytes", dtype_name(dtype));
  int64_t count = added == rank ? rows->shape()[0] : 1, more = element ? bits(dtype) / 8 : (*rows)->bytes();
  const std::byte* from = element ? reinterpret_cast<const std::byte*>(&given.bits) : (*rows)->data();
  int64_t before = data->bytes(), end = data->offset + before, claimed = end;
  Storage* storage = data->storage;
  if (storage->capacity - end >= more &&
      storage->grown.compare_exchange_strong(claimed, end + more, std::memory_order_acq_rel)) {
    std::memcpy(storage->data + end, from, static_cast<size_t>(more));
    auto* own = cast<Tensor>(arguments[0], ObjectType::tensor);
    if (to_int64(arguments[2]) != 0 && own != nullptr && unique(own)) {
      own->shape()[0] += count;
      retain(static_cast<Object*>(own));
      return Value::of(own);
    }
    retain(static_cast<Object*>(storage));
  } else {
    // Room for half as much again: appending is linear in all.
    storage = new_storage(before + before / 2 + more + storage_alignment, storage_alignment, host_device);
    std::copy_n(data->data(), before, storage->data);
    std::copy_n(from, more, storage->data + before);
    storage->grown.store(before + more, std::memory_order_relaxed);
    end = before;
  }
  int64_t shape[max_rank];
  std::copy(data.shape(), data.shape() + rank, shape);
  shape[0] += count;
  return Value::of(new_tensor(storage, end - before, dtype, rank, shape));
}

// A tensor with room behind it for so many rows more, which `append` then uses. A gigabyte at most: more is asked for when it is needed.
Value reserve(const Value* arguments) {
  constexpr const char* me = "rows.reserve";
  constexpr int64_t most = int64_t{1} << 30;
  Input data(arguments[0], me);
  uint32_t rank = data.rank();
  if (rank == 0 || bits(data.dtype()) < 8)
    fail(Status::failed, "rows.reserve takes a tensor with rows of whole bytes; got %s", describe(arguments[0]).c_str());
  int64_t before = data->bytes(), width = bits(data.dtype()) / 8;
  for (uint32_t i = 1; i < rank; ++i) width *= data.shape()[i];
  int64_t count = std::clamp<int64_t>(to_int64(arguments[1]), 0, width > 0 ? most / width : 0);
  Storage* storage = new_storage(before + count * width + storage_alignment, storage_alignment, host_device);
  std::copy_n(data->data(), before, storage->data);
  storage->grown.store(before, std::memory_order_relaxed);
  return Value::of(new_tensor(storage, 0, data.dtype(), rank, data.shape()));
}

// A routine that one thread runs.
template <Value (*routine)(const Value*)>
Value alone(const Value* arguments, relay_kernel_context*) {
  return routine(arguments);
}

constexpr Routine routines[] = {
    {"append", 3, alone<append>, true},
    {"rows.reserve", 2, alone<reserve>, true},
    {"unique", 1, alone<unique_values>, false},
    {"nonzero", 1, alone<nonzero>, false},
    {"argwhere", 1, alone<argwhere>, false},
    {"sort", 3, sort_values, false},
    {"argsort", 4, argsort, false},
    {"topk", 5, topk, false},
    {"non_max_suppression", 5, alone<non_max_suppression>, false},
    {"rows.linearise", 3, rows_linearise, false},
    {"rows.slice", 5, alone<rows_slice>, true},
    {"rows.update", 6, alone<rows_update>, true},
    {"rows.room", 5, alone<rows_room>, true},
    {"rows.scatter", 4, alone<rows_scatter>, true},
    {"rows.add", 4, alone<rows_add>, true},
    {"rows.add_from", 4, alone<rows_add_from>, true},
    {"rows.clear", 4, alone<rows_clear>, true},
    {"rows.empty", 5, alone<rows_empty>, true},
    {"rows.repeat", 4, alone<rows_repeat>, true},
    {"rows.segment_sum", 7, alone<rows_segment_sum>, true},
    {"rows.gather_sum", 8, alone<rows_gather_sum>, true},
    {"rows.assemble", 4, alone<rows_assemble>, false},
    {"rows.requests", 3, alone<rows_requests>, false},
};

}  // namespace

const Routine* find_routine(std::string_view name) {
  for (const Routine& routine : routines)
    if (name == routine.name) return &routine;
  return nullptr;
}

}  // namespace relay
