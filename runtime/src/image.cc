// Reads executable files. Everything is bounds-checked; a file that is not exactly right is refused.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "entry_types.h"
#include "relay/checksum.h"
#include "relay/cpu.h"
#include "relay/device.h"
#include "relay/error.h"
#include "relay/executable.h"
#include "relay/native.h"
#include "relay/thread_pool.h"

namespace relay {
namespace {

constexpr char magic[8] = {'R', 'E', 'L', 'A', 'Y', 'E', 'X', 'E'};
constexpr uint32_t version = 6;
constexpr size_t header_bytes = 32, checksum_at = 24, section_entry_bytes = 24;
constexpr size_t constant_alignment = 64;

enum SectionKind : uint32_t {
  strings_section = 1,    // n, then n x {length, bytes}
  target_section = 2,     // triple, n, then n features (strings)
  functions_section = 3,  // n, then n x {name, arity, registers, words, code.., spans, spans x {pc, string}}
  constants_section = 4,  // n, then n x {dtype, rank, u64 offset in the file, rank x i64 size}
  kernels_section = 5,    // n, then n x {name, object, symbol, outputs, dims, alternates, operands,
                          //             operands x {u8 dtype, u8 rank, u16 alignment, i32 in-place input}}
  objects_section = 6,    // n, then n x {u64 offset in the file, u64 length; 0 for one that comes later}
  routines_section = 7,   // n, then n names
  entries_section = 8,    // n, then n x {name, function, info, parameters, parameters x u8 dtype}
  data_section = 9,       // the bytes that constants and objects point at
  native_section = 10,    // optional: u64 offset in the file, u64 length of the object with the functions' native code
  later_section = 11,     // optional: u64 offset in the file, u64 length of what the objects that come later are made of
  section_kinds = 11,
};

struct Mapping {
  void* data;
  size_t bytes;
};

void unmap(void* owner) {
  auto* mapping = static_cast<Mapping*>(owner);
  munmap(mapping->data, mapping->bytes);
  delete mapping;
}

// Well-formed UTF-8: no stray, missing or needless bytes, no surrogates, nothing past U+10FFFF.
bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    auto first = static_cast<unsigned char>(text[i++]);
    if (first < 0x80) continue;
    int more = first >> 5 == 6 ? 1 : first >> 4 == 14 ? 2 : first >> 3 == 30 ? 3 : 0;
    if (more == 0) return false;
    uint32_t code = first & (0x3F >> more);
    for (int k = 0; k < more; ++k, ++i) {
      if (i == text.size() || (static_cast<unsigned char>(text[i]) >> 6) != 2) return false;
      code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
    }
    constexpr uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    if (code < least[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
  }
  return true;
}

std::atomic<uint64_t> next_id{1};

// The code of a kernel whose object has not come yet.
int32_t not_there(relay_kernel_context*, void**, const int64_t*) { return Kernel::not_there; }

}  // namespace

// Reads the bytes of one image into one Executable.
class ImageReader {
 public:
  // `library`: where the program's code is linked, null when it is in the image.
  ImageReader(Executable& out, const std::byte* bytes, size_t size, const relay_program* library = nullptr)
      : out_(out), bytes_(bytes), size_(size), library_(library) {}

  void read() {
    read_header();
    open(strings_section, "strings", &ImageReader::read_strings);
    open(target_section, "target", &ImageReader::read_target);
    open(functions_section, "functions", &ImageReader::read_functions);
    open(constants_section, "constants", &ImageReader::read_constants);
    open(objects_section, "objects", &ImageReader::read_objects);
    open(kernels_section, "kernels", &ImageReader::read_kernels);
    open(routines_section, "routines", &ImageReader::read_routines);
    open(entries_section, "entries", &ImageReader::read_entries);
    verify(out_);
    if (library_ != nullptr)
      read_native(static_cast<const NativeCode*>(library_->functions(native_version, function_count())));
    else if (sections_[native_section].present)
      open(native_section, "native code", &ImageReader::load_native);
    if (sections_[later_section].present) open(later_section, "what comes later", &ImageReader::read_later);
    set_scratch();
  }

