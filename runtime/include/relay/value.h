// Value: what a virtual machine register holds, in 16 bytes.
//
// A rank-0 tensor is usually an unboxed scalar: its dtype and the raw bits of its element, low byte first, so that a
// kernel can read or write the register's payload in place. Everything else is a reference to an Object.
//
// A Value is plain data: copying one takes no reference. The owner of a Value calls retain and release, or holds it in
// an Owned, which does.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "relay/dtype.h"

namespace relay {

struct Object;

enum class Kind : uint8_t { nil, scalar, object };

struct Value {
  Kind kind = Kind::nil;
  DType dtype = DType::bool_;  // of a scalar
  union {
    uint64_t bits = 0;
    Object* object;
  };

  bool is_nil() const { return kind == Kind::nil; }
  bool is_scalar(DType of) const { return kind == Kind::scalar && dtype == of; }
  bool is_object(const Object* which) const { return kind == Kind::object && object == which; }

  static Value scalar(DType dtype, uint64_t bits) {
    Value v;
    v.kind = Kind::scalar;
    v.dtype = dtype;
    v.bits = bits;
    return v;
  }
  static Value int64(int64_t x) { return scalar(DType::int64_, static_cast<uint64_t>(x)); }
  static Value boolean(bool x) { return scalar(DType::bool_, x); }
  static Value float64(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, 8);
    return scalar(DType::float64_, bits);
  }
  // Takes over the caller's reference.
  static Value of(Object* object) {
    Value v;
    v.kind = Kind::object;
    v.object = object;
    return v;
  }
};
static_assert(sizeof(Value) == 16);

void retain(Value v);
void release(Value v);

// A Value that holds its own reference.
class Owned {
 public:
  Owned() = default;
  explicit Owned(Value v) : value_(v) {}  // takes over the reference
  Owned(Owned&& other) noexcept : value_(other.take()) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      Value old = value_;
      value_ = other.take();
      release(old);
    }
    return *this;
  }
  Owned(const Owned& other) : value_(other.value_) { retain(value_); }
  Owned& operator=(const Owned&) = delete;
  ~Owned() { release(value_); }

  const Value& get() const { return value_; }
  Value& slot() { return value_; }
  Value take() { return std::exchange(value_, Value{}); }

 private:
  Value value_;
};

}  // namespace relay
