// The loader on objects made here: relocations of both architectures against their definitions, and damaged objects.
#include "relay/elf_loader.h"

#include <elf.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "test.h"

using namespace relay;

namespace {

// One code section of 64 words with local function `f` at word 32, a data section of two 8-byte words (read-only), and
// the given relocations of the code section. Symbols: 1 f, 2 data, 3 memcpy (outside), 4 main (at word 0).
struct Relocation {
  uint64_t offset;
  uint32_t type, symbol;
  int64_t addend;
};

std::vector<std::byte> object(Machine machine, const std::vector<uint32_t>& words,
                              const std::vector<Relocation>& relocations, const std::vector<Relocation>& in_data = {}) {
  std::string names = std::string("\0f\0data\0memcpy\0main\0", 20);
  std::vector<Elf64_Sym> symbols = {
      {},
      {1, ELF64_ST_INFO(STB_LOCAL, STT_FUNC), 0, 1, 128, 0},
      {3, ELF64_ST_INFO(STB_LOCAL, STT_OBJECT), 0, 2, 0, 16},
      {8, ELF64_ST_INFO(STB_GLOBAL, STT_NOTYPE), 0, SHN_UNDEF, 0, 0},
      {15, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, 1, 0, 0},
  };
  auto entries = [](const std::vector<Relocation>& from) {
    std::vector<Elf64_Rela> out;
    for (const Relocation& r : from) out.push_back({r.offset, ELF64_R_INFO(uint64_t{r.symbol}, r.type), r.addend});
    return out;
  };
  std::vector<Elf64_Rela> code_entries = entries(relocations), data_entries = entries(in_data);
  std::vector<uint32_t> code = words;
  code.resize(64);
  uint64_t data[2] = {0x1111, 0x2222};

  std::vector<std::byte> out(sizeof(Elf64_Ehdr));
  std::vector<Elf64_Shdr> sections(1);
  auto add = [&](uint32_t type, uint64_t flags, const void* bytes, size_t size, uint32_t link, uint32_t about) {
    out.resize((out.size() + 15) / 16 * 16);
    Elf64_Shdr section{};
    section.sh_type = type;
    section.sh_flags = flags;
    section.sh_offset = out.size();
    section.sh_size = size;
    section.sh_link = link;
    section.sh_info = about;
    section.sh_addralign = 16;
    sections.push_back(section);
    out.resize(out.size() + size);
    if (size > 0) std::memcpy(out.data() + section.sh_offset, bytes, size);
  };
  add(SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, code.data(), code.size() * 4, 0, 0);
  add(SHT_PROGBITS, SHF_ALLOC, data, sizeof data, 0, 0);
  add(SHT_SYMTAB, 0, symbols.data(), symbols.size() * sizeof(Elf64_Sym), 4, 0);
  add(SHT_STRTAB, 0, names.data(), names.size(), 0, 0);
  add(SHT_RELA, 0, code_entries.data(), code_entries.size() * sizeof(Elf64_Rela), 3, 1);
  add(SHT_RELA, 0, data_entries.data(), data_entries.size() * sizeof(Elf64_Rela), 3, 2);

  out.resize((out.size() + 15) / 16 * 16);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_type = ET_REL;
  header.e_machine = static_cast<uint16_t>(machine);
  header.e_shoff = out.size();
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<uint16_t>(sections.size());
  std::memcpy(out.data(), &header, sizeof header);
  auto* table = reinterpret_cast<const std::byte*>(sections.data());
  out.insert(out.end(), table, table + sections.size() * sizeof(Elf64_Shdr));
  return out;
}

uint32_t word(const std::byte* at) {
  uint32_t value;
  std::memcpy(&value, at, 4);
  return value;
}
uint64_t wide(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, 8);
  return value;
}
int64_t sign_extend(uint64_t value, int bits) { return static_cast<int64_t>(value << (64 - bits)) >> (64 - bits); }