 private:
  [[noreturn]] void bad(const std::string& why) const {
    fail(Status::invalid_file, "not a usable executable: %s", why.c_str());
  }

  template <class T>
  T peek(size_t at) const {
    T value;
    std::memcpy(&value, bytes_ + at, sizeof(T));
    return value;
  }

  void read_header() {
    if (size_ < header_bytes) bad("it is too short to hold a header; the file is damaged or cut off");
    if (std::memcmp(bytes_, magic, sizeof magic) != 0) bad("it does not begin as a Relay executable");
    auto found = peek<uint32_t>(8);
    if (found != version)
      bad(format("it has format version %u and this runtime reads version %u; compile the program again", found,
                 version));
    auto count = peek<uint32_t>(12);
    auto length = peek<uint64_t>(16);
    if (length != size_)
      bad(format("its header says %llu bytes and it has %zu; the file is damaged or cut off",
                 static_cast<unsigned long long>(length), size_));
    uint64_t sum = checksum(bytes_, checksum_at);
    sum = checksum(bytes_ + header_bytes, size_ - header_bytes, sum);
    if (sum != peek<uint64_t>(checksum_at)) bad("its checksum does not match; the file is damaged");
    if (count > section_kinds || header_bytes + count * section_entry_bytes > size_)
      bad("its section table is too long");
    for (uint32_t i = 0; i < count; ++i) {
      size_t at = header_bytes + i * section_entry_bytes;
      auto kind = peek<uint32_t>(at);
      auto offset = peek<uint64_t>(at + 8), bytes = peek<uint64_t>(at + 16);
      if (kind == 0 || kind > section_kinds || sections_[kind].present)
        bad("its section table lists a section wrongly");
      if (offset > size_ || bytes > size_ - offset || offset % constant_alignment)
        bad("a section lies outside the file");
      sections_[kind] = {true, offset, offset + bytes};
    }
  }

  void open(SectionKind kind, const char* name, void (ImageReader::*read)()) {
    if (!sections_[kind].present) bad(format("the section of %s is missing", name));
    section_ = name;
    at_ = sections_[kind].begin;
    end_ = sections_[kind].end;
    (this->*read)();
    if (at_ != end_) bad(format("the section of %s is longer than its contents", name));
  }

  template <class T>
  T next() {
    if (end_ - at_ < sizeof(T)) bad(format("the section of %s is cut off", section_));
    T value = peek<T>(at_);
    at_ += sizeof(T);
    return value;
  }
  uint32_t word() { return next<uint32_t>(); }
  const std::byte* take(uint64_t bytes) {
    if (end_ - at_ < bytes) bad(format("the section of %s is cut off", section_));
    const std::byte* at = bytes_ + at_;
    at_ += bytes;
    return at;
  }
  // A count of things that take at least `each` bytes: checked before anything of that size is allocated.
  uint32_t count(size_t each) {
    uint32_t n = word();
    if (n > (end_ - at_) / each) bad(format("the section of %s is cut off", section_));
    return n;
  }
  const std::string& string() {
    uint32_t index = word();
    if (index >= out_.strings.size()) bad(format("the section of %s uses a string that is not there", section_));
    return out_.strings[index];
  }
  DType dtype(uint32_t code) const {
    if (code >= dtype_count) bad(format("the section of %s has an unknown dtype", section_));
    return static_cast<DType>(code);
  }

  void read_strings() {
    for (uint32_t n = count(4); n > 0; --n) {
      uint32_t length = word();
      auto* text = reinterpret_cast<const char*>(take(length));
      if (!is_utf8({text, length})) bad("a string is not UTF-8");
      out_.strings.emplace_back(text, length);
    }
  }

  void read_target() {
    out_.triple = string();
    for (uint32_t n = count(4); n > 0; --n) out_.features.push_back(string());
    std::string architecture = out_.triple.substr(0, out_.triple.find('-'));
    if (architecture == "arm64") architecture = "aarch64";
    if (architecture == "amd64") architecture = "x86_64";
    if (architecture != host_architecture())
      fail(Status::incompatible,
           "the executable was compiled for '%s' and this machine is %s; compile it for this target",
           out_.triple.c_str(), host_architecture());
    std::string missing;
    for (const std::string& feature : out_.features) {
      if (feature.empty() || feature[0] == '-') continue;
      std::string_view name(feature);
      if (name[0] == '+') name.remove_prefix(1);
      if (!cpu_has(name)) missing += (missing.empty() ? "" : ", ") + std::string(name);
    }
    if (!missing.empty())
      fail(Status::incompatible,
           "the executable needs CPU features that this machine does not have: %s; compile it for "
           "this machine or for a more general target",
           missing.c_str());
  }

