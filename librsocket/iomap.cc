#include "librsocket/iomap.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "librsocket/stream_socket.h"

namespace ringsock::rs {

Result<std::uint32_t> IoMap::free_slot() const {
  for (std::uint32_t slot = 0; slot < connection_.peer_iomap_entries(); ++slot) {
    const bool taken = std::any_of(mappings_.begin(), mappings_.end(),
                                   [&](const Mapping& mapping) { return mapping.for_peer && mapping.slot == slot; });
    if (!taken) return slot;
  }
  return Error{ENOMEM, "riomap: the peer has no free slot"};
}

Result<off_t> IoMap::map(void* data, std::size_t length, bool for_peer, off_t offset) {
  const off_t chosen = offset == -1 ? static_cast<off_t>(reinterpret_cast<std::uintptr_t>(data)) : offset;
  Result<std::uint32_t> slot = for_peer ? free_slot() : Result<std::uint32_t>(0u);
  if (!slot) return slot.error();
  const int access = for_peer ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_LOCAL_WRITE;
  auto registration = connection_.register_memory(data, length, access);
  if (!registration) return registration.error();
  if (for_peer) {
    const wire::PeerIomap entry{
        static_cast<std::uint64_t>(chosen),
        {reinterpret_cast<std::uintptr_t>(data), (*registration)->rkey, static_cast<std::uint32_t>(length)}};
    if (Status sent = connection_.send_iomap(*slot, entry); !sent) return sent.error();
  }
  mappings_.push_back({data, length, for_peer, *slot, *std::move(registration)});
  return chosen;
}

Status IoMap::unmap(void* data, std::size_t length) {
  const auto found = std::find_if(mappings_.begin(), mappings_.end(), [&](const Mapping& mapping) {
    return mapping.data == data && mapping.length == length;
  });
  if (found == mappings_.end()) return Error{EINVAL, "riounmap: not mapped"};
  if (found->for_peer && connection_.failure() == 0 && !connection_.peer_disconnected()) {
    if (Status sent = connection_.send_iomap(found->slot, {}); !sent && sent.error().code == EAGAIN) return sent;
  }
  mappings_.erase(found);
  return ok();
}

// -- the socket's calls

Result<off_t> StreamSocket::map_buffer(void* data, std::size_t length, int prot, off_t offset) {
  if (prot != PROT_NONE && prot != PROT_WRITE) return Error{EINVAL, "riomap: protection"};
  if (data == nullptr || length == 0 || length > UINT32_MAX) return Error{EINVAL, "riomap: buffer"};
  if (!is_connected()) return Error{EINVAL, "riomap: not connected"};
  if (!claim()) return Error{EIO, "riomap: another process uses the connection"};
  progress();
  std::lock_guard guard(setup_lock_);
  if (!iomap_) iomap_ = std::make_unique<IoMap>(*connection_);
  return iomap_->map(data, length, prot == PROT_WRITE, offset);
}

Status StreamSocket::unmap_buffer(void* data, std::size_t length) {
  if (!is_connected()) return Error{EINVAL, "riounmap: not connected"};
  if (!claim()) return Error{EIO, "riounmap: another process uses the connection"};
  progress();
  std::lock_guard guard(setup_lock_);
  if (!iomap_) return Error{EINVAL, "riounmap: not mapped"};
  return iomap_->unmap(data, length);
}

Result<std::size_t> StreamSocket::write_direct(const std::byte* data, std::size_t size, std::uint64_t offset) {
  if (Status connected = require_connected(ENOTCONN); !connected) return connected.error();
  if (!claim()) return Error{EIO, "riowrite: another process uses the connection"};
  progress();
  auto written = post_direct(data, size, offset);
  // Usually there is nothing left: the peer's memory has been written directly.
  if (written && *written > 0) {
    progress();
    push_in_background();
  }
  return written;
}

Result<std::size_t> StreamSocket::post_direct(const std::byte* data, std::size_t size, std::uint64_t offset) {
  std::lock_guard sending(send_lock_);
  if (const int error = take_error()) return Error{error, "riowrite"};
  if (at_end_of_sending()) return end_of_sending("riowrite");
  has_written_directly_ = true;
  std::size_t written = 0;
  while (written < size) {
    const auto entry = connection_->find_iomap(offset + written);
    if (!entry) break;
    const std::uint64_t within = offset + written - entry->offset;
    const std::size_t fits = std::min<std::size_t>(size - written, entry->sge.length - within);
    const std::size_t step = connection_->write_direct(data + written, fits, entry->sge.addr + within, entry->sge.key);
    written += step;
    if (step > 0) statistics_.count_sent(step);
    if (step < fits) {  // the queue is full
      if (written == 0) return Error{EAGAIN, "riowrite"};
      break;
    }
  }
  return written;
}

// -- writes that wait for the peer's help

void StreamSocket::push_in_background() {
  if (!connection_->has_direct_under_way()) return;
  {
    const std::lock_guard guard(setup_lock_);
    if (closed_.load(std::memory_order_acquire) || suspended_.load(std::memory_order_relaxed)) return;
    if (!id_->device().is_embedded()) return;  // a device needs no help
    if (!push_watch_) {
      // The application may close the connection's own number while a duplicate lives.
      push_fd_ = out_of_the_way(UniqueFd(::fcntl(id_->event_fd(), F_DUPFD_CLOEXEC, 0)));
      push_watch_ = std::make_shared<CmWatch>(push_fd_.get(), [this] { serve_pushes(); });
      if (Status watched = push_watch_->start(); !watched) {
        log_debug("a direct write goes on with the application's next call only: %s", watched.error().where);
        push_watch_.reset();
        push_fd_.reset();
        return;
      }
    }
    // The peer rings only if armed.
    connection_->arm();
  }
  progress();
}

void StreamSocket::serve_pushes() {
  if (!try_add_ref()) return;  // the destructor waits for us
  const runtime::Ref self(this);
  UniqueFd watched;  // closed when it is no longer watched
  std::shared_ptr<CmWatch> watch;
  const auto leave = [&] {
    watch = std::move(push_watch_);
    watched = std::move(push_fd_);
  };
  {
    const std::lock_guard guard(setup_lock_);
    // After a fork(2) the user of the connection is not known yet; claim() starts again.
    if (suspended_.load(std::memory_order_relaxed)) {
      leave();
    } else if (take_cm_events()) {
      note_activity();
    }
  }
  if (!watch) {
    progress();
    // Wakes threads that slept on the doorbell that was consumed here.
    notify_watchers();
    const std::lock_guard guard(setup_lock_);
    // The sender checks for the watch under this lock, after it has posted.
    if (!connection_->has_direct_under_way()) {
      leave();
    } else {
      connection_->arm();  // each ring of the peer disarms
    }
  }
  if (watch) {
    watch->stop();
  } else {
    progress();  // what came before the connection was armed again
  }
}

}  // namespace ringsock::rs
