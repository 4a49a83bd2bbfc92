// What rsdevices asks the system for; tests answer in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringsock::tools {

/// How a device's messages travel, as ibv_transport_type(3) has it; librdmacm makes connections on the first two only.
enum class Transport { infiniband, iwarp, other };

/// What libibverbs answers about a device that it lists, which are those with a device file and a provider library.
struct VerbsDevice {
  std::string name;  ///< e.g. "mlx5_0"
  Transport transport = Transport::other;
  int open_error = 0;            ///< errno value of ibv_open_device(3) or ibv_query_device(3); 0: opened
  int register_error = 0;        ///< errno value of ibv_alloc_pd(3) or ibv_reg_mr(3); 0: registered, or not opened
  bool carries_packets = false;  ///< a raw packet queue pair could be made, and it has flow rules
};

/// An address of one of this host's interfaces, loopback left out.
struct HostAddress {
  std::string interface;
  std::string address;  ///< "10.7.0.1", "fe80::1"
  std::string device;   ///< the one that RDMA CM binds it to; empty: none
  unsigned port = 0;    ///< of the device, from 1
};

enum class KernelFeature {
  sealed_memfd,      ///< memfd_create(2) and its seals
  unix_sockets,      ///< AF_UNIX SOCK_SEQPACKET with an abstract name
  membarrier,        ///< MEMBARRIER_CMD_GLOBAL_EXPEDITED
  peer_writes,       ///< process_vm_writev(2)
  page_sharing,      ///< putting a memfd's pages under memory in use
  write_protection,  ///< the same while other threads write: userfaultfd(2)
  port_owners,       ///< sock_diag(7) of TCP
  port_names,        ///< sock_diag(7) of AF_UNIX
};

enum class Limit { locked_memory, file_size, descriptors };

/// The facts. Files that are not there, or may not be read, have no text and no entries.
class System {
 public:
  virtual ~System() = default;

  /// The whole text of a small file, without the last line's end.
  [[nodiscard]] virtual std::optional<std::string> read(const std::string& path) const = 0;
  /// Names in a directory, sorted.
  [[nodiscard]] virtual std::vector<std::string> list(const std::string& directory) const = 0;
  /// The last part of what a symbolic link leads to; empty: not a link.
  [[nodiscard]] virtual std::string link_name(const std::string& path) const = 0;
  /// 0, or why this process may not read and write the file: an errno value.
  [[nodiscard]] virtual int access_error(const std::string& path) const = 0;
  /// Opens each device and registers `trial_bytes` of memory for the peer to write.
  [[nodiscard]] virtual std::vector<VerbsDevice> verbs_devices(std::size_t trial_bytes) const = 0;
  /// With the devices that RDMA CM knows, when `ask_rdma_cm`.
  [[nodiscard]] virtual std::vector<HostAddress> addresses(bool ask_rdma_cm) const = 0;
  /// 0, or the errno value with which the kernel refuses.
  [[nodiscard]] virtual int feature_error(KernelFeature feature) const = 0;
  /// In bytes or descriptors; nullopt: unlimited.
  [[nodiscard]] virtual std::optional<std::uint64_t> limit(Limit which) const = 0;
  /// Who runs this, e.g. "nobody".
  [[nodiscard]] virtual std::string user() const = 0;
  /// As uname(2) has it, e.g. "6.1.0-56-amd64".
  [[nodiscard]] virtual std::string kernel_release() const = 0;
};

std::unique_ptr<System> real_system();

// Parts of the real one.
std::vector<VerbsDevice> ask_libibverbs(std::size_t trial_bytes);
std::vector<HostAddress> ask_addresses(bool ask_rdma_cm);
int ask_kernel(KernelFeature feature);

}  // namespace ringsock::tools
