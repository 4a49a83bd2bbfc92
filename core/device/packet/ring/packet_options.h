// What is asked of a packet device.
#pragma once

namespace ringsock::soft {

/// How the kernel is kept from seeing what a ring takes.
enum class Attachment {
  automatic,  ///< the first of these that the kernel has
  tcx,        ///< a BPF link (Linux 6.6): goes with its last descriptor
  clsact,     ///< a filter, and a process that removes it when this one is killed
};

/// How frames come to a ring, and from it.
enum class RingKind {
  packet,  ///< AF_PACKET: any number of processes and rings
  xdp,     ///< AF_XDP beside it: one process per interface, and its first ring; others have packet rings
};

/// Where an interface asks the program of xdp rings.
enum class XdpMode {
  automatic,  ///< native where there is a wire, else generic; the other where that is impossible
  native,     ///< in the driver
  generic,    ///< behind it; Linux 6.2
};

/// Whether packet sockets carry UDP packets that are to be segmented (Linux 6.2).
bool kernel_segments_udp();

struct PacketDeviceOptions {
  Attachment attachment = Attachment::automatic;
  const char* guardian = nullptr;  ///< for clsact: another than the installed one
  RingKind ring = RingKind::packet;
  XdpMode xdp_mode = XdpMode::automatic;
  /// False: the device segments what is sent, and leaves to the kernel what arrives put together.
  bool kernel_segments_udp = soft::kernel_segments_udp();
};

}  // namespace ringsock::soft