  void read_functions() {
    uint32_t n = count(20);
    out_.functions.reserve(n);
    for (; n > 0; --n) {
      Function f;
      f.name = string();
      f.arity = word();
      f.registers = word();
      f.words = word();
      f.code = reinterpret_cast<const int32_t*>(take(uint64_t{f.words} * 4));
      for (uint32_t spans = count(8); spans > 0; --spans) {
        uint32_t pc = word();
        f.spans.push_back({pc, string()});
        if (f.spans.size() > 1 && f.spans[f.spans.size() - 2].pc > pc) bad("source spans are out of order");
      }
      out_.functions.push_back(std::move(f));
    }
  }

  const std::byte* data(uint64_t offset, uint64_t bytes) const {
    const Section& s = sections_[data_section];
    if (!s.present || offset < s.begin || offset > s.end || bytes > s.end - offset)
      bad(format("the section of %s points outside the data", section_));
    return bytes_ + offset;
  }

  void read_constants() {
    for (uint32_t n = count(16); n > 0; --n) {
      DType type = dtype(word());
      uint32_t rank = word();
      auto offset = next<uint64_t>();
      if (rank > max_rank) bad("a constant has too many axes");
      int64_t shape[max_rank];
      for (uint32_t i = 0; i < rank; ++i) shape[i] = next<int64_t>();
      int64_t elements = count_elements(rank, shape);
      int64_t bytes = elements < 0 ? -1 : packed_bytes(type, elements);
      if (bytes < 0) bad("a constant's shape is impossible");
      if (offset % constant_alignment) bad("a constant is not aligned");
      data(offset, static_cast<uint64_t>(bytes));
      retain(out_.image_);
      Tensor* constant = new_tensor(out_.image_, static_cast<int64_t>(offset), type, rank, shape);
      constant->flags |= Object::immortal;
      out_.constants.push_back(constant);
    }
  }

  void read_objects() {
    for (uint32_t n = count(16); n > 0; --n) {
      auto offset = next<uint64_t>(), bytes = next<uint64_t>();
      bool comes_later = bytes == 0 && sections_[later_section].present;
      out_.objects_.push_back(
          comes_later ? nullptr : std::make_unique<NativeObject>(data(offset, bytes), bytes, "the executable"));
    }
  }

  void read_later() {
    auto offset = next<uint64_t>(), bytes = next<uint64_t>();
    out_.later = {reinterpret_cast<const char*>(data(offset, bytes)), bytes};
  }

  void read_kernels() {
    for (uint32_t n = count(28); n > 0; --n) {
      auto kernel = std::make_unique<Kernel>();
      kernel->name = string();
      kernel->object = word();
      kernel->symbol = string();
      kernel->info = string();
      kernel->outputs = word();
      kernel->dims = word();
      kernel->alternates.store(word() != 0, std::memory_order_relaxed);
      uint32_t operands = count(8);
      if (kernel->outputs > operands) bad("a kernel has more outputs than operands");
      if (kernel->dims > 0xFFFF || operands > 0xFFFF) bad("a kernel has too many operands");
      for (uint32_t i = 0; i < operands; ++i) {
        KernelOperand operand;
        operand.dtype = dtype(next<uint8_t>());
        operand.rank = next<uint8_t>();
        operand.alignment = next<uint16_t>();
        operand.in_place = next<int32_t>();
        if (operand.rank > max_rank) bad("a kernel operand has too many axes");
        if (operand.alignment == 0 || (operand.alignment & (operand.alignment - 1)))
          bad("a kernel operand's alignment is not a power of two");
        if (operand.in_place < -1 || operand.in_place >= static_cast<int32_t>(operands - kernel->outputs))
          bad("a kernel's in-place pair names no input");
        kernel->operands.push_back(operand);
      }
      kernel->entry.store(kernel_code(*kernel), std::memory_order_relaxed);
      out_.kernels.push_back(std::move(kernel));
    }
  }

