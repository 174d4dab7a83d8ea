#include "relay/error.h"

#include <cstdio>

namespace relay {

static std::string format_list(const char* text, va_list list) {
  va_list again;
  va_copy(again, list);
  int length = vsnprintf(nullptr, 0, text, list);
  std::string out(static_cast<size_t>(length < 0 ? 0 : length), '\0');
  vsnprintf(out.data(), out.size() + 1, text, again);
  va_end(again);
  return out;
}

std::string format(const char* text, ...) {
  va_list list;
  va_start(list, text);
  std::string out = format_list(text, list);
  va_end(list);
  return out;
}

void fail(Status status, const char* text, ...) {
  va_list list;
  va_start(list, text);
  std::string out = format_list(text, list);
  va_end(list);
  throw Error(status, out);
}

}  // namespace relay
