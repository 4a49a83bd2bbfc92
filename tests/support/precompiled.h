// What nearly every test includes anyway. tests/sources.am has it compiled once, and each test begin with it.
#ifndef RINGSOCK_TESTS_SUPPORT_PRECOMPILED_H
#define RINGSOCK_TESTS_SUPPORT_PRECOMPILED_H

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#endif
