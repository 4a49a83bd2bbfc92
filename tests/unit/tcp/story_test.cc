// Plays every story of stories/*.story: one test for each.
#include "tests/unit/tcp/story.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace ringsock::engine::tcp {
namespace {

class PlayedStory : public testing::Test {
 public:
  PlayedStory(Story story, std::string file) : story_(std::move(story)), file_(std::move(file)) {}
  void TestBody() override {
    Stage stage;
    for (const auto& [number, line] : story_.lines) {
      const std::string wrong = stage.play(line);
      ASSERT_EQ(wrong, "") << file_ << ':' << number << ": " << line;
    }
    EXPECT_EQ(stage.rest(), "") << file_ << ": left over at the end of " << story_.name;
  }

 private:
  Story story_;
  std::string file_;
};

std::string test_name(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return text;
}

std::filesystem::path story_folder() {
  const char* source = std::getenv("srcdir");
  return std::filesystem::path(source != nullptr ? source : ".") / "tests/unit/tcp/stories";
}

void register_stories() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(story_folder()))
    if (entry.path().extension() == ".story") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& file : files)
    for (const Story& story : read_stories(file))
      testing::RegisterTest(test_name(file.stem()).c_str(), test_name(story.name).c_str(), nullptr, nullptr, __FILE__,
                            __LINE__, [story, file]() -> testing::Test* { return new PlayedStory(story, file); });
}

}  // namespace
}  // namespace ringsock::engine::tcp

int main(int argc, char** argv) {
  ringsock::engine::tcp::register_stories();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
