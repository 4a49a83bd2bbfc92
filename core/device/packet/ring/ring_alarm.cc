#include "core/device/packet/ring/ring_alarm.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/device/packet/steering/bpf_program.h"

namespace ringsock::soft {

namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

void* map_page(int fd, int protection, std::size_t page) {
  void* const memory =
      ::mmap(nullptr, page_bytes(), protection, MAP_SHARED, fd, static_cast<off_t>(page * page_bytes()));
  return memory == MAP_FAILED ? nullptr : memory;
}

template <class T>
void unmap(T*& memory) {
  if (memory != nullptr) ::munmap(const_cast<std::remove_const_t<T>*>(memory), page_bytes());
  memory = nullptr;
}

}  // namespace

Status RingAlarm::open(const BpfObject& program) {
  auto backlog = program.map("backlog");
  if (!backlog) return backlog.error();
  auto alarms = program.map("alarms");
  if (!alarms) return alarms.error();
  // The layout of the kernel's ring buffer: the reader's page, the writer's page, the data.
  backlog_ = static_cast<ring_backlog*>(map_page(backlog->get(), PROT_READ | PROT_WRITE, 0));
  consumed_ = static_cast<std::uint64_t*>(map_page(alarms->get(), PROT_READ | PROT_WRITE, 0));
  produced_ = static_cast<const std::uint64_t*>(map_page(alarms->get(), PROT_READ, 1));
  if (backlog_ == nullptr || consumed_ == nullptr || produced_ == nullptr) return Error::last("ring alarm: mmap");
  alarms_ = *std::move(alarms);
  return ok();
}

void RingAlarm::start(std::uint32_t places) {
  interval_ = places / 64;
  if (backlog_ != nullptr) __atomic_store_n(&backlog_->alarm_after, places / 4, __ATOMIC_RELAXED);
}

void RingAlarm::stop() {
  if (backlog_ != nullptr) __atomic_store_n(&backlog_->alarm_after, 0, __ATOMIC_RELAXED);
}

void RingAlarm::silence() {
  if (produced_ == nullptr) return;
  __atomic_store_n(consumed_, __atomic_load_n(produced_, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

void RingAlarm::tell_attended() {
  if (backlog_ != nullptr) __atomic_store_n(&backlog_->attended, taken_, __ATOMIC_RELAXED);
}

void RingAlarm::close() {
  unmap(backlog_);
  unmap(consumed_);
  unmap(produced_);
  alarms_.reset();
}

}  // namespace ringsock::soft
