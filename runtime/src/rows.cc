// Rows of levels: what is done with the tables of a walk (linearise.h).
#include <algorithm>
#include <cstring>

#include "linearise.h"
#include "operations.h"
#include "relay/cpu.h"
#include "relay/device.h"
#include "relay/error.h"
#include "relay/object.h"

namespace relay {
namespace {

template <class T>
T* data(Tensor* tensor) {
  return reinterpret_cast<T*>(tensor->data());
}

struct Range {
  int64_t first, end, base;  // of all rows of the clause's function; the clause's own begin at base
};

// The rows of a clause at a level, or all of them for level -1.
Range range_of(const Value& offsets_value, const Value& level_value, const Value& clause_value) {
  Tensor* offsets = as_tensor(offsets_value);
  if (offsets == nullptr || offsets->dtype != DType::int64_ || offsets->rank != 2)
    fail(Status::failed, "expected a table of rows and got %s", describe(offsets_value).c_str());
  int64_t level = to_int64(level_value), clause = to_int64(clause_value);
  int64_t levels = offsets->shape()[0] - 1, clauses = offsets->shape()[1];
  if (level < -1 || level >= levels || clause < 0 || clause >= clauses)
    fail(Status::failed, "there is no level %lld of clause %lld", static_cast<long long>(level),
         static_cast<long long>(clause));
  const auto* table = data<int64_t>(offsets);
  auto at = [&](int64_t l) { return table[l * clauses + clause]; };
  return level < 0 ? Range{at(0), at(levels), at(0)} : Range{at(level), at(level + 1), at(0)};
}

Tensor* need_rows(const Value& v, const char* routine) {
  Tensor* tensor = as_tensor(v);
  if (tensor == nullptr || tensor->rank == 0)
    fail(Status::failed, "%s needs a tensor of rows and got %s", routine, describe(v).c_str());
  if (tensor->storage->device != host_device) fail(Status::failed, "%s needs a tensor on the host", routine);
  return tensor;
}

// Whether nobody else reads a state that dies, so that it can be written to.
bool is_ours(Tensor* state, const Value& dies) {
  return to_int64(dies) != 0 && unique(state) && unique(state->storage) && !state->storage->read_only;
}

// A state to write rows of: itself where nobody else reads it, and a copy otherwise.
Tensor* writable(Tensor* state, const Value& dies) {
  if (is_ours(state, dies)) {
    retain(static_cast<Object*>(state));
    return state;
  }
  Tensor* out = new_host_tensor(state->dtype, state->rank, state->shape());
  std::memcpy(out->data(), state->data(), static_cast<size_t>(state->bytes()));
  return out;
}

int64_t row_bytes(Tensor* tensor) {
  return packed_bytes(tensor->dtype, count_elements(tensor->rank - 1u, tensor->shape() + 1));
}

// to = ((start + item(0)) + item(1)) ..., element by element, in one pass: four vectors of so many bytes at once, then
// one. The last one ends with the row and may compute again what is before it.
template <class T, int64_t bytes, class Item>
[[gnu::always_inline]] inline void sum_items(T* to, const T* start, Item item, int64_t count, int64_t width) {
  typedef T Vector __attribute__((vector_size(bytes)));
  constexpr int64_t lanes = bytes / static_cast<int64_t>(sizeof(T));
  auto read = [](const T* p) __attribute__((always_inline)) {  // from anywhere
    Vector v;
    std::memcpy(&v, p, sizeof v);
    return v;
  };
  auto write = [](T* p, Vector v) __attribute__((always_inline)) { std::memcpy(p, &v, sizeof v); };
  auto one = [&](int64_t j) __attribute__((always_inline)) {
    Vector sum = read(start + j);
    for (int64_t i = 0; i < count; ++i) sum += read(item(i) + j);
    write(to + j, sum);
  };
  int64_t j = 0;
  for (; j + 4 * lanes <= width; j += 4 * lanes) {
    const T* from = start + j;
    Vector a = read(from), b = read(from + lanes), c = read(from + 2 * lanes), d = read(from + 3 * lanes);
    for (int64_t i = 0; i < count; ++i) {
      const T* next = item(i) + j;
      a += read(next);
      b += read(next + lanes);
      c += read(next + 2 * lanes);
      d += read(next + 3 * lanes);
    }
    write(to + j, a);
    write(to + j + lanes, b);
    write(to + j + 2 * lanes, c);
    write(to + j + 3 * lanes, d);
  }
  for (; j + lanes <= width; j += lanes) one(j);
  if (j < width && width >= lanes) {
    one(width - lanes);
    return;
  }
  for (; j < width; ++j) {
    T sum = start[j];
    for (int64_t i = 0; i < count; ++i) sum = static_cast<T>(sum + item(i)[j]);
    to[j] = sum;
  }
}

// Rows to add up: `index` says where in `values` the items are (clipped to the rows there are); null where they are all
// of it.
template <class T>
struct Segments {
  T* to;
  const T *start, *values;
  const int64_t *index, *starts;
  int64_t rows, width, last;
  bool one_start, backwards;
};

// Rows all over a state are asked for so many items ahead, and so many bytes of each.
constexpr int64_t items_ahead = 6, bytes_ahead = 1024;

template <class T, int64_t bytes>
[[gnu::always_inline]] inline void sum_by(const Segments<T>& s) {
  int64_t width = s.width, asked = 0, items = s.starts[s.rows] - s.starts[0];
  int64_t line_end = std::min(width * static_cast<int64_t>(sizeof(T)), bytes_ahead);
  for (int64_t r = 0; r < s.rows; ++r) {
    int64_t item = s.starts[r] - s.starts[0], count = s.starts[r + 1] - s.starts[r];
    int64_t nearest = s.backwards && count > 0 ? item + count - 1 : item, step = s.backwards ? -1 : 1;
    T* to = s.to + r * width;
    const T* start = s.start + (s.one_start ? 0 : r * width);
    if (s.index == nullptr) {
      const T* first = s.values + nearest * width;
      sum_items<T, bytes>(to, start, [=](int64_t i) { return first + i * step * width; }, count, width);
    } else {
      for (; asked < std::min(items, item + count + items_ahead); ++asked) {
        const T* row = s.values + std::clamp<int64_t>(s.index[asked], 0, s.last) * width;
        for (int64_t line = 0; line < line_end; line += 64)
          __builtin_prefetch(reinterpret_cast<const std::byte*>(row) + line);
      }
      const int64_t* first = s.index + nearest;
      auto at = [=, &s](int64_t i) { return s.values + std::clamp<int64_t>(first[i * step], 0, s.last) * width; };
      sum_items<T, bytes>(to, start, at, count, width);
    }
  }
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("avx512f,avx512bw")]] void sum_in_long_vectors(const Segments<T>& s) {
  sum_by<T, 64>(s);
}
template <class T>
[[gnu::target("avx2")]] void sum_in_vectors(const Segments<T>& s) {
  sum_by<T, 32>(s);
}
#endif

template <class T>
void sum_segments(const Segments<T>& s) {
#if defined(__x86_64__)
  static const bool has_avx512 = cpu_has("avx512f") && cpu_has("avx512bw"), has_avx2 = cpu_has("avx2");
  if (has_avx512) return sum_in_long_vectors(s);
  if (has_avx2) return sum_in_vectors(s);
#endif
  sum_by<T, 16>(s);
}

// init, values, the rows of these to add up (or null), starts, offsets, level, clause, backwards
Value sums_of_segments(const char* me, const Value& start, const Value& given, Tensor* index, const Value* arguments) {
  Owned boxed(start.kind == Kind::scalar ? Value::of(box_scalar(start)) : Value{});
  Tensor* init = start.kind == Kind::scalar ? as_tensor(boxed.get()) : as_tensor(start);
  Tensor *values = need_rows(given, me), *starts_tensor = need_rows(arguments[0], me);
  Range range = range_of(arguments[1], arguments[2], arguments[3]);
  int64_t first = range.first - range.base, count = range.end - range.first;
  bool each = init != nullptr && init->rank == values->rank;
  if (init == nullptr || init->dtype != values->dtype || starts_tensor->dtype != DType::int64_ ||
      starts_tensor->shape()[0] < first + count + 1 || (!each && init->rank + 1 != values->rank) ||
      !std::equal(values->shape() + 1, values->shape() + values->rank, init->shape() + (each ? 1 : 0)) ||
      (each && init->shape()[0] != count) || (index != nullptr && (index->dtype != DType::int64_ || index->rank != 1)))
    fail(Status::failed, "%s: %s and %s do not fit", me, describe(start).c_str(), describe(given).c_str());
  const auto* starts = data<int64_t>(starts_tensor) + first;
  int64_t items = starts[count] - starts[0];
  if (items > (index == nullptr ? values : index)->shape()[0] || (items > 0 && values->shape()[0] == 0))
    fail(Status::failed, "%s: too few rows to sum", me);
  const int64_t* at = index == nullptr ? nullptr : data<int64_t>(index);
  int64_t shape[max_rank];
  std::copy(values->shape(), values->shape() + values->rank, shape);
  shape[0] = count;
  Owned out(Value::of(new_host_tensor(values->dtype, values->rank, shape)));
  auto run = [&]<class T>(T*) {
    int64_t width = count_elements(values->rank - 1u, values->shape() + 1);
    sum_segments<T>({data<T>(as_tensor(out.get())), data<T>(init), data<T>(values), at, starts, count, width,
                     values->shape()[0] - 1, !each, to_int64(arguments[4]) != 0});
  };
  switch (values->dtype) {
    case DType::float32_: run(static_cast<float*>(nullptr)); break;
    case DType::float64_: run(static_cast<double*>(nullptr)); break;
    case DType::int8_:
    case DType::uint8_: run(static_cast<uint8_t*>(nullptr)); break;
    case DType::int16_:
    case DType::uint16_: run(static_cast<uint16_t*>(nullptr)); break;
    case DType::int32_:
    case DType::uint32_: run(static_cast<uint32_t*>(nullptr)); break;
    case DType::int64_:
    case DType::uint64_: run(static_cast<uint64_t*>(nullptr)); break;
    default: fail(Status::failed, "%s does not take tensors of %s", me, dtype_name(values->dtype));
  }
  return out.take();
}

// Rows to add to those of a table at `index` (clipped to the rows there are), or from row `first` on where that is null, in order.
template <class T>
struct Additions {
  T* table;
  const T* rows;
  const int64_t* index;
  int64_t first, count, width, last;
};

template <class T, int64_t bytes>
[[gnu::always_inline]] inline void add_by(const Additions<T>& a) {
  typedef T Vector __attribute__((vector_size(bytes)));
  constexpr int64_t lanes = bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t r = 0; r < a.count; ++r) {
    T* to = a.table + (a.index == nullptr ? a.first + r : std::clamp<int64_t>(a.index[r], 0, a.last)) * a.width;
    const T* from = a.rows + r * a.width;
    int64_t j = 0;
    for (; j + lanes <= a.width; j += lanes) {
      Vector sum, more;
      std::memcpy(&sum, to + j, sizeof sum);
      std::memcpy(&more, from + j, sizeof more);
      sum += more;
      std::memcpy(to + j, &sum, sizeof sum);
    }
    for (; j < a.width; ++j) to[j] = static_cast<T>(to[j] + from[j]);
  }
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("avx512f,avx512bw")]] void add_in_long_vectors(const Additions<T>& a) {
  add_by<T, 64>(a);
}
template <class T>
[[gnu::target("avx2")]] void add_in_vectors(const Additions<T>& a) {
  add_by<T, 32>(a);
}
#endif

