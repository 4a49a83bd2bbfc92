// Plays the scripts of this folder on the shared object, a test for each.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/packetdrill/player.h"
#include "tests/support/sanitizers.h"

namespace ringsock::packetdrill {
namespace {

std::vector<std::string> all_scripts() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(PACKETDRILL_SCRIPTS))
    if (entry.path().extension() == ".pkt") out.push_back(entry.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

std::string name_of(const std::string& path) {
  std::string out = std::filesystem::path(path).stem().string();
  for (char& c : out)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return out;
}

class Scripts : public testing::TestWithParam<std::string> {};

TEST_P(Scripts, GoAsTheySay) {
  constexpr int kDeepBind = support::kHasAddressSanitizer ? 0 : RTLD_DEEPBIND;  // whose runtime refuses that
  void* library = dlopen(PACKETDRILL_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | kDeepBind);
  ASSERT_NE(library, nullptr) << dlerror();
  using Init = void (*)(const char*, packetdrill_interface*);
  const auto init = reinterpret_cast<Init>(dlsym(library, "packetdrill_interface_init"));
  ASSERT_NE(init, nullptr);
  std::ifstream file(GetParam());
  std::ostringstream text;
  text << file.rdbuf();
  packetdrill_interface table{};
  init("", &table);
  Script script;
  ASSERT_NO_THROW(script = parse_script(GetParam(), text.str()));
  const Played played = play(script, table, {});
  if (!played.in_use) table.free(table.userdata);
  EXPECT_EQ(played.wrong, "");
}

INSTANTIATE_TEST_SUITE_P(All, Scripts, testing::ValuesIn(all_scripts()),
                         [](const auto& each) { return name_of(each.param); });

}  // namespace
}  // namespace ringsock::packetdrill
