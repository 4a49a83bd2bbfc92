// Shared libraries that are loaded when one of their functions is first called. Programs that never call one do not
// load them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <string>
#include <type_traits>

namespace ringsock {

/// A library that is loaded on first use and never unloaded. Threads: any.
class LateLibrary {
 public:
  /// @param file  its soname, for dlopen(3)
  constexpr explicit LateLibrary(const char* file) : file_(file) {}
  LateLibrary(const LateLibrary&) = delete;
  LateLibrary& operator=(const LateLibrary&) = delete;

  /// Loads the library. @return  empty, or why that failed, in the dynamic linker's words. errno is kept.
  [[nodiscard]] std::string load_error() const;
  /// Loads the library. @return  null when it, or the function in it, is missing. errno is kept.
  void* find(const char* function) const;

 private:
  [[nodiscard]] void* handle() const;

  const char* const file_;
};

/// The name of a function, as an argument of a template.
template <std::size_t size>
struct FunctionName {
  // NOLINTNEXTLINE(google-explicit-constructor): written as a literal.
  consteval FunctionName(const char (&literal)[size]) { std::copy_n(literal, size, text); }
  char text[size];
};

template <const LateLibrary& library, FunctionName name, class Function>
struct LateFunction;

template <const LateLibrary& library, FunctionName name, class Result, class... Arguments>
struct LateFunction<library, name, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    auto* function = found_.load(std::memory_order_acquire);
    if (function == nullptr) [[unlikely]] {
      function = reinterpret_cast<Result (*)(Arguments...)>(library.find(name.text));
      if (function == nullptr) return missing();
      found_.store(function, std::memory_order_release);
    }
    return function(arguments...);
  }

 private:
  static Result missing() {
    errno = ENOSYS;
    if constexpr (std::is_pointer_v<Result>) {
      return nullptr;
    } else if constexpr (!std::is_void_v<Result>) {
      return static_cast<Result>(-1);
    }
  }

  static constinit inline std::atomic<Result (*)(Arguments...)> found_{nullptr};
};

/// A function of that type, which calls the library's function of that name. Where the library has none, it returns -1
/// or null with errno ENOSYS.
template <const LateLibrary& library, FunctionName name, class Function>
inline constexpr auto late = &LateFunction<library, name, Function>::call;

}  // namespace ringsock
