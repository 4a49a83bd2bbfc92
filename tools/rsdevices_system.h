// The questions of rsdevices to the system, which tests answer instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringsock::tools {

/// The transport of a device (enum ibv_transport_type). librdmacm makes connections on the first two only.
enum class Transport { infiniband, iwarp, other };

/// The facts of libibverbs about a device that it lists, that is one with a device file and a provider library.
struct VerbsDevice {
  std::string name;  ///< e.g. "mlx5_0"
  Transport transport = Transport::other;
  int open_error = 0;            ///< errno value of ibv_open_device(3) or ibv_query_device(3); 0: opened
  int register_error = 0;        ///< errno value of ibv_alloc_pd(3) or ibv_reg_mr(3); 0: registered, or not opened
  bool carries_packets = false;  ///< a raw packet queue pair could be made, and it has flow rules
};

/// An address of one of this host's interfaces except loopback.
struct HostAddress {
  std::string interface;
  std::string address;  ///< "10.7.0.1", "fe80::1"
  std::string device;   ///< the device that RDMA CM binds it to; empty: none
  unsigned port = 0;    ///< of the device, from 1
};

enum class KernelFeature {
  sealed_memfd,      ///< memfd_create(2) and its seals
  unix_sockets,      ///< AF_UNIX SOCK_SEQPACKET with an abstract name
  membarrier,        ///< MEMBARRIER_CMD_GLOBAL_EXPEDITED
  peer_writes,       ///< process_vm_writev(2)
  page_sharing,      ///< replacing pages of memory in use by those of a memfd
  write_protection,  ///< the same while other threads write: userfaultfd(2)
  port_owners,       ///< sock_diag(7) of TCP
  port_names,        ///< sock_diag(7) of AF_UNIX
};

enum class Limit { locked_memory, file_size, descriptors };

/// The facts. Files that do not exist, or may not be read, have no text and no entries.
class System {
 public:
  virtual ~System() = default;

  /// Returns the text of a small file without the final newline.
  [[nodiscard]] virtual std::optional<std::string> read(const std::string& path) const = 0;
  /// Returns the names in a directory, sorted.
  [[nodiscard]] virtual std::vector<std::string> list(const std::string& directory) const = 0;
  /// Returns the last component of a symbolic link's target, empty when it is no link.
  [[nodiscard]] virtual std::string link_name(const std::string& path) const = 0;
  /// Returns 0, or the errno value with which this process may not read and write the file.
  [[nodiscard]] virtual int access_error(const std::string& path) const = 0;
  /// Opens each device and registers `trial_bytes` of memory for the peer to write.
  [[nodiscard]] virtual std::vector<VerbsDevice> verbs_devices(std::size_t trial_bytes) const = 0;
  /// Returns the addresses, with their devices according to RDMA CM if `ask_rdma_cm`.
  [[nodiscard]] virtual std::vector<HostAddress> addresses(bool ask_rdma_cm) const = 0;
  /// Returns 0, or the errno value with which the kernel refuses.
  [[nodiscard]] virtual int feature_error(KernelFeature feature) const = 0;
  /// Returns the limit in bytes or descriptors, nullopt for unlimited.
  [[nodiscard]] virtual std::optional<std::uint64_t> limit(Limit which) const = 0;
  /// Returns the user's name, e.g. "nobody".
  [[nodiscard]] virtual std::string user() const = 0;
  /// Returns the release from uname(2), e.g. "6.1.0-56-amd64".
  [[nodiscard]] virtual std::string kernel_release() const = 0;
};

std::unique_ptr<System> real_system();

// Parts of the real implementation.
std::vector<VerbsDevice> ask_libibverbs(std::size_t trial_bytes);
std::vector<HostAddress> ask_addresses(bool ask_rdma_cm);
int ask_kernel(KernelFeature feature);

}  // namespace ringsock::tools
