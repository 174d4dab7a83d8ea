#include <cinttypes>
#include <vector>

#include "relay/device.h"
#include "relay/error.h"
#include "relay/executable.h"
#include "relay/opcode.h"

namespace relay {
namespace {

constexpr uint32_t most_registers = 1 << 25;  // half a gigabyte of frame

class Verifier {
 public:
  Verifier(const Executable& executable, const Function& function) : exe_(executable), f_(function) {}

  void check() {
    if (f_.registers > most_registers) bad("it has too many registers");
    if (f_.arity > f_.registers) bad("it has fewer registers than parameters");
    if (f_.words == 0) bad("it has no code");
    starts_.assign(f_.words, false);
    bool ends = false;
    while (at_ < f_.words) ends = instruction();
    if (!ends) bad("its code runs off the end");
    for (int32_t label : labels_)
      if (label < 0 || static_cast<uint32_t>(label) >= f_.words || !starts_[static_cast<uint32_t>(label)])
        bad("a jump does not lead to an instruction of it");
  }

 private:
  [[noreturn]] void bad(const char* why) const {
    fail(Status::invalid_file, "not a usable executable: bytecode of function %s, word %u: %s", f_.name.c_str(), start_,
         why);
  }

  int32_t word() {
    if (at_ >= f_.words) bad("the instruction is cut off");
    return f_.code[at_++];
  }
  uint32_t index(size_t limit, const char* why) {
    int32_t i = word();
    if (i < 0 || static_cast<size_t>(i) >= limit) bad(why);
    return static_cast<uint32_t>(i);
  }
  void reg() { index(f_.registers, "a register is out of range"); }
  uint32_t counted() {
    int32_t n = word();
    if (n < 0 || static_cast<uint32_t>(n) > f_.words - at_) bad("a list is cut off");
    return static_cast<uint32_t>(n);
  }

  // Checks one instruction; true when control never passes to the one after it.
  bool instruction() {
    start_ = at_;
    starts_[start_] = true;
    int32_t number = word();
    if (number < 0 || number >= opcode_count) bad("unknown instruction");
    auto op = static_cast<Opcode>(number);
    uint32_t lists[2] = {0, 0}, list = 0, used = 0;  // lengths of R lists; the function, kernel or routine index
    int32_t immediate = 0;
    int64_t wide = 0;
    for (const char* letter = opcode_table[number].operands; *letter; ++letter) {
      switch (*letter) {
        case 'd':
        case 'r': reg(); break;
        case 'o':
          if (word() != -1) {
            --at_;
            reg();
          }
          break;
        case 'i': immediate = word(); break;
        case 'I': {
          auto low = static_cast<uint32_t>(word());
          wide = static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(word())) << 32 | low);
          break;
        }
        case 't': index(dtype_count, "unknown dtype"); break;
        case 'v': index(device_count, "unknown device"); break;
        case 'f': used = index(exe_.functions.size(), "a function is out of range"); break;
        case 'k': used = index(exe_.kernels.size(), "a kernel is out of range"); break;
        case 'c': index(exe_.constants.size(), "a constant is out of range"); break;
        case 'm': index(exe_.strings.size(), "a message is out of range"); break;
        case 'u': used = index(exe_.routines.size(), "a routine is out of range"); break;
        case 'l': labels_.push_back(word()); break;
        case 'R':
          lists[list] = counted();
          for (uint32_t i = 0; i < lists[list]; ++i) reg();
          ++list;
          break;
        case 'L':
          for (uint32_t n = counted(); n > 0; --n) labels_.push_back(word());
          break;
        default: bad("the instruction table has an unknown operand letter");
      }
    }
    switch (op) {
      case Opcode::Invoke:
      case Opcode::TailInvoke:
        if (lists[0] != exe_.functions[used].arity) bad("a call has the wrong number of arguments");
        break;
      case Opcode::AllocClosure:
        if (lists[0] > exe_.functions[used].arity) bad("a closure captures more than its function takes");
        break;
      case Opcode::InvokeKernel:
        if (lists[0] != exe_.kernels[used]->operands.size()) bad("a kernel call has the wrong number of buffers");
        if (lists[1] != exe_.kernels[used]->dims) bad("a kernel call has the wrong number of dims");
        break;
      case Opcode::InvokeRoutine:
        if (lists[0] != exe_.routines[used]->arguments) bad("a routine call has the wrong number of arguments");
        break;
      case Opcode::AllocStorage:
      case Opcode::KeepStorage:
        if (wide <= 0 || wide > 4096 || (wide & (wide - 1))) bad("an alignment is not a power of two up to 4096");
        break;
      case Opcode::AllocTensor:
      case Opcode::AllocFresh:
      case Opcode::AllocReuse:
      case Opcode::ReshapeTensor:
      case Opcode::ViewTensor:
        if (lists[0] > max_rank) bad("a tensor has too many axes");
        break;
      case Opcode::AllocADT:
        if (immediate < tuple_tag) bad("a constructor tag is negative");
        break;
      case Opcode::GetField:
      case Opcode::DimOf:
      case Opcode::CheckTensor:
        if (immediate < 0) bad("an index is negative");
        break;
      default: break;
    }
    return op == Opcode::Ret || op == Opcode::TailInvoke || op == Opcode::TailInvokeClosure || op == Opcode::Goto ||
           op == Opcode::Switch || op == Opcode::Fatal;
  }

  const Executable& exe_;
  const Function& f_;
  uint32_t at_ = 0, start_ = 0;
  std::vector<bool> starts_;
  std::vector<int32_t> labels_;
};

}  // namespace

void verify(const Executable& executable) {
  for (const Function& function : executable.functions) Verifier(executable, function).check();
}

}  // namespace relay
