// Reads the text of a script from left to right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringsock::packetdrill {

/// All functions but take_until() skip white space and comments first.
class Cursor {
 public:
  Cursor(std::string path, std::string_view text) : path_(std::move(path)), text_(text) {}
  [[nodiscard]] bool at_end();
  [[nodiscard]] bool sees(std::string_view token);
  bool accept(std::string_view token);
  void expect(std::string_view token);
  /// A name: letters, digits, '_'. Empty when there is none.
  std::string word();
  /// Letters and digits, and what else is in `others`.
  std::string word_with(std::string_view others);
  /// Decimal, hexadecimal or octal; nothing when there is none.
  std::optional<std::int64_t> number();
  std::int64_t need_number();
  /// A number of seconds with a fraction, in microseconds.
  std::optional<std::int64_t> microseconds();
  /// A text in double quotes, when one is here.
  std::optional<std::string> quoted();
  /// All that comes before `end`, which is skipped.
  std::string take_until(std::string_view end);
  std::string rest_of_line();
  [[nodiscard]] int line();
  [[nodiscard]] std::size_t position() const { return at_; }
  void go_back(std::size_t position) { at_ = position; }
  [[noreturn]] void fail(const std::string& what);

 private:
  void skip();
  std::string path_;
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace ringsock::packetdrill
