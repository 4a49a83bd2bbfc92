#include "core/verbs/buffer_pool.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "core/base/log.h"

namespace ringsock::verbs {

namespace {

constexpr std::size_t kBufferAlignment = 64;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

const char* name_of(PageBacking backing) {
  switch (backing) {
    case PageBacking::hugetlb: return "huge pages";
    case PageBacking::transparent_huge: return "transparent huge pages";
    case PageBacking::users: return "memory of the application";
    case PageBacking::small: break;
  }
  return "small pages";
}

}  // namespace

void recycle(BufferHeader& header) {
  BufferPool& pool = *header.pool;
  pool.in_use_.fetch_sub(1, std::memory_order_relaxed);
  pool.push(header, header);
}

BufferPool::BufferPool(Device* device, ibv_pd* pd, const BufferPoolOptions& options)
    : device_(device),
      pd_(pd),
      access_(options.access),
      memory_(options.memory),
      buffer_bytes_(rounded_up(options.buffer_bytes, kBufferAlignment)),
      slab_bytes_(std::max(options.slab_bytes / buffer_bytes_, std::size_t{1}) * buffer_bytes_),
      buffers_per_slab_(static_cast<std::uint32_t>(slab_bytes_ / buffer_bytes_)),
      max_slabs_(options.limit_bytes / slab_bytes_),
      slab_table_(std::make_unique<std::atomic<Slab*>[]>(max_slabs_)) {
  static_assert(std::atomic<FreeTop>::is_always_lock_free);
}

Result<std::unique_ptr<BufferPool>> BufferPool::create(Device* device, ibv_pd* pd, const BufferPoolOptions& options) {
  constexpr std::size_t kMaxBuffers = std::numeric_limits<std::uint32_t>::max() - 1;
  const std::size_t slab_bytes = std::max(options.slab_bytes, options.buffer_bytes);
  const bool possible = options.buffer_bytes > 0 && options.buffer_bytes <= (std::size_t{1} << 31) &&
                        slab_bytes <= (std::size_t{1} << 40) &&
                        rounded_up(slab_bytes, kBufferAlignment) <= options.limit_bytes &&
                        options.limit_bytes / rounded_up(options.buffer_bytes, kBufferAlignment) <= kMaxBuffers &&
                        (device == nullptr) == (pd == nullptr);
  if (!possible) return Error{EINVAL, "buffer pool: options"};
  return std::unique_ptr<BufferPool>(new BufferPool(device, pd, options));
}

BufferPool::~BufferPool() {
  if (const std::size_t left = in_use_.load()) log_warn("%zu buffers outlive their pool", left);
  for (std::size_t i = 0; i < slabs_.load(); ++i) delete slab_table_[i].load();
}

BufferHeader& BufferPool::header_at(std::uint32_t position) const {
  const std::uint32_t index = position - 1;
  return slab_table_[index / buffers_per_slab_].load(std::memory_order_acquire)->headers[index % buffers_per_slab_];
}

std::pair<std::uint32_t, std::size_t> BufferPool::pop(std::size_t count) {
  FreeTop top = free_top_.load(std::memory_order_acquire);
  for (;;) {
    // Other threads may take and return these buffers meanwhile; the values read here are then stale, and the exchange
    // fails. Acquire is needed nevertheless: a position may belong to a slab that was just published.
    std::uint32_t next = top.position;
    std::size_t found = 0;
    for (; found < count && next != 0; ++found) next = header_at(next).next_free.load(std::memory_order_acquire);
    if (found == 0) return {0, 0};
    if (free_top_.compare_exchange_weak(top, FreeTop{next, top.changes + 1}, std::memory_order_acquire)) {
      return {top.position, found};
    }
  }
}

void BufferPool::push(BufferHeader& first, BufferHeader& last) {
  FreeTop top = free_top_.load(std::memory_order_acquire);
  do {
    last.next_free.store(top.position, std::memory_order_release);
  } while (!free_top_.compare_exchange_weak(top, FreeTop{first.index + 1, top.changes + 1}, std::memory_order_acq_rel));
}

Result<BufferPool::Slab> BufferPool::make_slab() {
  Slab slab;
  auto pages = memory_ ? Pages::from_user(slab_bytes_, memory_) : Pages::allocate(slab_bytes_);
  if (!pages) return pages.error();
  slab.pages = std::move(*pages);
  if (device_ != nullptr) {
    auto mr = device_->reg_mr(*pd_, slab.pages.bytes().data(), slab.pages.bytes().size(), access_);
    if (!mr) return mr.error();
    slab.mr = std::move(*mr);
  }
  slab.headers = std::make_unique<BufferHeader[]>(buffers_per_slab_);
  return slab;
}

void BufferPool::publish(std::unique_ptr<Slab> slab) {
  const std::size_t number = slabs_.load(std::memory_order_relaxed);
  const auto first_index = static_cast<std::uint32_t>(number * buffers_per_slab_);
  for (std::uint32_t i = 0; i < buffers_per_slab_; ++i) {
    BufferHeader& header = slab->headers[i];
    header.index = first_index + i;
    header.next_free.store(header.index + 2, std::memory_order_relaxed);
    header.bytes = static_cast<std::uint32_t>(buffer_bytes_);
    header.lkey = slab->mr ? slab->mr->lkey : 0;
    header.rkey = slab->mr ? slab->mr->rkey : 0;
    header.data = slab->pages.bytes().data() + i * buffer_bytes_;
    header.pool = this;
  }
  BufferHeader& first = slab->headers[0];
  BufferHeader& last = slab->headers[buffers_per_slab_ - 1];
  slab_table_[number].store(slab.release(), std::memory_order_release);
  slabs_.store(number + 1, std::memory_order_release);
  push(first, last);
}

Status BufferPool::grow() {
  const std::lock_guard guard(grow_lock_);
  // Another thread may have grown the pool while we waited for the lock.
  if (free_top_.load(std::memory_order_relaxed).position != 0) return ok();
  if (slabs_.load(std::memory_order_relaxed) == max_slabs_) return Error{ENOBUFS, "buffer pool: limit"};
  auto slab = make_slab();
  if (!slab) {
    if (!std::exchange(told_of_failure_, true)) {
      log_warn("no more buffers: %s: %s", slab.error().where, std::strerror(slab.error().code));
    }
    return slab.error();
  }
  if (slabs_.load(std::memory_order_relaxed) == 0) log_debug("buffers are on %s", name_of(slab->pages.backing()));
  publish(std::make_unique<Slab>(std::move(*slab)));
  return ok();
}

Result<BufferRef> BufferPool::take() {
  for (;;) {
    if (const auto [position, found] = pop(1); found == 1) {
      in_use_.fetch_add(1, std::memory_order_relaxed);
      BufferHeader& header = header_at(position);
      header.references.store(1, std::memory_order_relaxed);
      return BufferRef(header);
    }
    if (auto grown = grow(); !grown) {
      refusals_.fetch_add(1, std::memory_order_relaxed);
      return grown.error();
    }
  }
}

std::size_t BufferPool::take(std::span<BufferRef> out) {
  std::size_t filled = 0;
  while (filled < out.size()) {
    auto [position, found] = pop(out.size() - filled);
    in_use_.fetch_add(found, std::memory_order_relaxed);
    for (std::size_t i = 0; i < found; ++i) {
      BufferHeader& header = header_at(position);
      position = header.next_free.load(std::memory_order_relaxed);
      header.references.store(1, std::memory_order_relaxed);
      out[filled++] = BufferRef(header);
    }
    if (found > 0) continue;
    if (!grow()) {
      refusals_.fetch_add(1, std::memory_order_relaxed);
      break;
    }
  }
  return filled;
}

BufferPoolStatistics BufferPool::statistics() const {
  const std::size_t slabs = slabs_.load(std::memory_order_acquire);
  return {.slabs = slabs,
          .bytes = slabs * slab_bytes_,
          .buffers = slabs * buffers_per_slab_,
          .in_use = in_use_.load(std::memory_order_relaxed),
          .refusals = refusals_.load(std::memory_order_relaxed),
          .backing = slabs == 0 ? PageBacking::small : slab_table_[slabs - 1].load()->pages.backing()};
}

}  // namespace ringsock::verbs
