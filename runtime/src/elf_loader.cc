#include "relay/elf_loader.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "relay/error.h"

#ifndef R_X86_64_GOTPCRELX
#define R_X86_64_GOTPCRELX 41
#define R_X86_64_REX_GOTPCRELX 42
#endif

namespace relay {

Machine host_machine() {
#if defined(__x86_64__)
  return Machine::x86_64;
#else
  return Machine::aarch64;
#endif
}

namespace {

void* external_function(const char* name) {
  if (std::strcmp(name, "memcpy") == 0) return reinterpret_cast<void*>(&std::memcpy);
  if (std::strcmp(name, "memmove") == 0) return reinterpret_cast<void*>(&std::memmove);
  if (std::strcmp(name, "memset") == 0) return reinterpret_cast<void*>(&std::memset);
  return nullptr;
}

constexpr size_t stub_bytes = 16;  // a jump through a table slot (x86-64), or with its own literal (AArch64)

}  // namespace

// Reads one object into one NativeObject. Memory is laid out as [code and stubs | constants and table | data], each
// part on its own pages.
class ObjectReader {
 public:
  ObjectReader(NativeObject& out, const std::byte* bytes, size_t size, const std::string& what, Machine machine,
               void* (*outside)(const char*))
      : out_(out), bytes_(bytes), size_(size), what_(what), machine_(machine), outside_(outside) {}

  void load() {
    read_headers();
    read_symbols();
    place();
    for (const Elf64_Shdr& section : sections_)
      if (section.sh_type == SHT_RELA) relocate(section);
    protect();
    publish();
  }

 private:
  [[noreturn]] void bad(const char* why) const {
    fail(Status::invalid_file, "the native object of %s is damaged: %s", what_.c_str(), why);
  }

  const std::byte* range(uint64_t offset, uint64_t length, const char* why) const {
    if (offset > size_ || length > size_ - offset) bad(why);
    return bytes_ + offset;
  }

  template <class T>
  T read(uint64_t offset, const char* why) const {
    T value;
    std::memcpy(&value, range(offset, sizeof(T), why), sizeof(T));
    return value;
  }

  const char* text(const Elf64_Shdr& table, uint64_t index) const {
    if (index >= table.sh_size) bad("a name lies outside its table");
    auto* at = reinterpret_cast<const char*>(range(table.sh_offset, table.sh_size, "a name table is cut off")) + index;
    if (std::memchr(at, 0, table.sh_size - index) == nullptr) bad("a name has no end");
    return at;
  }