// What an ADRP at the address computes.
uint64_t adrp(const std::byte* at) {
  uint32_t w = word(at);
  int64_t pages = sign_extend((w >> 29 & 3) | (w >> 5 & 0x7FFFF) << 2, 21);
  return (reinterpret_cast<uint64_t>(at) & ~uint64_t{0xFFF}) + static_cast<uint64_t>(pages * 4096);
}
const std::byte* branch_target(const std::byte* at) { return at + sign_extend(word(at) & 0x3FFFFFF, 26) * 4; }

}  // namespace

TEST(aarch64_relocations) {
  constexpr uint32_t bl = 0x94000000, b = 0x14000000, adrp_x0 = 0x90000000, add_x0 = 0x91000000, ldr_x0 = 0xF9400000,
                     ldr_q0 = 0x3DC00000, ldrb = 0x39400000, ldr_w0 = 0xB9400000;
  std::vector<uint32_t> code = {bl,     bl, adrp_x0, add_x0, adrp_x0, ldr_x0, ldr_q0, ldrb,
                                ldr_w0, b,  adrp_x0, ldr_x0, 0,       0,      0};
  std::vector<std::byte> bytes = object(Machine::aarch64, code,
                                        {{0, R_AARCH64_CALL26, 1, 0},
                                         {4, R_AARCH64_CALL26, 3, 0},
                                         {8, R_AARCH64_ADR_PREL_PG_HI21, 2, 0},
                                         {12, R_AARCH64_ADD_ABS_LO12_NC, 2, 8},
                                         {16, R_AARCH64_ADR_PREL_PG_HI21, 2, 8},
                                         {20, R_AARCH64_LDST64_ABS_LO12_NC, 2, 8},
                                         {24, R_AARCH64_LDST128_ABS_LO12_NC, 2, 0},
                                         {28, R_AARCH64_LDST8_ABS_LO12_NC, 2, 5},
                                         {32, R_AARCH64_LDST32_ABS_LO12_NC, 2, 4},
                                         {36, R_AARCH64_JUMP26, 1, 4},
                                         {40, R_AARCH64_ADR_GOT_PAGE, 2, 0},
                                         {44, R_AARCH64_LD64_GOT_LO12_NC, 2, 0},
                                         {48, R_AARCH64_PREL32, 2, 0},
                                         {56, R_AARCH64_ABS64, 1, 12}},
                                        {{8, R_AARCH64_ABS64, 1, 0}});
  NativeObject loaded(bytes.data(), bytes.size(), "test", Machine::aarch64);
  auto* main = static_cast<const std::byte*>(loaded.find("main"));
  CHECK(main != nullptr && loaded.find("f") == nullptr && loaded.find("memcpy") == nullptr);
  const std::byte* f = main + 128;
  CHECK(branch_target(main) == f && (word(main) & 0xFC000000) == bl);

  const std::byte* stub = branch_target(main + 4);  // ldr x16, pc+8; br x16; the address
  CHECK(word(stub) == 0x58000050 && word(stub + 4) == 0xD61F0200);
  CHECK(wide(stub + 8) == reinterpret_cast<uint64_t>(&std::memcpy));

  uint64_t data = adrp(main + 8) + (word(main + 12) >> 10 & 0xFFF) - 8;
  auto* constants = reinterpret_cast<const std::byte*>(data);
  CHECK(wide(constants) == 0x1111 && wide(constants + 8) == reinterpret_cast<uint64_t>(f));
  CHECK(adrp(main + 16) + (word(main + 20) >> 10 & 0xFFF) * 8 == data + 8);
  CHECK((word(main + 24) >> 10 & 0xFFF) * 16 == (data & 0xFFF));
  CHECK((word(main + 28) >> 10 & 0xFFF) == ((data + 5) & 0xFFF));
  CHECK((word(main + 32) >> 10 & 0xFFF) * 4 == ((data + 4) & 0xFFF));
  CHECK(branch_target(main + 36) == f + 4);
  uint64_t slot = adrp(main + 40) + (word(main + 44) >> 10 & 0xFFF) * 8;
  CHECK(wide(reinterpret_cast<const std::byte*>(slot)) == data);
  CHECK(reinterpret_cast<uint64_t>(main + 48) + static_cast<uint64_t>(static_cast<int32_t>(word(main + 48))) == data);
  CHECK(wide(main + 56) == reinterpret_cast<uint64_t>(f) + 12);
}