  relay_kernel kernel_code(const Kernel& kernel) const {
    if (library_ != nullptr) {
      if (out_.kernels.size() >= library_->kernel_count) bad("the library has fewer kernels than its image");
      return library_->kernels[out_.kernels.size()];
    }
    if (kernel.object >= out_.objects_.size()) bad("a kernel names a native object that is not there");
    if (out_.objects_[kernel.object] == nullptr) return not_there;
    void* code = out_.objects_[kernel.object]->find(kernel.symbol);
    if (code == nullptr)
      bad(format("kernel %s: its native object has no function '%s'", kernel.name.c_str(), kernel.symbol.c_str()));
    return reinterpret_cast<relay_kernel>(code);
  }

  uint32_t function_count() const { return static_cast<uint32_t>(out_.functions.size()); }

  void load_native() {
    auto offset = next<uint64_t>(), bytes = next<uint64_t>();
    out_.objects_.push_back(std::make_unique<NativeObject>(data(offset, bytes), bytes, "the executable's functions",
                                                           host_machine(), native_runtime_function));
    void* table = out_.objects_.back()->find(native_table_symbol);
    if (table == nullptr) bad("its native code has no table of functions");
    read_native(static_cast<const NativeCode*>(reinterpret_cast<NativeTable>(table)(native_version, function_count())));
  }

  void read_native(const NativeCode* table) {
    if (table == nullptr)
      fail(Status::incompatible, "the program's native code was made for another version of the runtime; compile it again");
    out_.native.reserve(out_.functions.size());
    for (size_t i = 0; i < out_.functions.size(); ++i)
      out_.native.push_back({&out_.functions[i], out_.functions[i].code, table[i]});
  }

  void read_routines() {
    for (uint32_t n = count(4); n > 0; --n) {
      const std::string& name = string();
      const Routine* routine = find_routine(name);
      if (routine == nullptr)
        bad(format("it needs the runtime routine '%s', which this runtime does not have", name.c_str()));
      out_.routines.push_back(routine);
    }
  }

  void read_entries() {
    uint32_t n = count(16);
    out_.entries.reserve(n);
    for (; n > 0; --n) {
      Entry entry;
      entry.name = string();
      entry.function = word();
      entry.info = string();
      for (uint32_t parameters = count(1); parameters > 0; --parameters) {
        auto code = next<uint8_t>();
        if (code != any_dtype) dtype(code);
        entry.dtypes.push_back(code);
      }
      take((4 - entry.dtypes.size() % 4) % 4);
      bool all_tensors = std::find(entry.dtypes.begin(), entry.dtypes.end(), any_dtype) == entry.dtypes.end();
      if (!all_tensors && !entry.info.empty()) entry.late_types = std::make_shared<LateTypes>();
      auto mentions = [&](const char* what) { return entry.info.find(what) != std::string::npos; };
      entry.holds = mentions(R"("kind":"ref")") || mentions(R"("closures":)");
      if (entry.function >= out_.functions.size()) bad("an entry names a function that is not there");
      if (entry.dtypes.size() != out_.functions[entry.function].arity)
        bad(format("entry %s lists %zu parameters and its function takes %u", entry.name.c_str(), entry.dtypes.size(),
                   out_.functions[entry.function].arity));
      out_.entries.push_back(std::move(entry));
    }
    for (const Entry& entry : out_.entries)
      if (!out_.by_name_.emplace(entry.name, &entry).second)
        bad(format("two entries are named %s", entry.name.c_str()));
  }

  void set_scratch() {
    size_t bytes = 256;
    for (const auto& kernel : out_.kernels)
      bytes = std::max(bytes, sizeof(void*) * (kernel->operands.size() + kernel->dims));
    for (const Function& f : out_.functions) bytes = std::max(bytes, sizeof(Value) * size_t{f.arity});
    out_.scratch_bytes = static_cast<uint32_t>(bytes + 15) & ~15u;
  }