template <class T>
void add_rows(const Additions<T>& a) {
#if defined(__x86_64__)
  static const bool has_avx512 = cpu_has("avx512f") && cpu_has("avx512bw"), has_avx2 = cpu_has("avx2");
  if (has_avx512) return add_in_long_vectors(a);
  if (has_avx2) return add_in_vectors(a);
#endif
  add_by<T, 16>(a);
}

// Whether these are rows as the table has them.
bool are_rows_of(Tensor* table, Tensor* rows) {
  return table->dtype == rows->dtype && table->rank == rows->rank &&
         std::equal(rows->shape() + 1, rows->shape() + rows->rank, table->shape() + 1);
}

// The first of so many rows of a table, which a scalar says.
int64_t first_row(const char* me, Tensor* table, const Value& begin, int64_t count) {
  int64_t first = to_int64(begin);
  if (first < 0 || first > table->shape()[0] - count)
    fail(Status::failed, "%s: there are no %lld rows from %lld on in %lld", me, static_cast<long long>(count),
         static_cast<long long>(first), static_cast<long long>(table->shape()[0]));
  return first;
}

Value added(const char* me, Tensor* table, Tensor* rows, Tensor* index, int64_t first, const Value& dies) {
  int64_t count = rows->shape()[0], width = count_elements(rows->rank - 1u, rows->shape() + 1);
  if (count == 0 || width == 0) {
    retain(static_cast<Object*>(table));
    return Value::of(table);
  }
  Owned out(Value::of(writable(table, dies)));
  auto run = [&]<class T>(T*) {
    add_rows<T>({data<T>(as_tensor(out.get())), data<T>(rows), index == nullptr ? nullptr : data<int64_t>(index), first,
                 count, width, table->shape()[0] - 1});
  };
  switch (table->dtype) {
    case DType::float32_: run(static_cast<float*>(nullptr)); break;
    case DType::float64_: run(static_cast<double*>(nullptr)); break;
    default: fail(Status::failed, "%s does not take tensors of %s", me, dtype_name(table->dtype));
  }
  return out.take();
}

}  // namespace

