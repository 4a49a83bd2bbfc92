// Values or errors, without exceptions.
#pragma once

#include <cerrno>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <variant>

namespace ringsock {

/// Why a call failed, and the step that failed.
struct [[nodiscard]] Error {
  int code;           ///< errno(3) value, never 0
  const char* where;  ///< static string, e.g. "ibv_reg_mr"
  static Error last(const char* where) { return {errno, where}; }
};

/// The subset of C++23 std::expected<T, Error> that we use.
template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : v_(std::in_place_index<1>, error) {}
  explicit operator bool() const { return v_.index() == 0; }
  T& operator*() & { return *std::get_if<0>(&v_); }
  const T& operator*() const& { return *std::get_if<0>(&v_); }
  T&& operator*() && { return std::move(*std::get_if<0>(&v_)); }
  T* operator->() { return std::get_if<0>(&v_); }
  const T* operator->() const { return std::get_if<0>(&v_); }
  /// Only valid when the result is an error.
  Error error() const { return *std::get_if<1>(&v_); }

 private:
  std::variant<T, Error> v_;
};

/// A value that fits into a register: the result is returned in two registers, not in memory. Every call on the data
/// path has such a result.
template <class T>
requires(std::is_trivially_copyable_v<T>&& std::is_trivially_default_constructible_v<T> &&
         sizeof(T) <= sizeof(const char*)) class [[nodiscard]] Result<T> {
 public:
  using value_type = T;
  Result(T value) : value_(value) {}
  Result(Error error) : where_(error.where), code_(error.code) {}
  explicit operator bool() const { return code_ == 0; }
  T& operator*() & { return value_; }
  const T& operator*() const& { return value_; }
  T&& operator*() && { return std::move(value_); }
  T* operator->() { return &value_; }
  const T* operator->() const { return &value_; }
  /// Only valid when the result is an error.
  Error error() const { return {code_, where_}; }

 private:
  union {
    T value_;
    const char* where_;
  };
  int code_ = 0;
};

/// Success without a value: `return Result<void>{};` or `return ok();`.
template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error error) : error_(error) {}
  explicit operator bool() const { return error_.code == 0; }
  Error error() const { return error_; }

 private:
  Error error_{0, nullptr};
};

using Status = Result<void>;
inline Status ok() { return {}; }

}  // namespace ringsock