  void read_headers() {
    auto header = read<Elf64_Ehdr>(0, "no ELF header");
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_REL)
      bad("not a 64-bit little-endian relocatable ELF object");
    if (header.e_machine != static_cast<uint16_t>(machine_))
      fail(Status::incompatible, "the native object of %s is for ELF machine %u, this one needs %u", what_.c_str(),
           header.e_machine, static_cast<unsigned>(machine_));
    if (header.e_shentsize != sizeof(Elf64_Shdr)) bad("unexpected section header size");
    for (unsigned i = 0; i < header.e_shnum; ++i) {
      auto section = read<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr), "a section header is cut off");
      if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL)
        range(section.sh_offset, section.sh_size, "a section is cut off");
      if (section.sh_size > (uint64_t{1} << 30)) bad("a section is too large");
      sections_.push_back(section);
    }
  }

  const Elf64_Shdr& section(uint64_t index) const {
    if (index >= sections_.size()) bad("a section index is out of range");
    return sections_[index];
  }

  void read_symbols() {
    for (const Elf64_Shdr& table : sections_) {
      if (table.sh_type != SHT_SYMTAB) continue;
      if (!symbols_.empty()) bad("two symbol tables");
      names_ = &section(table.sh_link);
      for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size; at += sizeof(Elf64_Sym))
        symbols_.push_back(read<Elf64_Sym>(table.sh_offset + at, "a symbol is cut off"));
    }
    addresses_.assign(symbols_.size(), 0);
  }

  static bool is_loaded(const Elf64_Shdr& section) {
    return (section.sh_flags & SHF_ALLOC) && (section.sh_type == SHT_PROGBITS || section.sh_type == SHT_NOBITS);
  }
  static int part(const Elf64_Shdr& section) {
    return section.sh_flags & SHF_EXECINSTR ? 0 : section.sh_flags & SHF_WRITE ? 2 : 1;
  }

  void place() {
    // One stub and one table slot per symbol that lives outside the object; one slot per symbol used through the table.
    size_t slots = symbols_.size();
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    std::vector<size_t> offsets(sections_.size(), 0);
    size_t used = 0;
    for (int p = 0; p < 3; ++p) {
      for (size_t i = 0; i < sections_.size(); ++i) {
        const Elf64_Shdr& s = sections_[i];
        if (!is_loaded(s) || part(s) != p) continue;
        size_t align = s.sh_addralign ? s.sh_addralign : 1;
        if (align > page || (align & (align - 1))) bad("unsupported section alignment");
        used = (used + align - 1) & ~(align - 1);
        offsets[i] = used;
        used += s.sh_size;
        if (used > (size_t{1} << 31)) bad("the sections are too large");
      }
      if (p == 0) {
        used = stubs_ = (used + 15) & ~size_t{15};
        used += slots * stub_bytes;
      }
      if (p == 1) {
        used = table_ = (used + 7) & ~size_t{7};
        used += slots * 8;
      }
      used = (used + page - 1) & ~(page - 1);
      ends_[p] = used;
    }
    void* memory = mmap(nullptr, used ? used : page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail(Status::out_of_memory, "out of memory: %zu bytes for native code", used);
    out_.memory_ = static_cast<std::byte*>(memory);
    out_.size_ = used ? used : page;
    bases_.assign(sections_.size(), nullptr);
    for (size_t i = 0; i < sections_.size(); ++i) {
      if (!is_loaded(sections_[i])) continue;
      bases_[i] = out_.memory_ + offsets[i];
      if (sections_[i].sh_type == SHT_PROGBITS)
        std::memcpy(bases_[i], bytes_ + sections_[i].sh_offset, sections_[i].sh_size);
    }
    for (size_t i = 0; i < symbols_.size(); ++i) addresses_[i] = address_of(i);
  }

  // Where a symbol is; 0 when it is not loaded (an error only for those who use it).
  uint64_t address_of(size_t index) {
    const Elf64_Sym& symbol = symbols_[index];
    if (symbol.st_shndx == SHN_UNDEF) {
      const char* name = index == 0 ? "" : text(*names_, symbol.st_name);
      if (*name == '\0') return 0;
      void* target = external_function(name);
      if (target == nullptr && outside_ != nullptr) target = outside_(name);
      if (target == nullptr)
        fail(Status::invalid_file,
             "the native object of %s needs '%s': kernels may only call memcpy, memmove and memset", what_.c_str(),
             name);
      return make_stub(index, reinterpret_cast<uint64_t>(target));
    }
    if (symbol.st_shndx == SHN_ABS) return symbol.st_value;
    if (symbol.st_shndx >= sections_.size() || bases_[symbol.st_shndx] == nullptr) return 0;
    if (symbol.st_value > sections_[symbol.st_shndx].sh_size) bad("a symbol lies outside its section");
    return reinterpret_cast<uint64_t>(bases_[symbol.st_shndx]) + symbol.st_value;
  }

  uint64_t slot(size_t index, uint64_t value) {
    std::byte* at = out_.memory_ + table_ + index * 8;
    std::memcpy(at, &value, 8);
    return reinterpret_cast<uint64_t>(at);
  }

  uint64_t make_stub(size_t index, uint64_t target) {
    std::byte* at = out_.memory_ + stubs_ + index * stub_bytes;
    if (machine_ == Machine::x86_64) {
      uint64_t where = slot(index, target);
      unsigned char jump[6] = {0xFF, 0x25, 0, 0, 0, 0};  // jmp *[rip + distance]
      auto distance = static_cast<int32_t>(where - (reinterpret_cast<uint64_t>(at) + 6));
      std::memcpy(jump + 2, &distance, 4);
      std::memcpy(at, jump, 6);
    } else {
      uint32_t jump[2] = {0x58000050, 0xD61F0200};  // ldr x16, pc+8; br x16
      std::memcpy(at, jump, 8);
      std::memcpy(at + 8, &target, 8);
    }
    return reinterpret_cast<uint64_t>(at);
  }

  void relocate(const Elf64_Shdr& table) {
    const Elf64_Shdr& target = section(table.sh_info);
    if (!is_loaded(target)) return;  // debugging and unwinding tables stay behind
    std::byte* base = bases_[table.sh_info];
    if (target.sh_type == SHT_NOBITS) bad("a relocation in an empty section");
    for (uint64_t at = 0; at + sizeof(Elf64_Rela) <= table.sh_size; at += sizeof(Elf64_Rela)) {
      auto entry = read<Elf64_Rela>(table.sh_offset + at, "a relocation is cut off");
      size_t index = ELF64_R_SYM(entry.r_info);
      if (index >= symbols_.size()) bad("a relocation names no symbol");
      if (entry.r_offset > target.sh_size || target.sh_size - entry.r_offset < 4)
        bad("a relocation lies outside its section");
      if (addresses_[index] == 0 && symbols_[index].st_shndx != SHN_ABS) bad("a relocation against nothing");
      Patch patch{base + entry.r_offset, target.sh_size - entry.r_offset, index,
                  addresses_[index] + static_cast<uint64_t>(entry.r_addend), entry.r_addend};
      auto type = static_cast<uint32_t>(ELF64_R_TYPE(entry.r_info));
      if (machine_ == Machine::x86_64)
        patch_x86_64(type, patch);
      else
        patch_aarch64(type, patch);
    }
  }

  struct Patch {
    std::byte* at;
    uint64_t room;
    size_t symbol;
    uint64_t value;  // S + A
    int64_t addend;
    uint64_t place() const { return reinterpret_cast<uint64_t>(at); }
  };

  void write32(const Patch& patch, int64_t value) const {
    if (value != static_cast<int32_t>(value)) bad("a relocation is out of reach");
    auto narrow = static_cast<int32_t>(value);
    std::memcpy(patch.at, &narrow, 4);
  }
  void write64(const Patch& patch, uint64_t value) const {
    if (patch.room < 8) bad("a relocation lies outside its section");
    std::memcpy(patch.at, &value, 8);
  }

  void patch_x86_64(uint32_t type, const Patch& p) {
    switch (type) {
      case R_X86_64_NONE: return;
      case R_X86_64_64: return write64(p, p.value);
      case R_X86_64_PC64: return write64(p, p.value - p.place());
      case R_X86_64_PC32:
      case R_X86_64_PLT32: return write32(p, static_cast<int64_t>(p.value - p.place()));
      case R_X86_64_32S: return write32(p, static_cast<int64_t>(p.value));
      case R_X86_64_GOTPCREL:
      case R_X86_64_GOTPCRELX:
      case R_X86_64_REX_GOTPCRELX: {
        // A stub's own slot already holds the outside function.
        bool outside = symbols_[p.symbol].st_shndx == SHN_UNDEF;
        uint64_t where = outside ? reinterpret_cast<uint64_t>(out_.memory_ + table_ + p.symbol * 8)
                                 : slot(p.symbol, addresses_[p.symbol]);
        return write32(p, static_cast<int64_t>(where + static_cast<uint64_t>(p.addend) - p.place()));
      }
      default:
        fail(Status::invalid_file, "the native object of %s has an unsupported x86-64 relocation (type %u)",
             what_.c_str(), type);
    }
  }

  // Replaces the bits of `mask` in the instruction.
  static void insert(const Patch& p, uint32_t mask, uint32_t value) {
    uint32_t word;
    std::memcpy(&word, p.at, 4);
    word = (word & ~mask) | (value & mask);
    std::memcpy(p.at, &word, 4);
  }

  void page_offset(const Patch& p, uint64_t value, int scale) const {
    auto low = static_cast<uint32_t>(value & 0xFFF);
    if (low & ((1u << scale) - 1)) bad("a load is not aligned to its size");
    insert(p, 0xFFFu << 10, (low >> scale) << 10);
  }
  void page_distance(const Patch& p, uint64_t value) const {
    int64_t pages = static_cast<int64_t>(value >> 12) - static_cast<int64_t>(p.place() >> 12);
    if (pages < -(1 << 20) || pages >= (1 << 20)) bad("a relocation is out of reach");
    auto bits = static_cast<uint32_t>(pages);
    insert(p, (3u << 29) | (0x7FFFFu << 5), (bits & 3) << 29 | (bits >> 2 & 0x7FFFF) << 5);
  }

  void patch_aarch64(uint32_t type, const Patch& p) {
    auto distance = static_cast<int64_t>(p.value - p.place());
    switch (type) {
      case R_AARCH64_NONE: return;
      case R_AARCH64_ABS64: return write64(p, p.value);
      case R_AARCH64_PREL64: return write64(p, p.value - p.place());
      case R_AARCH64_PREL32: return write32(p, distance);
      case R_AARCH64_CALL26:
      case R_AARCH64_JUMP26:
        if ((distance & 3) || distance < -(1 << 27) || distance >= (1 << 27)) bad("a call is out of reach");
        return insert(p, 0x3FFFFFF, static_cast<uint32_t>(distance >> 2));
      case R_AARCH64_ADR_PREL_PG_HI21: return page_distance(p, p.value);
      case R_AARCH64_ADR_GOT_PAGE:
        return page_distance(p, slot(p.symbol, addresses_[p.symbol]) + static_cast<uint64_t>(p.addend));
      case R_AARCH64_LD64_GOT_LO12_NC:
        return page_offset(p, slot(p.symbol, addresses_[p.symbol]) + static_cast<uint64_t>(p.addend), 3);
      case R_AARCH64_ADD_ABS_LO12_NC:
      case R_AARCH64_LDST8_ABS_LO12_NC: return page_offset(p, p.value, 0);
      case R_AARCH64_LDST16_ABS_LO12_NC: return page_offset(p, p.value, 1);
      case R_AARCH64_LDST32_ABS_LO12_NC: return page_offset(p, p.value, 2);
      case R_AARCH64_LDST64_ABS_LO12_NC: return page_offset(p, p.value, 3);
      case R_AARCH64_LDST128_ABS_LO12_NC: return page_offset(p, p.value, 4);
      default:
        fail(Status::invalid_file, "the native object of %s has an unsupported AArch64 relocation (type %u)",
             what_.c_str(), type);
    }
  }

  void protect() {
    std::byte* memory = out_.memory_;
    __builtin___clear_cache(reinterpret_cast<char*>(memory), reinterpret_cast<char*>(memory + ends_[0]));
    bool ok = ends_[0] == 0 || mprotect(memory, ends_[0], PROT_READ | PROT_EXEC) == 0;
    if (ends_[1] > ends_[0]) ok = ok && mprotect(memory + ends_[0], ends_[1] - ends_[0], PROT_READ) == 0;
    if (!ok) fail(Status::failed, "the system refuses to make native code executable");
  }

  void publish() {
    for (size_t i = 1; i < symbols_.size(); ++i) {
      const Elf64_Sym& symbol = symbols_[i];
      if (symbol.st_shndx == SHN_UNDEF || addresses_[i] == 0) continue;
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL) continue;
      out_.symbols_.emplace(text(*names_, symbol.st_name), reinterpret_cast<void*>(addresses_[i]));
    }
  }

  NativeObject& out_;
  const std::byte* bytes_;
  size_t size_;
  const std::string& what_;
  Machine machine_;
  void* (*outside_)(const char*);
  std::vector<Elf64_Shdr> sections_;
  std::vector<Elf64_Sym> symbols_;
  std::vector<uint64_t> addresses_;
  std::vector<std::byte*> bases_;
  const Elf64_Shdr* names_ = nullptr;
  size_t stubs_ = 0, table_ = 0;
  size_t ends_[3] = {};
};

NativeObject::NativeObject(const std::byte* bytes, size_t size, const std::string& what, Machine machine,
                           void* (*outside)(const char*)) {
  try {
    ObjectReader(*this, bytes, size, what, machine, outside).load();
  } catch (...) {
    if (memory_ != nullptr) munmap(memory_, size_);
    throw;
  }
}

NativeObject::~NativeObject() { munmap(memory_, size_); }

void* NativeObject::find(const std::string& symbol) const {
  auto entry = symbols_.find(symbol);
  return entry == symbols_.end() ? nullptr : entry->second;
}

}  // namespace relay