Value rows_slice(const Value* arguments) {
  Tensor* tensor = need_rows(arguments[0], "rows.slice");
  Range range = range_of(arguments[1], arguments[2], arguments[3]);
  int64_t first = to_int64(arguments[4]) != 0 ? range.first : range.first - range.base;
  int64_t count = range.end - range.first;
  if (first + count > tensor->shape()[0])
    fail(Status::failed, "rows.slice: there are no rows up to %lld in %s", static_cast<long long>(first + count),
         describe(arguments[0]).c_str());
  int64_t shape[max_rank];
  std::copy(tensor->shape(), tensor->shape() + tensor->rank, shape);
  shape[0] = count;
  retain(static_cast<Object*>(tensor->storage));
  return Value::of(
      new_tensor(tensor->storage, tensor->offset + first * row_bytes(tensor), tensor->dtype, tensor->rank, shape));
}

Value rows_update(const Value* arguments) {
  Tensor* state = need_rows(arguments[0], "rows.update");
  Tensor* rows = need_rows(arguments[1], "rows.update");
  Range range = range_of(arguments[2], arguments[3], arguments[4]);
  int64_t count = range.end - range.first;
  if (state->dtype != rows->dtype || state->rank != rows->rank || rows->shape()[0] != count ||
      !std::equal(rows->shape() + 1, rows->shape() + rows->rank, state->shape() + 1) ||
      range.end > state->shape()[0])
    fail(Status::failed, "rows.update: %s are not rows %lld to %lld of %s", describe(arguments[1]).c_str(),
         static_cast<long long>(range.first), static_cast<long long>(range.end), describe(arguments[0]).c_str());
  int64_t width = row_bytes(state);
  if (rows->storage == state->storage && rows->offset == state->offset + range.first * width) {  // they are in their place
    retain(static_cast<Object*>(state));
    return Value::of(state);
  }
  Tensor* out = writable(state, arguments[5]);
  if (count > 0) std::memcpy(out->data() + range.first * width, rows->data(), static_cast<size_t>(count * width));
  return Value::of(out);
}

