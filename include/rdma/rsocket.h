/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rsockets: the socket calls over RDMA. Source and binary compatible with <rdma/rsocket.h> of rdma-core.
 *
 * Each call has the arguments, results and errno values of the Linux call of the same name without the r;
 * rsocket(7) has the details. A descriptor from rsocket() or raccept() is a real descriptor of the process, but only
 * the calls below act on the connection.
 */
#ifndef RDMA_RSOCKET_H
#define RDMA_RSOCKET_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

int rsocket(int domain, int type, int protocol);
int rbind(int socket, const struct sockaddr* addr, socklen_t addrlen);
int rlisten(int socket, int backlog);
int raccept(int socket, struct sockaddr* addr, socklen_t* addrlen);
int rconnect(int socket, const struct sockaddr* addr, socklen_t addrlen);
int rshutdown(int socket, int how);
int rclose(int socket);

ssize_t rrecv(int socket, void* buf, size_t len, int flags);
ssize_t rrecvfrom(int socket, void* buf, size_t len, int flags, struct sockaddr* src_addr, socklen_t* addrlen);
ssize_t rrecvmsg(int socket, struct msghdr* msg, int flags);
ssize_t rsend(int socket, const void* buf, size_t len, int flags);
ssize_t rsendto(int socket, const void* buf, size_t len, int flags, const struct sockaddr* dest_addr,
                socklen_t addrlen);
ssize_t rsendmsg(int socket, const struct msghdr* msg, int flags);
ssize_t rread(int socket, void* buf, size_t count);
ssize_t rreadv(int socket, const struct iovec* iov, int iovcnt);
ssize_t rwrite(int socket, const void* buf, size_t count);
ssize_t rwritev(int socket, const struct iovec* iov, int iovcnt);

/* Descriptors of rsockets and of the kernel may be mixed. */
int rpoll(struct pollfd* fds, nfds_t nfds, int timeout);
int rselect(int nfds, fd_set* readfds, fd_set* writefds, fd_set* exceptfds, struct timeval* timeout);

int rgetpeername(int socket, struct sockaddr* addr, socklen_t* addrlen);
int rgetsockname(int socket, struct sockaddr* addr, socklen_t* addrlen);

/* Level of the options below. */
#define SOL_RDMA 0x10000
enum {
  RDMA_SQSIZE,    /* int: send queue, entries */
  RDMA_RQSIZE,    /* int: receive queue, entries */
  RDMA_INLINE,    /* int: bytes sent without registration */
  RDMA_IOMAPSIZE, /* int: buffers the peer may map for riowrite() */
  RDMA_ROUTE      /* struct ibv_path_data[] */
};

int rsetsockopt(int socket, int level, int optname, const void* optval, socklen_t optlen);
int rgetsockopt(int socket, int level, int optname, void* optval, socklen_t* optlen);
int rfcntl(int socket, int cmd, ... /* arg */);

/* Direct placement: riomap() lets the peer write a buffer by offset, riowrite() writes the peer's buffer. */
off_t riomap(int socket, void* buf, size_t len, int prot, int flags, off_t offset);
int riounmap(int socket, void* buf, size_t len);
/* Returns (size_t)-1 on failure. */
size_t riowrite(int socket, const void* buf, size_t count, off_t offset, int flags);

/* epoll(7) over rsockets and kernel descriptors. Failures are -1 and errno, as for the epoll calls. */
int repoll_create(int flags);
int repoll_ctl(int epfd, int op, int fd, struct epoll_event* event);
int repoll_wait(int epfd, struct epoll_event* events, int maxevents, int timeout);

#ifdef __cplusplus
}
#endif

#endif /* RDMA_RSOCKET_H */