  struct Section {
    bool present = false;
    uint64_t begin = 0, end = 0;
  };
  Executable& out_;
  const std::byte* bytes_;
  size_t size_;
  const relay_program* library_;
  Section sections_[section_kinds + 1];
  const char* section_ = "";
  uint64_t at_ = 0, end_ = 0;
};

namespace {

constexpr size_t large_page = size_t{2} << 20;

// Memory for an image of this size. A large one is put on large pages where the system has them: weights are streamed from end
// to end, and with small pages that is bound by address translation (on one machine 5 GB/s instead of 25).
Mapping image_memory(size_t bytes) {
  bool large = bytes >= 2 * large_page;
  size_t room = large ? (bytes + large_page - 1) / large_page * large_page + large_page : std::max<size_t>(bytes, 1);
  void* data = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail(Status::out_of_memory, "out of memory: %zu bytes for an executable", bytes);
  if (!large) return {data, room};
  auto start = reinterpret_cast<uintptr_t>(data), aligned = (start + large_page - 1) / large_page * large_page;
  size_t before = aligned - start, used = room - large_page, after = room - before - used;
  if (before != 0) munmap(data, before);
  if (after != 0) munmap(reinterpret_cast<void*>(aligned + used), after);
  void* memory = reinterpret_cast<void*>(aligned);
  madvise(memory, used, MADV_HUGEPAGE);
  return {memory, used};
}

// Reads a whole file into memory. It is not mapped, though a small one could be: whoever writes into a mapped file changes the program
// under its runs, and who cuts it off kills the process. The checksum reads every byte anyway.
Mapping read_image(int file, size_t bytes, const std::string& path) {
  Mapping memory = image_memory(bytes);
  size_t done = 0;
  while (done < bytes) {
    ssize_t n = pread(file, static_cast<std::byte*>(memory.data) + done, bytes - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      std::string why = n < 0 ? std::strerror(errno) : "it became shorter meanwhile";
      munmap(memory.data, memory.bytes);
      fail(Status::invalid_file, "cannot read %s: %s", path.c_str(), why.c_str());
    }
    done += static_cast<size_t>(n);
  }
  mprotect(memory.data, memory.bytes, PROT_READ);
  return memory;
}

// Read-only pages of a mapped file that will hardly be read again: the system may take them back.
void release_pages(const void* data, size_t bytes) {
  auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

std::shared_ptr<Executable> Executable::load(const std::string& path) {
  int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is not waited for
  if (file < 0) fail(Status::invalid_file, "cannot open %s: %s", path.c_str(), std::strerror(errno));
  struct stat status;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(file);
    fail(Status::invalid_file, "%s is not a regular file", path.c_str());
  }
  auto bytes = static_cast<size_t>(status.st_size);
  if (bytes == 0) {
    close(file);
    fail(Status::invalid_file, "%s is empty", path.c_str());
  }
  Mapping memory{};
  try {
    memory = read_image(file, bytes, path);
  } catch (...) {
    close(file);
    throw;
  }
  close(file);
  std::shared_ptr<Executable> made(new Executable);
  made->id = next_id++;
  made->image_ = new_external_storage(memory.data, static_cast<int64_t>(bytes), true, unmap, new Mapping(memory));
  made->image_->flags |= Object::shared;
  try {
    ImageReader(*made, static_cast<const std::byte*>(memory.data), bytes).read();
  } catch (const Error& error) {
    throw Error(error.status, path + ": " + error.what());
  }
  return made;
}

std::shared_ptr<Executable> Executable::from_bytes(const void* bytes, size_t size) {
  Mapping memory = image_memory(size);
  std::memcpy(memory.data, bytes, size);
  mprotect(memory.data, memory.bytes, PROT_READ);
  std::shared_ptr<Executable> made(new Executable);
  made->id = next_id++;
  made->image_ = new_external_storage(memory.data, static_cast<int64_t>(size), true, unmap, new Mapping(memory));
  made->image_->flags |= Object::shared;
  ImageReader(*made, static_cast<const std::byte*>(memory.data), size).read();
  return made;
}

std::shared_ptr<Executable> Executable::from_library(const relay_program& program) {
  if (program.version != native_version)
    fail(Status::incompatible, "the library was made for version %u of the runtime and this is %u; compile it again",
         program.version, native_version);
  std::shared_ptr<Executable> made(new Executable);
  made->id = next_id++;
  auto* bytes = static_cast<const std::byte*>(program.image);
  size_t size = program.image_bytes;
  if (size >= 2 * large_page) {  // off the file's small pages
    Mapping memory = image_memory(size);
    std::memcpy(memory.data, bytes, size);
    mprotect(memory.data, memory.bytes, PROT_READ);
    release_pages(bytes, size);
    bytes = static_cast<const std::byte*>(memory.data);
    made->image_ = new_external_storage(memory.data, static_cast<int64_t>(size), true, unmap, new Mapping(memory));
  } else {
    made->image_ = new_external_storage(const_cast<std::byte*>(bytes), static_cast<int64_t>(size), true, nullptr, nullptr);
  }
  made->image_->flags |= Object::shared;
  ImageReader(*made, bytes, size, &program).read();
  return made;
}

Executable::~Executable() {
  for (Tensor* constant : constants) {
    constant->flags = 0;
    release(static_cast<Object*>(constant));
  }
  if (image_ != nullptr) release(static_cast<Object*>(image_));
}

const Span* Function::span_at(uint32_t word) const {
  auto span = std::upper_bound(spans.begin(), spans.end(), word, [](uint32_t w, const Span& s) { return w < s.pc; });
  return span == spans.begin() || std::prev(span)->text.empty() ? nullptr : &*std::prev(span);
}

const Entry* Executable::find_entry(std::string_view name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Tensor* Executable::image() const {
  retain(static_cast<Object*>(image_));
  return new_tensor(image_, 0, DType::uint8_, 1, &image_->bytes);
}

void Executable::set_stack_limit(int64_t bytes) {
  constexpr int64_t least = int64_t{1} << 16, most = int64_t{1} << 46, page = 4096;
  if (bytes < least || bytes > most)
    fail(Status::invalid_argument, "a control stack takes from 65536 bytes to 64 TiB, not %lld",
         static_cast<long long>(bytes));
  stack_limit_.store((bytes + page - 1) / page * page);
}

void Executable::replace_kernel(const std::string& name, const void* object, size_t size, const std::string& symbol) {
  auto code = std::make_unique<NativeObject>(static_cast<const std::byte*>(object), size, "kernel " + name);
  void* function = code->find(symbol);
  if (function == nullptr)
    fail(Status::invalid_argument, "kernel %s: the new native object has no function '%s'", name.c_str(),
         symbol.c_str());
  std::lock_guard guard(mutex_);
  bool found = false;
  for (auto& kernel : kernels) {
    if (kernel->name != name) continue;
    kernel->alternates.store(true, std::memory_order_relaxed);  // the new code may ask for it
    kernel->entry.store(reinterpret_cast<relay_kernel>(function), std::memory_order_release);
    found = true;
  }
  if (!found) fail(Status::invalid_argument, "the executable has no kernel named %s", name.c_str());
  objects_.push_back(std::move(code));
}

void Executable::supply(uint32_t number, const void* object, size_t size) {
  auto code = std::make_unique<NativeObject>(static_cast<const std::byte*>(object), size, "the executable");
  std::lock_guard guard(mutex_);
  if (number >= objects_.size() || objects_[number] != nullptr)
    fail(Status::invalid_argument, "the executable does not wait for a native object of number %u", number);
  std::vector<std::pair<Kernel*, void*>> found;
  for (auto& kernel : kernels) {
    if (kernel->object != number) continue;
    void* function = code->find(kernel->symbol);
    if (function == nullptr)
      fail(Status::invalid_argument, "kernel %s: its native object has no function '%s'", kernel->name.c_str(),
           kernel->symbol.c_str());
    found.emplace_back(kernel.get(), function);
  }
  for (auto [kernel, function] : found)
    kernel->entry.store(reinterpret_cast<relay_kernel>(function), std::memory_order_release);
  objects_[number] = std::move(code);
}

}  // namespace relay