Value rows_room(const Value* arguments) {
  Tensor* state = need_rows(arguments[0], "rows.room");
  Range range = range_of(arguments[1], arguments[2], arguments[3]);
  if (range.end > state->shape()[0])
    fail(Status::failed, "rows.room: there are no rows up to %lld in %s", static_cast<long long>(range.end),
         describe(arguments[0]).c_str());
  int64_t shape[max_rank];
  std::copy(state->shape(), state->shape() + state->rank, shape);
  shape[0] = range.end - range.first;
  if (!is_ours(state, arguments[4])) return Value::of(new_host_tensor(state->dtype, state->rank, shape));
  retain(static_cast<Object*>(state->storage));
  return Value::of(new_tensor(state->storage, state->offset + range.first * row_bytes(state), state->dtype,
                              state->rank, shape));
}

Value rows_scatter(const Value* arguments) {
  Tensor* state = need_rows(arguments[0], "rows.scatter");
  Tensor* rows = need_rows(arguments[1], "rows.scatter");
  Tensor* index = need_rows(arguments[2], "rows.scatter");
  int64_t count = rows->shape()[0], all = state->shape()[0];
  if (state->dtype != rows->dtype || state->rank != rows->rank || index->dtype != DType::int64_ || index->rank != 1 ||
      index->shape()[0] != count || !std::equal(rows->shape() + 1, rows->shape() + rows->rank, state->shape() + 1))
    fail(Status::failed, "rows.scatter: %s are not rows of %s, one for each of %s", describe(arguments[1]).c_str(),
         describe(arguments[0]).c_str(), describe(arguments[2]).c_str());
  const auto* to = data<int64_t>(index);
  for (int64_t i = 0; i < count; ++i)
    if (to[i] < 0 || to[i] >= all)
      fail(Status::failed, "rows.scatter: there is no row %lld in %s", static_cast<long long>(to[i]),
           describe(arguments[0]).c_str());
  Tensor* out = writable(state, arguments[3]);
  auto width = static_cast<size_t>(row_bytes(state));
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(out->data() + static_cast<size_t>(to[i]) * width, rows->data() + static_cast<size_t>(i) * width, width);
  return Value::of(out);
}

