#include "json.h"

#include <charconv>

#include "relay/error.h"

namespace relay {
namespace {

// Types are written at most 150 deep inside each other.
constexpr int most_depth = 1000;
const Json nothing;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Json whole() {
    Json out = value(0);
    space();
    if (at_ != text_.size()) wrong();
    return out;
  }

 private:
  [[noreturn]] void wrong() const { fail(Status::invalid_file, "the types of an entry are not readable at character %zu", at_); }
  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }
  bool take(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json value(int depth) {
    Json out;
    if (depth > most_depth) wrong();
    if (take('{')) {
      out.kind = Json::object;
      if (take('}')) return out;
      do {
        if (!take('"')) wrong();
        out.keys.push_back(string());
        if (!take(':')) wrong();
        out.items.push_back(value(depth + 1));
      } while (take(','));
      if (!take('}')) wrong();
    } else if (take('[')) {
      out.kind = Json::list;
      if (take(']')) return out;
      do out.items.push_back(value(depth + 1));
      while (take(','));
      if (!take(']')) wrong();
    } else if (take('"')) {
      out.kind = Json::text;
      out.string = string();
    } else if (bool is_true = take("true"); is_true || take("false")) {
      out.kind = Json::boolean;
      out.value = is_true;
    } else if (!take("null")) {
      out.kind = Json::number;
      auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), out.value);
      if (error != std::errc()) wrong();
      at_ = static_cast<size_t>(end - text_.data());
    }
    return out;
  }

  uint32_t hexadecimal() {
    uint32_t out = 0;
    auto digits = text_.substr(at_, 4);
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out, 16);
    if (error != std::errc() || digits.size() != 4 || end != digits.data() + 4) wrong();
    at_ += 4;
    return out;
  }

  void append(std::string& out, uint32_t code) {
    auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (code < 0x80) return put(code);
    if (code < 0x800) {
      put(0xC0 | code >> 6);
    } else {
      if (code < 0x10000) {
        put(0xE0 | code >> 12);
      } else {
        put(0xF0 | code >> 18);
        put(0x80 | (code >> 12 & 0x3F));
      }
      put(0x80 | (code >> 6 & 0x3F));
    }
    put(0x80 | (code & 0x3F));
  }

  // Behind the first quotation mark.
  std::string string() {
    std::string out;
    for (; at_ < text_.size(); ) {
      char c = text_[at_++];
      if (c == '"') return out;
      if (c != '\\') {
        out.push_back(c);
        continue;
      }
      if (at_ == text_.size()) break;
      c = text_[at_++];
      constexpr std::string_view letters = "bfnrt", meanings = "\b\f\n\r\t";
      if (c == 'u') {
        uint32_t code = hexadecimal();
        if (code >> 10 == 0x36 && take("\\u")) code = 0x10000 + ((code & 0x3FF) << 10) + (hexadecimal() & 0x3FF);
        append(out, code);
      } else {
        size_t letter = letters.find(c);
        out.push_back(letter == std::string_view::npos ? c : meanings[letter]);
      }
    }
    wrong();
  }

  std::string_view text_;
  size_t at_ = 0;
};

void write(std::string& out, const Json& json) {
  auto text = [&](const std::string& s) { out += std::to_string(s.size()) + ":" + s; };
  switch (json.kind) {
    case Json::null: out += '-'; break;
    case Json::boolean: out += json.value != 0 ? 't' : 'f'; break;
    case Json::number: out += std::to_string(json.value); break;
    case Json::text: out += '"'; text(json.string); break;
    default:
      out += json.kind == Json::list ? '[' : '{';
      for (size_t i = 0; i < json.items.size(); ++i) {
        if (json.kind == Json::object) text(json.keys[i]);
        write(out, json.items[i]);
        out += ',';
      }
      out += ']';
  }
}

}  // namespace

const Json& Json::operator[](std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i] == key) return items[i];
  return nothing;
}

Json parse_json(std::string_view text) { return Reader(text).whole(); }

std::string json_text(const Json& json) {
  std::string out;
  write(out, json);
  return out;
}

}  // namespace relay
