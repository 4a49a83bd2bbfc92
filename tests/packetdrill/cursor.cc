#include "tests/packetdrill/cursor.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tests/packetdrill/script.h"

namespace ringsock::packetdrill {
namespace {
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
}  // namespace

void Cursor::skip() {
  for (;;) {
    const std::string_view rest = text_.substr(at_);
    if (!rest.empty() && std::isspace(static_cast<unsigned char>(rest[0])) != 0) {
      ++at_;
    } else if (rest.starts_with("//") || rest.starts_with("#")) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (rest.starts_with("/*")) {
      const std::size_t end = text_.find("*/", at_ + 2);
      if (end == std::string_view::npos) fail("a comment has no end");
      at_ = end + 2;
    } else {
      return;
    }
  }
}

bool Cursor::at_end() {
  skip();
  return at_ == text_.size();
}

bool Cursor::sees(std::string_view token) {
  skip();
  return text_.substr(at_).starts_with(token);
}

bool Cursor::accept(std::string_view token) {
  if (!sees(token)) return false;
  at_ += token.size();
  return true;
}

void Cursor::expect(std::string_view token) {
  if (!accept(token)) fail("expected '" + std::string(token) + "'");
}

std::string Cursor::word_with(std::string_view others) {
  skip();
  const std::size_t start = at_;
  while (at_ < text_.size() && (is_word(text_[at_]) || others.find(text_[at_]) != std::string_view::npos)) ++at_;
  return std::string(text_.substr(start, at_ - start));
}

std::string Cursor::word() {
  skip();
  return at_ < text_.size() && is_digit(text_[at_]) ? std::string() : word_with("");
}

std::optional<std::int64_t> Cursor::number() {
  skip();
  std::size_t digits = at_;
  const bool minus = digits < text_.size() && text_[digits] == '-';
  if (minus) ++digits;
  if (digits >= text_.size() || !is_digit(text_[digits])) return std::nullopt;
  std::size_t end = digits;
  while (end < text_.size() && is_word(text_[end])) ++end;
  const std::string word(text_.substr(digits, end - digits));
  char* stop = nullptr;
  const auto value = static_cast<std::int64_t>(std::strtoull(word.c_str(), &stop, 0));
  if (*stop != '\0') return std::nullopt;
  at_ = end;
  return minus ? -value : value;
}

std::int64_t Cursor::need_number() {
  const auto value = number();
  if (!value) fail("expected a number");
  return *value;
}

std::optional<std::int64_t> Cursor::microseconds() {
  skip();
  const std::size_t start = at_;
  std::int64_t us = 0, unit = 1'000'000;
  for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) us = us * 10 + (text_[at_] - '0') * 1'000'000;
  const std::string_view rest = text_.substr(at_);
  if (rest.size() > 1 && rest[0] == '.' && is_digit(rest[1]))
    for (++at_; at_ < text_.size() && is_digit(text_[at_]); ++at_) us += (text_[at_] - '0') * (unit /= 10);
  if (at_ == start) return std::nullopt;
  return us;
}

std::optional<std::string> Cursor::quoted() {
  if (!accept("\"")) return std::nullopt;
  return take_until("\"");
}

std::string Cursor::take_until(std::string_view end) {
  const std::size_t found = text_.find(end, at_);
  if (found == std::string_view::npos) fail("expected '" + std::string(end) + "'");
  const std::string taken(text_.substr(at_, found - at_));
  at_ = found + end.size();
  return taken;
}

std::string Cursor::rest_of_line() {
  const std::size_t end = std::min(text_.find('\n', at_), text_.size());
  const std::string taken(text_.substr(at_, end - at_));
  at_ = end;
  return taken;
}

int Cursor::line() {
  skip();
  return 1 + static_cast<int>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
}

void Cursor::fail(const std::string& what) {
  const auto before = std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
  throw ScriptError(path_ + ":" + std::to_string(before + 1) + ": " + what + " at '" +
                    std::string(text_.substr(at_, std::min<std::size_t>(24, text_.find('\n', at_) - at_))) + "'");
}

}  // namespace ringsock::packetdrill
