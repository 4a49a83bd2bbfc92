// Libraries that are loaded when they are first needed, and those that are missing.
#include "core/base/late_library.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace ringsock {
namespace {

constexpr LateLibrary math{"libm.so.6"};
constexpr LateLibrary missing{"libringsock-has-no-such.so.9"};

TEST(LateLibraryTest, CallsTheFunctionOfThatName) {
  errno = 7;
  EXPECT_EQ((late<math, "fmax", double(double, double)>(2.0, 3.0)), 3.0);
  EXPECT_EQ((late<math, "fmax", double(double, double)>(8.0, 3.0)), 8.0);
  EXPECT_EQ(math.load_error(), "");
  EXPECT_EQ(errno, 7);
}

TEST(LateLibraryTest, TellsWhichLibraryIsMissingAsTheLinkerDoes) {
  errno = 7;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(missing.load_error(),
              "libringsock-has-no-such.so.9: cannot open shared object file: No such file or directory");
  }
  EXPECT_EQ(missing.find("fmax"), nullptr);
  EXPECT_EQ(errno, 7);
}

TEST(LateLibraryTest, CallsOfWhatIsMissingFail) {
  EXPECT_EQ((late<missing, "connect", int(int)>(3)), -1);
  EXPECT_EQ(errno, ENOSYS);
  errno = 0;
  EXPECT_EQ((late<math, "has_no_such_function", void*()>()), nullptr);
  EXPECT_EQ(errno, ENOSYS);
  late<missing, "close", void(int)>(3);
}

}  // namespace
}  // namespace ringsock
