#include "tools/stream_arguments.h"

#include <getopt.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "tools/text.h"

namespace ringsock::tools {

namespace {

struct OptionHelp {
  char letter;
  const char* argument;
  const char* text;
};

constexpr std::array kOptionHelp{
    OptionHelp{'s', "server_address", "connect to this server; without it, be the server"},
    OptionHelp{'b', "bind_address", "local address to bind to"},
    OptionHelp{'f', "address_format", "name, ip, ipv6, or gid (name)"},
    OptionHelp{'B', "buffer_size", "send and receive buffers in bytes, 0 for the system's (524288)"},
    OptionHelp{'i', "inline_size", "inline data of latency tests in bytes (64)"},
    OptionHelp{'I', "iterations", "how often to send and receive transfer_count messages (1)"},
    OptionHelp{'C', "transfer_count", "messages each way per iteration (1000)"},
    OptionHelp{'S', "transfer_size", "bytes per message (1000), or all for a long series of sizes"},
    OptionHelp{'p', "port_number", "(7471)"},
    OptionHelp{'k', "keepalive_time", "probe an idle connection after so many seconds"},
    OptionHelp{'T', "test_option", "one of the words below or its first letter; may be repeated"},
    OptionHelp{'h', "", "show this help"},
};

struct TestWord {
  std::string_view word;
  const char* text;
  bool StreamOptions::*flag;  ///< null: the default behaviour
};

constexpr std::array kTestWords{
    TestWord{"sockets", "use kernel TCP sockets", &StreamOptions::kernel},
    TestWord{"async", "wait with poll before each call", &StreamOptions::async},
    TestWord{"blocking", "use blocking calls", &StreamOptions::blocking},
    TestWord{"fork", "the server forks a process per connection; implies sockets", &StreamOptions::fork},
    TestWord{"nonblocking", "use nonblocking calls (default)", nullptr},
    TestWord{"resolve", "resolve addresses by the RDMA connection manager", &StreamOptions::resolve},
    TestWord{"verify", "check the data", &StreamOptions::verify},
};

bool has_option(const StreamTool& tool, char letter) {
  return std::string_view(tool.short_options).find(letter) != std::string_view::npos;
}

bool has_test(const StreamTool& tool, const TestWord& test) {
  return tool.tests.find(test.word.front()) != std::string_view::npos;
}

void print_usage(const StreamTool& tool, std::FILE* out) {
  std::fprintf(out, "usage: %s [options]\n", tool.name);
  for (const OptionHelp& option : kOptionHelp) {
    if (!has_option(tool, option.letter)) continue;
    std::fprintf(out, "  -%c %-15s %s\n", option.letter, option.argument, option.text);
    if (option.letter != 'T') continue;
    for (const TestWord& test : kTestWords) {
      if (!has_test(tool, test)) continue;
      std::fprintf(out, "       %c|%-12.*s %s\n", test.word.front(), static_cast<int>(test.word.size()),
                   test.word.data(), test.text);
    }
  }
  std::fprintf(out, "Any of -I, -C or -S with a number runs one test with these values instead of the series.\n");
}

bool set_format(StreamOptions& options, std::string_view text) {
  if (text == "gid") {
    options.format = AddressFormat::gid;
  } else if (text == "ipv6") {
    options.format = AddressFormat::ipv6;
  } else if (text == "ip") {
    options.format = AddressFormat::ip;
  } else if (text == "name") {
    options.format = AddressFormat::name;
  } else {
    return false;
  }
  return true;
}

bool set_test(const StreamTool& tool, StreamOptions& options, std::string_view text) {
  for (const TestWord& test : kTestWords) {
    if (!has_test(tool, test) || !means(text, test.word)) continue;
    if (test.flag != nullptr) {
      options.*test.flag = true;
    } else {
      options.blocking = false;
    }
    if (options.fork) options.kernel = true;
    return true;
  }
  return false;
}

bool set_size(StreamOptions& options, std::string_view text) {
  if (text == "all") {
    options.all_sizes = true;
    return true;
  }
  options.custom = true;
  return set_number(options.transfer_bytes, text, 1, 1U << 30);
}

/// Sets one option. Returns false when its argument is invalid.
bool set_option(const StreamTool& tool, StreamOptions& options, int letter, const char* argument) {
  constexpr std::uint64_t kMaxInt = std::numeric_limits<int>::max();
  switch (letter) {
    case 's': options.server = argument; return !options.server.empty();
    case 'b': options.bind_node = argument; return !options.bind_node.empty();
    case 'f': return set_format(options, argument);
    case 'B': return set_number(options.buffer_bytes, argument, 0, kMaxInt);
    case 'i': return set_number(options.inline_bytes, argument, 0, 65535);
    case 'I': options.custom = true; return set_number(options.iterations, argument, 1, kMaxInt);
    case 'C': options.custom = true; return set_number(options.transfers, argument, 1, kMaxInt);
    case 'S': return set_size(options, argument);
    case 'p': options.port = argument; return parse_number(argument, 1, 65535).has_value();
    case 'k': return set_number(options.keepalive_s, argument, 1, 32767);
    case 'T': return set_test(tool, options, argument);
    default: return false;
  }
}

}  // namespace

ParsedOptions parse_stream_options(const StreamTool& tool, int argc, char** argv) {
  constexpr std::array kLongOptions{option{"help", no_argument, nullptr, 'h'}, option{nullptr, 0, nullptr, 0}};
  StreamOptions options;
  for (;;) {
    const int letter = ::getopt_long(argc, argv, tool.short_options, kLongOptions.data(), nullptr);
    if (letter == -1) break;
    if (letter == 'h') {
      print_usage(tool, stdout);
      return {.options = std::nullopt, .exit_status = EXIT_SUCCESS};
    }
    if (letter == '?' || !set_option(tool, options, letter, ::optarg)) {
      if (letter != '?') std::fprintf(stderr, "%s: wrong value for -%c: %s\n", tool.name, letter, ::optarg);
      print_usage(tool, stderr);
      return {.options = std::nullopt, .exit_status = EXIT_FAILURE};
    }
  }
  if (::optind < argc) {
    std::fprintf(stderr, "%s: what is \"%s\"?\n", tool.name, argv[::optind]);
    print_usage(tool, stderr);
    return {.options = std::nullopt, .exit_status = EXIT_FAILURE};
  }
  return {.options = options, .exit_status = EXIT_SUCCESS};
}

}  // namespace ringsock::tools
