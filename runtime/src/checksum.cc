// Four independent lanes of multiply and rotate over 32-byte stripes, joined and finished with an avalanche. Each step
// is a bijection of its lane for a fixed input and of its input for a fixed lane, so a change confined to one 8-byte
// word always changes the result.
#include "relay/checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace relay {
namespace {

constexpr uint64_t a = 0x9E3779B97F4A7C15u, b = 0xD6E8FEB86659FD93u, c = 0xA0761D6478BD642Fu;  // odd

uint64_t load(const unsigned char* at) {
  uint64_t word;
  std::memcpy(&word, at, 8);
  return word;
}
uint64_t step(uint64_t lane, uint64_t word) { return std::rotl(lane + word * b, 29) * a; }
uint64_t avalanche(uint64_t x) {
  x = (x ^ (x >> 32)) * b;
  x = (x ^ (x >> 29)) * c;
  return x ^ (x >> 32);
}

}  // namespace

Checksum::Checksum(uint64_t bytes, uint64_t seed) : total_(bytes), lanes_{seed + a, seed ^ b, seed + c, seed - a} {}

void Checksum::update(const void* data, size_t bytes) {
  auto* at = static_cast<const unsigned char*>(data);
  const unsigned char* end = at + bytes;
  auto stripe = [this](const unsigned char* from) {
    for (int i = 0; i < 4; ++i) lanes_[i] = step(lanes_[i], load(from + 8 * i));
  };
  if (held_ != 0) {
    size_t wanted = std::min(sizeof rest_ - held_, bytes);
    std::memcpy(rest_ + held_, at, wanted);
    at += wanted;
    if ((held_ += wanted) < sizeof rest_) return;
    stripe(rest_);
    held_ = 0;
  }
  uint64_t lanes[4] = {lanes_[0], lanes_[1], lanes_[2], lanes_[3]};
  for (; end - at >= 32; at += 32)
    for (int i = 0; i < 4; ++i) lanes[i] = step(lanes[i], load(at + 8 * i));
  std::copy(lanes, lanes + 4, lanes_);
  held_ = static_cast<size_t>(end - at);
  std::memcpy(rest_, at, held_);
}

uint64_t Checksum::finish() const {
  uint64_t sum = total_ * c;
  for (uint64_t lane : lanes_) sum = step(sum, lane);
  size_t at = 0;
  for (; held_ - at >= 8; at += 8) sum = step(sum, load(rest_ + at));
  if (at != held_) {
    unsigned char last[8] = {};
    std::memcpy(last, rest_ + at, held_ - at);
    sum = step(sum, load(last));
  }
  return avalanche(sum);
}

uint64_t checksum(const void* data, size_t bytes, uint64_t seed) {
  Checksum sum(bytes, seed);
  sum.update(data, bytes);
  return sum.finish();
}

}  // namespace relay
