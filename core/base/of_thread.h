// An object for each thread that is destroyed when its thread ends.
#pragma once

#include <cstddef>
#include <new>

namespace ringsock {

/// What is done when the thread ends that it was registered by. Stays in place until then.
struct ThreadEnd {
  void (*run)(ThreadEnd& self) = nullptr;
  ThreadEnd* next = nullptr;
};
/// Runs `end` when the calling thread ends; those that were registered last are run first. Returns false when that
/// cannot be registered.
bool run_at_thread_end(ThreadEnd& end);

/// A thread_local object with a destructor takes memory of the heap when it is made, and C++ ends the program where
/// there is none. This one takes none, and a thread that cannot have it does without. Objects of threads that run when
/// the process ends are not destroyed. Declare it `thread_local constinit`.
template <class T>
class OfThread {
 public:
  /// Returns the calling thread's object, made now if it is not there. Null when it cannot be had.
  T* get() {
    if (!is_made_) {
      end_.run = [](ThreadEnd& end) { reinterpret_cast<OfThread&>(end).destroy(); };
      if (!run_at_thread_end(end_)) return nullptr;
      new (room_) T;
      is_made_ = true;
    }
    return find();
  }
  /// Returns it if it is there, null otherwise.
  T* find() { return is_made_ ? std::launder(reinterpret_cast<T*>(room_)) : nullptr; }

 private:
  void destroy() {
    is_made_ = false;
    std::launder(reinterpret_cast<T*>(room_))->~T();
  }
  ThreadEnd end_;  // first: its address is the object's
  bool is_made_ = false;
  alignas(T) std::byte room_[sizeof(T)]{};
};

}  // namespace ringsock
