// Plays scripts of packetdrill's language on the shared object of this folder, or on the kernel.
#include <dlfcn.h>
#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tests/packetdrill/kernel_table.h"
#include "tests/packetdrill/player.h"
#include "tests/support/sanitizers.h"

namespace ringsock::packetdrill {
namespace {

constexpr const char* kHelp =
    "usage: play [OPTION]... SCRIPT.pkt...\n"
    "Plays scripts of packetdrill's language and prints what went otherwise, as \"SCRIPT.pkt:LINE: ...\".\n"
    "The status is 0 when all scripts have gone as they say.\n\n"
    "  --so_filename=LIB.so      the stack; otherwise the object of this build\n"
    "  --so_flags=TEXT           its flags, e.g. tso\n"
    "  --ip_version=VERSION      ipv4, ipv6 or ipv4-mapped-ipv6; like the next two it replaces what a script says\n"
    "  --tolerance_usecs=N       how far times may be off: 4000\n"
    "  --tcp_ts_tick_usecs=N     compare time stamps with this tick; 0: do not\n"
    "  --kernel                  the stack is the kernel's, behind a TUN device in a network namespace of its own\n"
    "  --dry_run                 only reads the scripts\n"
    "  --verbose                 prints packets and calls\n"
    "  --help                    prints this\n";

struct Wanted {
  std::string library = PACKETDRILL_LIBRARY, flags;
  std::map<std::string, std::string> replaced;
  PlayerOptions player;
  bool dry = false;
};

std::string fill_table(const Wanted& wanted, packetdrill_interface& table) {
  if (wanted.player.kernel) return make_kernel_table(table);
  constexpr int kDeepBind = support::kHasAddressSanitizer ? 0 : RTLD_DEEPBIND;  // whose runtime refuses that
  void* library = ::dlopen(wanted.library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | kDeepBind);
  if (library == nullptr) return ::dlerror();
  using Init = void (*)(const char*, packetdrill_interface*);
  const auto init = reinterpret_cast<Init>(::dlsym(library, "packetdrill_interface_init"));
  if (init == nullptr) return ::dlerror();
  init(wanted.flags.c_str(), &table);
  return {};
}

std::string play_file(const std::string& path, const Wanted& wanted) {
  std::ifstream file(path);
  if (!file) return path + ": cannot be read";
  std::ostringstream text;
  text << file.rdbuf();
  try {
    Script script = parse_script(path, text.str());
    for (const auto& [name, value] : wanted.replaced) script.options[name] = value;
    if (wanted.dry) return {};
    packetdrill_interface table{};
    if (const std::string wrong = fill_table(wanted, table); !wrong.empty()) return wrong;
    const Played played = play(script, table, wanted.player);
    if (!played.in_use) table.free(table.userdata);
    return played.wrong;
  } catch (const ScriptError& error) {
    return error.what();
  }
}

int run(int count, char** arguments) {
  enum : int { library = 1, flags, version, tolerance, tick, kernel, dry, verbose, help };
  static const option kOptions[] = {{"so_filename", required_argument, nullptr, library},
                                    {"so_flags", required_argument, nullptr, flags},
                                    {"ip_version", required_argument, nullptr, version},
                                    {"tolerance_usecs", required_argument, nullptr, tolerance},
                                    {"tcp_ts_tick_usecs", required_argument, nullptr, tick},
                                    {"kernel", no_argument, nullptr, kernel},
                                    {"dry_run", no_argument, nullptr, dry},
                                    {"verbose", no_argument, nullptr, verbose},
                                    {"help", no_argument, nullptr, help},
                                    {nullptr, 0, nullptr, 0}};
  Wanted wanted;
  for (int choice = 0; (choice = ::getopt_long(count, arguments, "", kOptions, nullptr)) != -1;) {
    switch (choice) {
      case library: wanted.library = optarg; break;
      case flags: wanted.flags = optarg; break;
      case version: wanted.replaced["ip_version"] = optarg; break;
      case tolerance: wanted.player.tolerance_us = std::atoll(optarg); break;
      case tick: wanted.replaced["tcp_ts_tick_usecs"] = optarg; break;
      case kernel: wanted.player.kernel = true; break;
      case dry: wanted.dry = true; break;
      case verbose: wanted.player.verbose = true; break;
      case help: std::fputs(kHelp, stdout); return 0;
      default: std::fputs(kHelp, stderr); return 2;
    }
  }
  if (optind == count) {
    std::fputs(kHelp, stderr);
    return 2;
  }
  int status = 0;
  for (int i = optind; i < count; ++i) {
    const std::string wrong = play_file(arguments[i], wanted);
    if (wrong.empty()) {
      std::printf("OK   %s\n", arguments[i]);
    } else {
      std::printf("%s\nFAIL %s\n", wrong.c_str(), arguments[i]);
      status = 1;
    }
    std::fflush(stdout);
  }
  return status;
}

}  // namespace
}  // namespace ringsock::packetdrill

int main(int count, char** arguments) { return ringsock::packetdrill::run(count, arguments); }
