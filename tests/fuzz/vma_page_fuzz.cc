// A page of libvma's as another process may have made it, and its views.
#include <cstdlib>

#include "libvmacompat/statistics/vma_page.h"
#include "libvmacompat/statistics/vma_page_reader.h"
#include "libvmacompat/statistics/vma_views.h"

using namespace ringsock::runtime;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto page = parse_vma_page(std::as_bytes(std::span(data, size)));
  if (!page) return 0;
  if (page->sockets.size() > kVmaMostSockets || page->rings.size() > kVmaRings || page->pools.size() > kVmaPools ||
      page->iomux.size() > kVmaIomuxSlots)
    std::abort();
  for (const char c : page->program) {
    if (c < ' ' || c > '~') std::abort();
  }
  for (const VmaSocketSnapshot& socket : page->sockets) {
    if (socket.fd < 0 || socket.groups.size() > kVmaGroups) std::abort();
  }
  for (const VmaCounting counting : {VmaCounting::totals, VmaCounting::per_second}) {
    const VmaSnapshot shown = counting == VmaCounting::totals ? *page : vma_rates(*page, *page, 1);
    if (vma_basic_view(shown, counting).empty() || vma_full_view(shown, counting).empty()) std::abort();
  }
  if (vma_netstat_view(*page).empty() || vma_groups_view(*page).empty()) std::abort();
  return 0;
}
