// The instruction set, as numbers and as a table of operand letters. The list is opcodes.def.
#pragma once

#include <cstddef>
#include <cstdint>

namespace relay {

enum class Opcode : int32_t {
#define OP(name, operands, text) name,
#include "../../opcodes.def"
};

struct OpcodeInfo {
  const char* name;
  const char* operands;
  const char* text;
  bool control;  // it says what runs next
};

inline constexpr OpcodeInfo opcode_table[] = {
#define OP(name, operands, text) {#name, operands, text, false},
#define CONTROL(name, operands, text) {#name, operands, text, true},
#include "../../opcodes.def"
};

inline constexpr int32_t opcode_count = sizeof(opcode_table) / sizeof(opcode_table[0]);

// How many words the instruction at pc takes. (`letter` and `at`: where in its operands the counting is.)
template <Opcode op, size_t letter = 0>
inline int32_t instruction_words(const int32_t* pc, int32_t at = 1) {
  constexpr char kind = opcode_table[static_cast<size_t>(op)].operands[letter];
  if constexpr (kind == '\0')
    return at;
  else if constexpr (kind == 'R' || kind == 'L')
    return instruction_words<op, letter + 1>(pc, at + 1 + pc[at]);
  else
    return instruction_words<op, letter + 1>(pc, at + (kind == 'I' ? 2 : 1));
}

}  // namespace relay
