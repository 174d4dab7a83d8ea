// The instruction set, as numbers and as a table of operand letters. The list is opcodes.def.
#pragma once

#include <cstdint>

namespace relay {

enum class Opcode : int32_t {
#define OP(name, operands, text) name,
#include "../../opcodes.def"
#undef OP
};

struct OpcodeInfo {
  const char* name;
  const char* operands;
  const char* text;
};

inline constexpr OpcodeInfo opcode_table[] = {
#define OP(name, operands, text) {#name, operands, text},
#include "../../opcodes.def"
#undef OP
};

inline constexpr int32_t opcode_count = sizeof(opcode_table) / sizeof(opcode_table[0]);

}  // namespace relay