TEST(x86_64_relocations) {
  std::vector<std::byte> bytes = object(Machine::x86_64, {},
                                        {{0, R_X86_64_PC32, 2, -4},
                                         {4, R_X86_64_PLT32, 1, -4},
                                         {8, R_X86_64_PLT32, 3, -4},
                                         {12, R_X86_64_GOTPCREL, 2, -4},
                                         {16, R_X86_64_64, 1, 3},
                                         {24, 42 /* REX_GOTPCRELX */, 3, -4},
                                         {32, R_X86_64_PC64, 2, 0}});
  NativeObject loaded(bytes.data(), bytes.size(), "test", Machine::x86_64);
  auto* main = static_cast<const std::byte*>(loaded.find("main"));
  auto target = [&](int at) { return main + at + 4 + static_cast<int32_t>(word(main + at)); };
  const std::byte* constants = target(0);
  CHECK(wide(constants) == 0x1111 && target(4) == main + 128);
  const std::byte* stub = target(8);  // jmp *[rip + distance]
  CHECK(stub[0] == std::byte{0xFF} && stub[1] == std::byte{0x25});
  const std::byte* outside = stub + 6 + static_cast<int32_t>(word(stub + 2));
  CHECK(wide(outside) == reinterpret_cast<uint64_t>(&std::memcpy));
  CHECK(wide(target(12)) == reinterpret_cast<uint64_t>(constants));
  CHECK(wide(main + 16) == reinterpret_cast<uint64_t>(main) + 131);
  CHECK(target(24) == outside);
  CHECK(main + 32 + static_cast<int64_t>(wide(main + 32)) == constants);
}

TEST(what_cannot_be_right_is_refused) {
  auto load = [](Machine machine, const std::vector<Relocation>& relocations) {
    std::vector<std::byte> bytes = object(machine, {}, relocations);
    NativeObject loaded(bytes.data(), bytes.size(), "test", machine);
  };
  THROWS(invalid_file, (load(Machine::x86_64, {{254, R_X86_64_PC32, 1, 0}}), 0));        // over the end
  THROWS(invalid_file, (load(Machine::x86_64, {{252, R_X86_64_64, 1, 0}}), 0));          // wider than what is left
  THROWS(invalid_file, (load(Machine::x86_64, {{0, R_X86_64_PC32, 9, 0}}), 0));          // no such symbol
  THROWS(invalid_file, (load(Machine::x86_64, {{0, R_X86_64_PC32, 0, 0}}), 0));          // the null symbol
  THROWS(invalid_file, (load(Machine::x86_64, {{0, R_X86_64_PC32, 1, 1LL << 40}}), 0));  // out of reach
  THROWS(invalid_file, (load(Machine::x86_64, {{0, R_X86_64_TLSGD, 1, 0}}), 0));         // not supported
  THROWS(invalid_file, (load(Machine::aarch64, {{0, R_AARCH64_CALL26, 1, 2}}), 0));      // not an instruction
  THROWS(invalid_file, (load(Machine::aarch64, {{0, R_AARCH64_LDST64_ABS_LO12_NC, 2, 1}}), 0));  // not aligned
  std::vector<std::byte> other = object(Machine::aarch64, {}, {});
  THROWS(incompatible, NativeObject(other.data(), other.size(), "test", Machine::x86_64));
}

TEST(damaged_objects_are_errors) {
  std::vector<std::byte> good = object(Machine::x86_64, {}, {{0, R_X86_64_PC32, 2, -4}, {8, R_X86_64_PLT32, 3, -4}});
  for (size_t length = 0; length < good.size(); ++length) {
    std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length));
    THROWS(invalid_file, NativeObject(cut.data(), cut.size(), "test", Machine::x86_64));
  }
  std::mt19937 dice(3);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bad = good;
    for (int i = 0; i < 2; ++i) bad[dice() % bad.size()] = static_cast<std::byte>(dice());
    try {
      NativeObject loaded(bad.data(), bad.size(), "test", Machine::x86_64);
      loaded.find("main");
    } catch (const Error& error) {
      CHECK(error.status != Status::failed);
    }
  }
}
