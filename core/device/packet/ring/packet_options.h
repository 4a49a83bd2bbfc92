// Options of a packet device.
#pragma once

namespace ringsock::soft {

/// How packets that a ring takes are kept from the kernel.
enum class Attachment {
  automatic,  ///< the first one that the kernel supports
  tcx,        ///< a BPF link (Linux 6.6), which ends with its last descriptor
  clsact,     ///< a filter, and a process that removes it when this process is killed
};

/// How frames reach a ring, and leave it.
enum class RingKind {
  packet,  ///< AF_PACKET, for any number of processes and rings
  xdp,     ///< AF_XDP beside AF_PACKET, for the first ring of one process per interface; other rings are packet rings
};

/// Where an interface runs the program of xdp rings.
enum class XdpMode {
  automatic,  ///< native for an interface with a wire, else generic; the other one if that is impossible
  native,     ///< in the driver
  generic,    ///< behind the driver; Linux 6.2
};

/// Returns whether packet sockets can carry UDP packets for segmentation (Linux 6.2).
bool kernel_segments_udp();

struct PacketDeviceOptions {
  Attachment attachment = Attachment::automatic;
  const char* guardian = nullptr;  ///< for clsact: the path of the program, instead of the installed one
  RingKind ring = RingKind::packet;
  XdpMode xdp_mode = XdpMode::automatic;
  /// false: the device itself segments what is sent, and leaves merged datagrams that arrive to the kernel.
  bool kernel_segments_udp = soft::kernel_segments_udp();
};

}  // namespace ringsock::soft
