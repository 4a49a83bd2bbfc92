// Objects that a forked child has, and must leave alone.
#pragma once

#include <utility>

namespace ringsock {

/// Empties an object without destroying its contents, which are never destroyed: threads that do not exist here may
/// have locked them, or the parent still uses them.
template <class T>
void abandon(T& object) {
  new T(std::move(object));
  object = T();
}

}  // namespace ringsock
