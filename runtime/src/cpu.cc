#include "relay/cpu.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace relay {

#if defined(__x86_64__)

namespace {

enum Register { eax, ebx, ecx, edx };
enum NeedsState : uint64_t { none = 0, ymm = 0x6, zmm = 0xE6, tiles = 0x60000 };

struct Feature {
  const char* name;
  uint32_t leaf, subleaf;
  Register where;
  int bit;
  NeedsState state;  // XCR0 bits the operating system must have switched on
};

constexpr uint32_t ext = 0x80000001;
constexpr Feature features[] = {
    {"cmov", 1, 0, edx, 15, none},
    {"mmx", 1, 0, edx, 23, none},
    {"fxsr", 1, 0, edx, 24, none},
    {"sse", 1, 0, edx, 25, none},
    {"sse2", 1, 0, edx, 26, none},
    {"cx8", 1, 0, edx, 8, none},
    {"sse3", 1, 0, ecx, 0, none},
    {"pclmul", 1, 0, ecx, 1, none},
    {"ssse3", 1, 0, ecx, 9, none},
    {"fma", 1, 0, ecx, 12, ymm},
    {"cx16", 1, 0, ecx, 13, none},
    {"sse4.1", 1, 0, ecx, 19, none},
    {"sse4.2", 1, 0, ecx, 20, none},
    {"crc32", 1, 0, ecx, 20, none},
    {"movbe", 1, 0, ecx, 22, none},
    {"popcnt", 1, 0, ecx, 23, none},
    {"aes", 1, 0, ecx, 25, none},
    {"xsave", 1, 0, ecx, 26, none},
    {"avx", 1, 0, ecx, 28, ymm},
    {"f16c", 1, 0, ecx, 29, ymm},
    {"rdrnd", 1, 0, ecx, 30, none},
    {"fsgsbase", 7, 0, ebx, 0, none},
    {"sgx", 7, 0, ebx, 2, none},
    {"bmi", 7, 0, ebx, 3, none},
    {"avx2", 7, 0, ebx, 5, ymm},
    {"bmi2", 7, 0, ebx, 8, none},
    {"invpcid", 7, 0, ebx, 10, none},
    {"rtm", 7, 0, ebx, 11, none},
    {"avx512f", 7, 0, ebx, 16, zmm},
    {"evex512", 7, 0, ebx, 16, zmm},
    {"avx512dq", 7, 0, ebx, 17, zmm},
    {"rdseed", 7, 0, ebx, 18, none},
    {"adx", 7, 0, ebx, 19, none},
    {"avx512ifma", 7, 0, ebx, 21, zmm},
    {"clflushopt", 7, 0, ebx, 23, none},
    {"clwb", 7, 0, ebx, 24, none},
    {"avx512cd", 7, 0, ebx, 28, zmm},
    {"sha", 7, 0, ebx, 29, none},
    {"avx512bw", 7, 0, ebx, 30, zmm},
    {"avx512vl", 7, 0, ebx, 31, zmm},
    {"prefetchwt1", 7, 0, ecx, 0, none},
    {"avx512vbmi", 7, 0, ecx, 1, zmm},
    {"pku", 7, 0, ecx, 4, none},
    {"waitpkg", 7, 0, ecx, 5, none},
    {"avx512vbmi2", 7, 0, ecx, 6, zmm},
    {"shstk", 7, 0, ecx, 7, none},
    {"gfni", 7, 0, ecx, 8, none},
    {"vaes", 7, 0, ecx, 9, ymm},
    {"vpclmulqdq", 7, 0, ecx, 10, ymm},
    {"avx512vnni", 7, 0, ecx, 11, zmm},
    {"avx512bitalg", 7, 0, ecx, 12, zmm},
    {"avx512vpopcntdq", 7, 0, ecx, 14, zmm},
    {"rdpid", 7, 0, ecx, 22, none},
    {"cldemote", 7, 0, ecx, 25, none},
    {"movdiri", 7, 0, ecx, 27, none},
    {"movdir64b", 7, 0, ecx, 28, none},
    {"enqcmd", 7, 0, ecx, 29, none},
    {"uintr", 7, 0, edx, 5, none},
    {"avx512vp2intersect", 7, 0, edx, 8, zmm},
    {"serialize", 7, 0, edx, 14, none},
    {"tsxldtrk", 7, 0, edx, 16, none},
    {"pconfig", 7, 0, edx, 18, none},
    {"amx-bf16", 7, 0, edx, 22, tiles},
    {"avx512fp16", 7, 0, edx, 23, zmm},
    {"amx-tile", 7, 0, edx, 24, tiles},
    {"amx-int8", 7, 0, edx, 25, tiles},
    {"sha512", 7, 1, eax, 0, ymm},
    {"sm3", 7, 1, eax, 1, ymm},
    {"sm4", 7, 1, eax, 2, ymm},
    {"avxvnni", 7, 1, eax, 4, ymm},
    {"avx512bf16", 7, 1, eax, 5, zmm},
    {"cmpccxadd", 7, 1, eax, 7, none},
    {"amx-fp16", 7, 1, eax, 21, tiles},
    {"hreset", 7, 1, eax, 22, none},
    {"avxifma", 7, 1, eax, 23, ymm},
    {"avxvnniint8", 7, 1, edx, 4, ymm},
    {"avxneconvert", 7, 1, edx, 5, ymm},
    {"amx-complex", 7, 1, edx, 8, tiles},
    {"avxvnniint16", 7, 1, edx, 10, ymm},
    {"prefetchi", 7, 1, edx, 14, none},
    {"xsaveopt", 0xD, 1, eax, 0, none},
    {"xsavec", 0xD, 1, eax, 1, none},
    {"xsaves", 0xD, 1, eax, 3, none},
    {"ptwrite", 0x14, 0, ebx, 4, none},
    {"sahf", ext, 0, ecx, 0, none},
    {"lzcnt", ext, 0, ecx, 5, none},
    {"sse4a", ext, 0, ecx, 6, none},
    {"prfchw", ext, 0, ecx, 8, none},
    {"xop", ext, 0, ecx, 11, ymm},
    {"lwp", ext, 0, ecx, 15, none},
    {"fma4", ext, 0, ecx, 16, ymm},
    {"tbm", ext, 0, ecx, 21, none},
    {"mwaitx", ext, 0, ecx, 29, none},
    {"64bit", ext, 0, edx, 29, none},
    {"clzero", 0x80000008, 0, ebx, 0, none},
    {"rdpru", 0x80000008, 0, ebx, 4, none},
    {"wbnoinvd", 0x80000008, 0, ebx, 9, none},
};

uint64_t enabled_state() {
  uint32_t r[4];
  if (!__get_cpuid(1, &r[0], &r[1], &r[2], &r[3]) || !(r[ecx] >> 27 & 1)) return 0;  // OSXSAVE
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Linux gives the room for matrix registers to a process that asks for it, once for all of its threads.
bool may_use_tiles() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  static const bool granted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return granted;
}

bool has(const Feature& feature) {
  uint32_t r[4] = {};
  if (!__get_cpuid_count(feature.leaf, feature.subleaf, &r[0], &r[1], &r[2], &r[3])) return false;
  if (!(r[feature.where] >> feature.bit & 1)) return false;
  static const uint64_t state = enabled_state();
  if ((state & feature.state) != feature.state) return false;
  return feature.state != tiles || may_use_tiles();
}

}  // namespace