Value rows_add(const Value* arguments) {
  constexpr const char* me = "rows.add";
  Tensor *table = need_rows(arguments[0], me), *rows = need_rows(arguments[1], me), *index = need_rows(arguments[2], me);
  int64_t count = rows->shape()[0];
  if (!are_rows_of(table, rows) || index->dtype != DType::int64_ || index->rank != 1 || index->shape()[0] != count)
    fail(Status::failed, "%s: %s are not rows of %s, one for each of %s", me, describe(arguments[1]).c_str(),
         describe(arguments[0]).c_str(), describe(arguments[2]).c_str());
  if (count > 0 && table->shape()[0] == 0) fail(Status::failed, "%s: there are no rows to add to", me);
  return added(me, table, rows, index, 0, arguments[3]);
}

Value rows_add_from(const Value* arguments) {
  constexpr const char* me = "rows.add_from";
  Tensor *table = need_rows(arguments[0], me), *rows = need_rows(arguments[1], me);
  if (!are_rows_of(table, rows))
    fail(Status::failed, "%s: %s are not rows of %s", me, describe(arguments[1]).c_str(), describe(arguments[0]).c_str());
  int64_t first = first_row(me, table, arguments[2], rows->shape()[0]);
  return added(me, table, rows, nullptr, first, arguments[3]);
}

Value rows_clear(const Value* arguments) {
  constexpr const char* me = "rows.clear";
  Tensor *table = need_rows(arguments[0], me), *like = need_rows(arguments[2], me);
  int64_t count = like->shape()[0], first = first_row(me, table, arguments[1], count), width = row_bytes(table);
  Tensor* out = writable(table, arguments[3]);
  if (count > 0) std::memset(out->data() + first * width, 0, static_cast<size_t>(count * width));
  return Value::of(out);
}

Value rows_empty(const Value* arguments) {
  Range range = range_of(arguments[0], Value::int64(-1), arguments[1]);
  int64_t shape[max_rank];
  shape[0] = range.end;
  uint32_t rank = 1;
  if (Adt* tuple = as_adt(arguments[2])) {
    for (uint32_t i = 0; i < tuple->size && rank < max_rank; ++i) shape[rank++] = to_int64(tuple->fields()[i]);
  } else if (Tensor* vector = as_tensor(arguments[2]); vector != nullptr && vector->dtype == DType::int64_) {
    for (int64_t i = 0; i < vector->elements() && rank < max_rank; ++i) shape[rank++] = data<int64_t>(vector)[i];
  }
  Tensor* out = new_host_tensor(static_cast<DType>(to_int64(arguments[3])), rank, shape);
  return Value::of(out);
}

Value rows_repeat(const Value* arguments) {
  Owned boxed(arguments[0].kind == Kind::scalar ? Value::of(box_scalar(arguments[0])) : Value{});
  Tensor* tensor = as_tensor(arguments[0].kind == Kind::scalar ? boxed.get() : arguments[0]);
  if (tensor == nullptr || tensor->storage->device != host_device || tensor->rank + 1u >= max_rank)
    fail(Status::failed, "rows.repeat needs a tensor on the host and got %s", describe(arguments[0]).c_str());
  Range range = range_of(arguments[1], arguments[2], arguments[3]);
  int64_t shape[max_rank];
  shape[0] = range.end - range.first;
  std::copy(tensor->shape(), tensor->shape() + tensor->rank, shape + 1);
  Tensor* out = new_host_tensor(tensor->dtype, tensor->rank + 1u, shape);
  auto bytes = static_cast<size_t>(tensor->bytes());
  for (int64_t i = 0; i < shape[0]; ++i) std::memcpy(out->data() + static_cast<size_t>(i) * bytes, tensor->data(), bytes);
  return Value::of(out);
}

Value rows_segment_sum(const Value* arguments) {
  return sums_of_segments("rows.segment_sum", arguments[0], arguments[1], nullptr, arguments + 2);
}

Value rows_gather_sum(const Value* arguments) {
  constexpr const char* me = "rows.gather_sum";
  return sums_of_segments(me, arguments[0], arguments[1], need_rows(arguments[2], me), arguments + 3);
}

}  // namespace relay
