// A system call that no library sees: syscall(2) is one of those that the preload libraries intercept.
#pragma once

#include <cerrno>
#include <cstdint>
#include <type_traits>

namespace ringsock {

namespace raw {

template <class Word>
long word(Word value) {
  if constexpr (std::is_pointer_v<Word>) {
    return reinterpret_cast<long>(value);
  } else if constexpr (std::is_null_pointer_v<Word>) {
    return 0;
  } else {
    return static_cast<long>(value);
  }
}

inline long call(long number, long first, long second, long third, long fourth, long fifth, long sixth) {
#if defined(__x86_64__)
  long answer = number;
  register long r10 asm("r10") = fourth;
  register long r8 asm("r8") = fifth;
  register long r9 asm("r9") = sixth;
  asm volatile("syscall"
               : "+a"(answer)
               : "D"(first), "S"(second), "d"(third), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return answer;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = first;
  register long x1 asm("x1") = second;
  register long x2 asm("x2") = third;
  register long x3 asm("x3") = fourth;
  register long x4 asm("x4") = fifth;
  register long x5 asm("x5") = sixth;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#else
#error "this architecture's system call is not known to the tests"
#endif
}

}  // namespace raw

/// As syscall(2): -1 and errno after an error.
template <class... Words>
long raw_syscall(long number, Words... words) {
  static_assert(sizeof...(words) <= 6);
  long six[6] = {};
  long* next = six;
  ((*next++ = raw::word(words)), ...);
  const long answer = raw::call(number, six[0], six[1], six[2], six[3], six[4], six[5]);
  if (answer >= 0 || answer < -4095) return answer;
  errno = static_cast<int>(-answer);
  return -1;
}

}  // namespace ringsock
