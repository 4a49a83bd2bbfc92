#include "tests/packetdrill/code.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace ringsock::packetdrill {
namespace {

constexpr const char* kConstants =
    "TCP_ESTABLISHED = 1\n"
    "TCP_SYN_SENT = 2\n"
    "TCP_SYN_RECV = 3\n"
    "TCP_FIN_WAIT1 = 4\n"
    "TCP_FIN_WAIT2 = 5\n"
    "TCP_TIME_WAIT = 6\n"
    "TCP_CLOSE = 7\n"
    "TCP_CLOSE_WAIT = 8\n"
    "TCP_LAST_ACK = 9\n"
    "TCP_LISTEN = 10\n"
    "TCP_CLOSING = 11\n"
    "TCP_CA_Open = 0\nTCP_CA_Disorder = 1\nTCP_CA_CWR = 2\nTCP_CA_Recovery = 3\nTCP_CA_Loss = 4\n"
    "TCPI_OPT_TIMESTAMPS = 1\nTCPI_OPT_SACK = 2\nTCPI_OPT_WSCALE = 4\nTCPI_OPT_ECN = 8\nTCPI_OPT_ECN_SEEN = 16\n"
    "TCPI_OPT_SYN_DATA = 32\n";

std::string assignments(const tcp_info& info) {
  std::ostringstream out;
#define FIELD(name) out << #name " = " << std::uint64_t{info.name} << '\n';
  // clang-format off
    FIELD(tcpi_state)
    FIELD(tcpi_ca_state)
    FIELD(tcpi_retransmits)
    FIELD(tcpi_probes)
    FIELD(tcpi_backoff)
    FIELD(tcpi_options)
    FIELD(tcpi_snd_wscale)
    FIELD(tcpi_rcv_wscale)
    FIELD(tcpi_delivery_rate_app_limited)
    FIELD(tcpi_fastopen_client_fail)
    FIELD(tcpi_rto)
    FIELD(tcpi_ato)
    FIELD(tcpi_snd_mss)
    FIELD(tcpi_rcv_mss)
    FIELD(tcpi_unacked)
    FIELD(tcpi_sacked)
    FIELD(tcpi_lost)
    FIELD(tcpi_retrans)
    FIELD(tcpi_fackets)
    FIELD(tcpi_last_data_sent)
    FIELD(tcpi_last_ack_sent)
    FIELD(tcpi_last_data_recv)
    FIELD(tcpi_last_ack_recv)
    FIELD(tcpi_pmtu)
    FIELD(tcpi_rcv_ssthresh)
    FIELD(tcpi_rtt)
    FIELD(tcpi_rttvar)
    FIELD(tcpi_snd_ssthresh)
    FIELD(tcpi_snd_cwnd)
    FIELD(tcpi_advmss)
    FIELD(tcpi_reordering)
    FIELD(tcpi_rcv_rtt)
    FIELD(tcpi_rcv_space)
    FIELD(tcpi_total_retrans)
    FIELD(tcpi_pacing_rate)
    FIELD(tcpi_max_pacing_rate)
    FIELD(tcpi_bytes_acked)
    FIELD(tcpi_bytes_received)
    FIELD(tcpi_segs_out)
    FIELD(tcpi_segs_in)
    FIELD(tcpi_notsent_bytes)
    FIELD(tcpi_min_rtt)
    FIELD(tcpi_data_segs_in)
    FIELD(tcpi_data_segs_out)
    FIELD(tcpi_delivery_rate)
    FIELD(tcpi_busy_time)
    FIELD(tcpi_rwnd_limited)
    FIELD(tcpi_sndbuf_limited)
    FIELD(tcpi_delivered)
    FIELD(tcpi_delivered_ce)
    FIELD(tcpi_bytes_sent)
    FIELD(tcpi_bytes_retrans)
    FIELD(tcpi_dsack_dups)
    FIELD(tcpi_reord_seen)
    FIELD(tcpi_rcv_ooopack)
    FIELD(tcpi_snd_wnd)
  // clang-format on
#undef FIELD
  return out.str();
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '\'') out += '\\';
    out += c;
  }
  return out + '\'';
}

/// The code of a snippet without the white space that all of its lines begin with.
std::string without_indent(std::string text) {
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  if (start == std::string::npos) return "";
  const std::size_t newline = text.rfind('\n', start);
  if (newline == std::string::npos) return text.substr(start);
  const std::string indent = text.substr(newline, start - newline);
  for (std::size_t at = 0; (at = text.find(indent, at)) != std::string::npos; ++at)
    text.erase(at + 1, indent.size() - 1);
  return text;
}

}  // namespace

/// The empty lines before the code make Python name the script's lines.
void Code::add(const CodeSpec& snippet, const tcp_info& info) {
  const std::string code = std::string(static_cast<std::size_t>(snippet.line - 1), '\n') + without_indent(snippet.text);
  program_ += assignments(info) + "exec(compile(" + quoted(code) + ", " + quoted(path_) + ", 'exec'))\n";
}

std::string Code::run() const {
  if (program_.empty()) return {};
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return "no pipes for python3";
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDERR_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::execlp("python3", "python3", "-S", "-", nullptr);
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  const std::string program = kConstants + program_;
  for (std::size_t at = 0; at < program.size();) {
    const ssize_t put = ::write(in[1], program.data() + at, program.size() - at);
    if (put <= 0) break;
    at += static_cast<std::size_t>(put);
  }
  ::close(in[1]);
  std::string said;
  char bytes[4096];
  for (ssize_t got = 0; (got = ::read(out[0], bytes, sizeof bytes)) > 0;)
    said.append(bytes, static_cast<std::size_t>(got));
  ::close(out[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? "" : said.empty() ? "python3 cannot be run" : said;
}

}  // namespace ringsock::packetdrill
