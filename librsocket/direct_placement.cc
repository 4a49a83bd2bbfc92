#include "librsocket/direct_placement.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <mutex>

#include "core/base/abandon.h"
#include "core/base/log.h"
#include "core/base/own_duplicate.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

Result<off_t> DirectPlacement::map_buffer(void* data, std::size_t length, int prot, off_t offset) {
  if (prot != PROT_NONE && prot != PROT_WRITE) return Error{EINVAL, "riomap: protection"};
  if (data == nullptr || length == 0 || length > UINT32_MAX) return Error{EINVAL, "riomap: buffer"};
  if (!core_.is_connected()) return Error{EINVAL, "riomap: not connected"};
  if (!socket_.inheritance().claim()) return Error{EIO, "riomap: another process uses the connection"};
  socket_.progress().poll();
  std::lock_guard guard(core_.setup_lock);
  if (!iomap_) iomap_ = std::make_unique<IoMap>(*core_.connection);
  return iomap_->map(data, length, prot == PROT_WRITE, offset);
}

Status DirectPlacement::unmap_buffer(void* data, std::size_t length) {
  if (!core_.is_connected()) return Error{EINVAL, "riounmap: not connected"};
  if (!socket_.inheritance().claim()) return Error{EIO, "riounmap: another process uses the connection"};
  socket_.progress().poll();
  std::lock_guard guard(core_.setup_lock);
  if (!iomap_) return Error{EINVAL, "riounmap: not mapped"};
  return iomap_->unmap(data, length);
}

Result<std::size_t> DirectPlacement::write(const std::byte* data, std::size_t size, std::uint64_t offset) {
  if (Status connected = socket_.progress().require_connected(ENOTCONN); !connected) return connected.error();
  if (!socket_.inheritance().claim()) return Error{EIO, "riowrite: another process uses the connection"};
  socket_.progress().poll();
  auto written = post(data, size, offset);
  // Usually there is nothing left: the peer's memory has been written directly.
  if (written && *written > 0) {
    socket_.progress().poll();
    push_in_background();
  }
  return written;
}

Result<std::size_t> DirectPlacement::post(const std::byte* data, std::size_t size, std::uint64_t offset) {
  std::lock_guard sending(core_.send_lock);
  if (const int error = core_.take_error()) return Error{error, "riowrite"};
  if (core_.at_end_of_sending()) return core_.end_of_sending("riowrite");
  has_written_ = true;
  socket_.transfer().corking().let_go();
  std::size_t written = 0;
  while (written < size) {
    const auto entry = core_.connection->tables().find_iomap(offset + written);
    if (!entry) break;
    const std::uint64_t within = offset + written - entry->offset;
    const std::size_t fits = std::min<std::size_t>(size - written, entry->sge.length - within);
    const std::size_t step =
        core_.connection->sending().write_direct(data + written, fits, entry->sge.addr + within, entry->sge.key);
    written += step;
    if (step > 0) core_.statistics.count_sent(step);
    if (step < fits) {  // the queue is full
      if (written == 0) return Error{EAGAIN, "riowrite"};
      break;
    }
  }
  return written;
}

// -- writes that wait for the peer's help

void DirectPlacement::push_in_background() {
  if (!core_.connection->sending().has_direct_under_way()) return;
  {
    const std::lock_guard guard(core_.setup_lock);
    if (core_.closed.load(std::memory_order_acquire) || core_.suspended.load(std::memory_order_relaxed)) return;
    if (!core_.id->device().traits().is_embedded) return;  // a device needs no help
    if (!push_watch_ && !watch_pushes()) return;
    // The peer rings only if armed.
    core_.connection->arm();
  }
  socket_.progress().poll();
}

bool DirectPlacement::watch_pushes() {
  // The application may close the connection's own number while a duplicate lives.
  push_fd_ = own_duplicate(core_.id->event_fd());
  push_watch_ = std::make_shared<CmWatch>(push_fd_.get(), [this] { serve_pushes(); });
  const Status watched = push_watch_->start();
  if (watched) return true;
  log_debug("a direct write goes on with the application's next call only: %s", watched.error().where);
  push_watch_.reset();
  push_fd_.reset();
  return false;
}

void DirectPlacement::serve_pushes() {
  if (!core_.endpoint.try_add_ref()) return;  // the destructor waits for us
  const runtime::Ref self(&core_.endpoint);
  UniqueFd watched;  // closed when it is no longer watched
  std::shared_ptr<CmWatch> watch;
  const auto leave = [&] {
    watch = std::move(push_watch_);
    watched = std::move(push_fd_);
  };
  {
    const std::lock_guard guard(core_.setup_lock);
    // After a fork(2) the user of the connection is not known yet; claim() starts again.
    if (core_.suspended.load(std::memory_order_relaxed)) {
      leave();
    } else if (socket_.cm_events().take()) {
      core_.endpoint.note_activity();
    }
  }
  if (!watch) {
    socket_.progress().poll();
    // Wakes threads that slept on the doorbell that was consumed here.
    core_.endpoint.notify_watchers();
    const std::lock_guard guard(core_.setup_lock);
    // The sender checks for the watch under this lock, after it has posted.
    if (!core_.connection->sending().has_direct_under_way()) {
      leave();
    } else {
      core_.connection->arm();  // each ring of the peer disarms
    }
  }
  if (watch) {
    watch->stop();
  } else {
    socket_.progress().poll();  // what came before the connection was armed again
  }
}

void DirectPlacement::forget_pushes() {
  abandon(push_watch_);
  push_fd_.reset();
}

}  // namespace ringsock::rs
