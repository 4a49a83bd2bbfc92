// Headers that nearly every source of the libraries includes. Makefile.am has this file compiled once and prepended to
// each source. Each source still includes what it needs.
#ifndef RINGSOCK_CORE_BASE_PRECOMPILED_H
#define RINGSOCK_CORE_BASE_PRECOMPILED_H

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#endif
