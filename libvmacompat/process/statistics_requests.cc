#include "libvmacompat/process/statistics_requests.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/ethernet/ethernet.h"
#include "core/runtime/fd_table.h"
#include "core/runtime/service_thread.h"
#include "libvmacompat/process/ring_user.h"
#include "libvmacompat/process/vma_process.h"
#include "libvmacompat/statistics/vma_page_reader.h"
#include "libvmacompat/statistics/vma_views.h"

namespace ringsock::vma {

namespace {

void log_lines(config::VmaLogLevel level, std::string_view text) {
  for (std::size_t end = 0; !text.empty(); text.remove_prefix(std::min(text.size(), end + 1))) {
    end = std::min(text.find('\n'), text.size());
    process().log.write(level, text.substr(0, end));
  }
}

void trace_socket(int fd, int segments) {
  runtime::FdTable::Lookup socket = runtime::fd_table().find(fd);
  if (socket) socket.pin();
  RingUser* const user = socket ? ring_user_of(*socket) : nullptr;
  const auto count = static_cast<std::uint32_t>(segments != runtime::kVmaUnchanged ? segments : runtime::kVmaTraced);
  if (user != nullptr && user->trace(count)) return;
  process().log.write(config::VmaLogLevel::warning,
                      "descriptor " + std::to_string(fd) + " is no TCP connection on a ring: it is not traced");
}

void do_what_is_asked() {
  const auto question = runtime::vma_statistics.take_asked();
  if (!question) return;
  const runtime::VmaAsked& asked = *question;
  if (asked.log_level != runtime::kVmaUnchanged)
    process().log.set_level(static_cast<config::VmaLogLevel>(asked.log_level));
  if (asked.log_details != runtime::kVmaUnchanged) process().log.set_details(asked.log_details);
  for_each_ring_user(&RingUser::refresh_statistics);
  const auto pools = ethernet::Ethernet::refresh_statistics();
  for (std::size_t i = 0; i < pools.size(); ++i)
    runtime::vma_statistics.show_pool(i, true, pools[i].buffers, pools[i].refusals);
  runtime::vma_statistics.show_pools(pools.size());
  if (asked.dump_fd != runtime::kVmaUnchanged) {
    const bool has_level = asked.dump_level != runtime::kVmaUnchanged;
    dump_sockets(asked.dump_fd,
                 has_level ? static_cast<config::VmaLogLevel>(asked.dump_level) : config::VmaLogLevel::info);
  }
  if (asked.trace_fd != runtime::kVmaUnchanged) trace_socket(asked.trace_fd, asked.trace_segments);
  runtime::vma_statistics.answer(asked.number);
}

}  // namespace

bool dump_sockets(int fd, config::VmaLogLevel level) {
  for_each_ring_user(&RingUser::refresh_statistics);
  const auto all = runtime::vma_statistics.snapshot();
  if (!all) return false;
  for (const auto& socket : all->sockets) {
    if (fd == 0 || socket.fd == fd) log_lines(level, runtime::vma_socket_block(socket, runtime::VmaCounting::totals));
  }
  return true;
}

void follow_statistics_requests() {
  const auto fd = runtime::vma_statistics.asked_fd();
  if (!fd) {
    if (fd.error().code != ENOENT)
      log_debug("vma_stats can only look: %s: %s", fd.error().where, std::strerror(fd.error().code));
    return;
  }
  const auto watch = runtime::service_thread().watch(*fd, EPOLLIN, [](std::uint32_t) { do_what_is_asked(); });
  if (!watch && watch.error().code != EEXIST) log_debug("vma_stats can only look: %s", watch.error().where);
}

void write_statistics_file(const runtime::VmaSocketSlot& slot) {
  const std::string& path = process().config.stats_file;
  if (path.empty()) return;
  const auto socket = runtime::snapshot_of(slot);
  if (!socket) return;
  const int saved_errno = errno;
  constexpr mode_t kMode = 0644;
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, kMode));
  const std::string text = runtime::vma_socket_block(*socket, runtime::VmaCounting::totals);
  if (!file || ::write(file.get(), text.data(), text.size()) < 0)
    log_warn("VMA_STATS_FILE %s: %s", path.c_str(), std::strerror(errno));
  errno = saved_errno;
}

}  // namespace ringsock::vma
