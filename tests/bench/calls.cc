#include "tests/bench/calls.h"

#include <rdma/rsocket.h>
#include <unistd.h>

namespace ringsock::bench {

const Calls kKernel = {"kernel TCP", ::socket,        ::bind,      ::listen,    ::accept, ::connect,
                       ::shutdown,   ::close,         ::send,      ::recv,      ::poll,   ::getsockname,
                       ::setsockopt, ::epoll_create1, ::epoll_ctl, ::epoll_wait};
const Calls kRing = {"ringsock",    ::rsocket,       ::rbind,      ::rlisten,    ::raccept, ::rconnect,
                     ::rshutdown,   ::rclose,        ::rsend,      ::rrecv,      ::rpoll,   ::rgetsockname,
                     ::rsetsockopt, ::repoll_create, ::repoll_ctl, ::repoll_wait};

}  // namespace ringsock::bench
