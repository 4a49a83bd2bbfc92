// What nearly every source of the libraries includes anyway. Makefile.am has it compiled once, and each source begin
// with it; each includes what it needs all the same.
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