const char* host_architecture() { return "x86_64"; }

#elif defined(__aarch64__)

namespace {

struct Feature {
  const char* name;
  unsigned long vector;
  int bit;
};

constexpr Feature features[] = {
    {"fp-armv8", AT_HWCAP, 0}, {"neon", AT_HWCAP, 1},       {"aes", AT_HWCAP, 3},       {"sha2", AT_HWCAP, 6},
    {"crc", AT_HWCAP, 7},      {"lse", AT_HWCAP, 8},        {"fullfp16", AT_HWCAP, 10}, {"rdm", AT_HWCAP, 12},
    {"jsconv", AT_HWCAP, 13},  {"complxnum", AT_HWCAP, 14}, {"rcpc", AT_HWCAP, 15},     {"ccpp", AT_HWCAP, 16},
    {"sha3", AT_HWCAP, 17},    {"sm4", AT_HWCAP, 19},       {"dotprod", AT_HWCAP, 20},  {"sve", AT_HWCAP, 22},
    {"fp16fml", AT_HWCAP, 23}, {"ssbs", AT_HWCAP, 28},      {"sb", AT_HWCAP, 29},       {"pauth", AT_HWCAP, 30},
    {"sve2", AT_HWCAP2, 1},    {"i8mm", AT_HWCAP2, 13},     {"bf16", AT_HWCAP2, 14},    {"rand", AT_HWCAP2, 16},
    {"bti", AT_HWCAP2, 17},    {"sme", AT_HWCAP2, 23},
};

bool has(const Feature& feature) { return getauxval(feature.vector) >> feature.bit & 1; }

}  // namespace

const char* host_architecture() { return "aarch64"; }

#else
#error "Relay's runtime knows x86-64 and AArch64"
#endif

bool cpu_has(std::string_view name) {
  for (const Feature& feature : features)
    if (name == feature.name) return has(feature);
  return false;
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
  for (const Feature& feature : features)
    if (has(feature)) names.emplace_back(feature.name);
  return names;
}

int64_t second_level_cache() {
  static const int64_t known = [] {
    long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? int64_t{bytes} : int64_t{512} << 10;
  }();
  return known;
}

}  // namespace relay
