// rcopy: copies a file to another machine, or receives such files.
#include <getopt.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "tools/rcopy_client.h"
#include "tools/rcopy_protocol.h"
#include "tools/rcopy_server.h"
#include "tools/text.h"

namespace ringsock::tools {
namespace {

void print_usage(std::FILE* out) {
  std::fprintf(out,
               "usage: rcopy [options]                               receive files\n"
               "       rcopy source server[:destination] [options]   send a file\n"
               "  -p port_number  (%s)\n"
               "  -T s|sockets    use kernel TCP sockets\n"
               "  -h              show this help\n"
               "An IPv6 address of a server goes in brackets: [::1]:destination.\n",
               kRcopyPort);
}

/// Parses "host", "host:path", "[v6 address]:path". Without a path the file keeps its name.
RcopyJob job_from(const std::string& source, std::string_view target, const std::string& port) {
  RcopyJob job{.source = source, .server = {}, .destination = {}, .port = port};
  const bool bracketed = target.starts_with('[') && target.find(']') != std::string_view::npos;
  const std::size_t colon = target.find(':', bracketed ? target.find(']') : 0);
  const std::string_view host = target.substr(0, colon);
  job.server = bracketed ? host.substr(1, host.find(']') - 1) : host;
  if (colon != std::string_view::npos) job.destination = target.substr(colon + 1);
  if (job.destination.empty()) job.destination = source;
  return job;
}

int fail(Error error) {
  std::fprintf(stderr, "rcopy: %s: %s\n", error.where, std::strerror(error.code));
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace ringsock::tools

int main(int argc, char** argv) {
  using namespace ringsock::tools;
  constexpr std::array kLongOptions{option{"help", no_argument, nullptr, 'h'}, option{nullptr, 0, nullptr, 0}};
  std::string port = kRcopyPort;
  const SocketCalls* calls = &rsockets();
  for (int letter; (letter = ::getopt_long(argc, argv, "p:T:h", kLongOptions.data(), nullptr)) != -1;) {
    if (letter == 'p' && parse_number(::optarg, 1, 65535)) {
      port = ::optarg;
    } else if (letter == 'T' && means(::optarg, "sockets")) {
      calls = &kernel_sockets();
    } else {
      if (letter != '?' && letter != 'h') std::fprintf(stderr, "rcopy: wrong value for -%c: %s\n", letter, ::optarg);
      print_usage(letter == 'h' ? stdout : stderr);
      return letter == 'h' ? EXIT_SUCCESS : EXIT_FAILURE;
    }
  }
  // A peer that disconnects must cause an error message, not death by SIGPIPE.
  std::signal(SIGPIPE, SIG_IGN);
  const int words = argc - ::optind;
  if (words == 0) return fail(serve_copies(*calls, port));
  if (words != 2) {
    print_usage(stderr);
    return EXIT_FAILURE;
  }
  const RcopyJob job = job_from(argv[::optind], argv[::optind + 1], port);
  const auto done = copy_to_server(*calls, job);
  return done ? EXIT_SUCCESS : fail(done.error());
}
