// Objects that a forked child cannot destroy.
#pragma once

#include <memory>
#include <new>
#include <utility>

namespace ringsock::rs {

/// Gives up an object that threads which the child does not have may have locked. It is never destroyed.
template <class T>
void abandon(std::shared_ptr<T>& object) {
  new std::shared_ptr<T>(std::move(object));
  object.reset();
}

}  // namespace ringsock::rs
