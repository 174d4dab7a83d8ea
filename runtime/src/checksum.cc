// Four independent lanes of multiply and rotate over 32-byte stripes, joined and finished with an avalanche. Each step
// is a bijection of its lane for a fixed input and of its input for a fixed lane, so a change confined to one 8-byte
// word always changes the result.
#include "relay/checksum.h"

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

uint64_t checksum(const void* data, size_t bytes, uint64_t seed) {
  auto* at = static_cast<const unsigned char*>(data);
  const unsigned char* end = at + bytes;
  uint64_t lanes[4] = {seed + a, seed ^ b, seed + c, seed - a};
  for (; end - at >= 32; at += 32)
    for (int i = 0; i < 4; ++i) lanes[i] = step(lanes[i], load(at + 8 * i));
  uint64_t sum = bytes * c;
  for (uint64_t lane : lanes) sum = step(sum, lane);
  for (; end - at >= 8; at += 8) sum = step(sum, load(at));
  if (at != end) {
    unsigned char last[8] = {};
    std::memcpy(last, at, static_cast<size_t>(end - at));
    sum = step(sum, load(last));
  }
  return avalanche(sum);
}

}  // namespace relay
