// A doubly linked list whose links live in the elements: no allocation to insert or remove.
#pragma once

#include <cstddef>

namespace ringsock {

template <class T, class Tag>
class IntrusiveList;

/// Base of an element that can be in one list per Tag. Leaves its list on destruction.
template <class Tag = void>
class ListNode {
 public:
  ListNode() = default;
  ListNode(const ListNode&) = delete;
  ListNode& operator=(const ListNode&) = delete;
  ~ListNode() { unlink(); }

  [[nodiscard]] bool is_linked() const { return next_ != nullptr; }
  void unlink() {
    if (!is_linked()) return;
    prev_->next_ = next_;
    next_->prev_ = prev_;
    next_ = prev_ = nullptr;
  }

 private:
  template <class T, class ListTag>
  friend class IntrusiveList;
  ListNode* next_ = nullptr;
  ListNode* prev_ = nullptr;
};

/// List of T, which derives from ListNode<Tag>. Does not own the elements. The caller synchronises.
template <class T, class Tag = void>
class IntrusiveList {
 public:
  using Node = ListNode<Tag>;

  IntrusiveList() { head_.next_ = head_.prev_ = &head_; }
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;
  ~IntrusiveList() {
    while (pop_front() != nullptr) {
    }
    head_.next_ = head_.prev_ = nullptr;
  }

  [[nodiscard]] bool empty() const { return head_.next_ == &head_; }
  T* front() { return empty() ? nullptr : static_cast<T*>(head_.next_); }
  void push_back(T& element) {
    Node& node = element;
    node.prev_ = head_.prev_;
    node.next_ = &head_;
    head_.prev_->next_ = &node;
    head_.prev_ = &node;
  }
  void push_front(T& element) {
    Node& node = element;
    node.prev_ = &head_;
    node.next_ = head_.next_;
    head_.next_->prev_ = &node;
    head_.next_ = &node;
  }
  T* pop_front() {
    T* element = front();
    if (element) static_cast<Node*>(element)->unlink();
    return element;
  }
  /// Calls `visit(T&)` for each element; `visit` may unlink the element it is called with.
  template <class Visit>
  void for_each(Visit visit) {
    for (Node* node = head_.next_; node != &head_;) {
      Node* next = node->next_;
      visit(*static_cast<T*>(node));
      node = next;
    }
  }
  /// Calls `visit(T&)` for the first `count` elements, until one call returns false. The list must have that many;
  /// `visit` must not unlink any.
  template <class Visit>
  void for_first(std::size_t count, Visit visit) {
    for (Node* node = head_.next_; count > 0 && visit(*static_cast<T*>(node)); --count) node = node->next_;
  }

 private:
  Node head_;
};

}  // namespace ringsock
