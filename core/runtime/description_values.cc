#include "core/runtime/description_values.h"

#include <new>
#include <utility>

#include "core/runtime/shared_page.h"

namespace ringsock::runtime {

DescriptionValues::DescriptionValues() {
  set(receive_low_mark, 1);
  set(receive_timeout, Nanos::max().count());
  set(send_timeout, Nanos::max().count());
}

void DescriptionValues::set(std::size_t name, std::int64_t value) noexcept {
  Slot* slot = nullptr;
  do {
    slot = current_.load();
    slot->values[name].store(value);
  } while (slot != current_.load());
}

void DescriptionValues::share() noexcept {
  if (is_shared()) return;
  std::shared_ptr<void> piece = shared_piece(sizeof(Slot));
  if (piece == nullptr) return;
  auto* const slot = new (piece.get()) Slot;
  std::array<std::int64_t, first_option + kMostOptions> copied;
  for (std::size_t i = 0; i < copied.size(); ++i) slot->values[i].store(copied[i] = own_.values[i].load());
  shared_ = std::move(piece);
  current_.store(slot);
  // Another thread may have set a value after it was copied and before it could see the new place.
  for (std::size_t i = 0; i < copied.size(); ++i) {
    const std::int64_t now = own_.values[i].load();
    if (now != copied[i]) slot->values[i].compare_exchange_strong(copied[i], now);
  }
}

}  // namespace ringsock::runtime
