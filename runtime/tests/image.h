// Builds small executables in memory, without kernels: the same layout as relay.executable.format writes.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "relay/checksum.h"
#include "relay/cpu.h"
#include "relay/executable.h"
#include "relay/opcode.h"

namespace relay {

struct Code {
  int32_t arity, registers;
  std::vector<int32_t> words;
};

inline int32_t number(Opcode op) { return static_cast<int32_t>(op); }

class ImageBuilder {
 public:
  std::vector<std::string> strings{"main", std::string(host_architecture()) + "-unknown-linux-gnu", "",
                                   "message {0} {1}"};
  std::vector<Code> functions;
  std::vector<std::string> routines;

  // Function 0 is the entry; string 3 is a message; constant 0 is an int64 vector 1, 2, 3.
  std::vector<unsigned char> bytes() {
    Section text, target, code, constants, kernels, objects, names, entries, data;
    uint32_t first_routine = static_cast<uint32_t>(strings.size());
    for (const std::string& routine : routines) strings.push_back(routine);
    text.word(strings.size());
    for (const std::string& s : strings) {
      text.word(s.size());
      text.raw(s.data(), s.size());
    }
    target.word(1);
    target.word(0);
    code.word(functions.size());
    for (const Code& f : functions) {
      for (uint32_t w : {0u, static_cast<uint32_t>(f.arity), static_cast<uint32_t>(f.registers)}) code.word(w);
      code.word(f.words.size());
      code.raw(f.words.data(), f.words.size() * 4);
      code.word(0);
    }
    int64_t vector[] = {1, 2, 3}, length = 3;
    data.raw(vector, sizeof vector);
    constants.word(1);
    constants.word(static_cast<uint32_t>(DType::int64_));
    constants.word(1);
    size_t hole = constants.bytes.size();
    constants.raw(&length, 8);
    constants.raw(&length, 8);
    kernels.word(0);
    objects.word(0);
    names.word(routines.size());
    for (uint32_t i = 0; i < routines.size(); ++i) names.word(first_routine + i);
    entries.word(1);
    auto arity = static_cast<uint32_t>(functions[0].arity);
    for (uint32_t w : {0u, 0u, 2u, arity}) entries.word(w);
    entries.bytes.insert(entries.bytes.end(), arity, any_dtype);
    entries.bytes.resize((entries.bytes.size() + 3) / 4 * 4);

    Section* all[] = {&text, &target, &code, &constants, &kernels, &objects, &names, &entries, &data};
    uint64_t at = aligned(32 + 24 * 9);
    Section table;
    for (uint32_t kind = 1; kind <= 9; ++kind) {
      Section& s = *all[kind - 1];
      uint64_t size = s.bytes.size();
      table.word(kind);
      table.word(0);
      table.raw(&at, 8);
      table.raw(&size, 8);
      if (kind == 9) std::memcpy(constants.bytes.data() + hole, &at, 8);
      s.offset = at;
      at = aligned(at + size);
    }
    std::vector<unsigned char> out(at);
    std::memcpy(out.data(), "RELAYEXE\6\0\0\0\11\0\0\0", 16);
    std::memcpy(out.data() + 16, &at, 8);
    std::memcpy(out.data() + 32, table.bytes.data(), table.bytes.size());
    for (Section* s : all)
      if (!s->bytes.empty()) std::memcpy(out.data() + s->offset, s->bytes.data(), s->bytes.size());
    uint64_t sum = checksum(out.data() + 32, out.size() - 32, checksum(out.data(), 24));
    std::memcpy(out.data() + 24, &sum, 8);
    return out;
  }

  std::shared_ptr<Executable> load() {
    std::vector<unsigned char> file = bytes();
    return Executable::from_bytes(file.data(), file.size());
  }

 private:
  struct Section {
    std::vector<unsigned char> bytes;
    uint64_t offset = 0;
    void raw(const void* data, size_t size) {
      auto* from = static_cast<const unsigned char*>(data);
      bytes.insert(bytes.end(), from, from + size);
    }
    void word(uint64_t value) {
      auto narrow = static_cast<uint32_t>(value);
      raw(&narrow, 4);
    }
  };
  static uint64_t aligned(uint64_t at) { return (at + 63) / 64 * 64; }
};

}  // namespace relay
