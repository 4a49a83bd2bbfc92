#include "core/base/intrusive_list.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace ringsock {
namespace {

struct Guest : ListNode<> {
  explicit Guest(char its_name) : name(its_name) {}
  char name;
};

class Lists : public testing::Test {
 protected:
  std::string names() {
    std::string out;
    list_.for_each([&](Guest& guest) { out += guest.name; });
    return out;
  }
  // Destroyed after the list.
  Guest alice_{'a'}, bob_{'b'}, carol_{'c'};
  IntrusiveList<Guest> list_;
};

TEST_F(Lists, KeepTheOrder) {
  EXPECT_TRUE(list_.empty());
  list_.push_back(bob_);
  list_.push_back(carol_);
  list_.push_front(alice_);
  EXPECT_EQ(names(), "abc");
  EXPECT_EQ(list_.front(), &alice_);
  EXPECT_EQ(list_.pop_front(), &alice_);
  EXPECT_FALSE(alice_.is_linked());
  EXPECT_EQ(names(), "bc");
}

TEST_F(Lists, AnElementThatIsDestroyedLeaves) {
  std::optional<Guest> dave('d');
  list_.push_back(alice_);
  list_.push_back(*dave);
  list_.push_back(bob_);
  dave.reset();
  EXPECT_EQ(names(), "ab");
}

TEST_F(Lists, AnElementMayLeaveWhileItIsVisited) {
  for (Guest* const guest : {&alice_, &bob_, &carol_}) list_.push_back(*guest);
  list_.for_each([](Guest& guest) {
    if (guest.name != 'b') guest.unlink();
  });
  EXPECT_EQ(names(), "b");
}

TEST_F(Lists, ElementsOutliveTheirList) {
  {
    IntrusiveList<Guest> other;
    other.push_back(alice_);
    EXPECT_TRUE(alice_.is_linked());
  }
  EXPECT_FALSE(alice_.is_linked());
  EXPECT_EQ(list_.pop_front(), nullptr);
  alice_.unlink();  // harmless
}

}  // namespace
}  // namespace ringsock
