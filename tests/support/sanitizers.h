// Which sanitizers the tests are built with.
#pragma once

namespace ringsock::support {

#if defined(__has_feature)
#define RINGSOCK_HAS_FEATURE(feature) __has_feature(feature)
#else
#define RINGSOCK_HAS_FEATURE(feature) false
#endif

#if defined(__SANITIZE_ADDRESS__) || RINGSOCK_HAS_FEATURE(address_sanitizer)
inline constexpr bool kHasAddressSanitizer = true;
#else
inline constexpr bool kHasAddressSanitizer = false;
#endif

/// AddressSanitizer's allocator stays locked in a child that was forked while another thread allocated; as from clang
/// 18 on it has fork handlers of its own.
#if defined(__clang_major__)
inline constexpr bool kForksWhileThreadsAllocate = !kHasAddressSanitizer || __clang_major__ >= 18;
#else
inline constexpr bool kForksWhileThreadsAllocate = !kHasAddressSanitizer;
#endif

#if defined(__SANITIZE_THREAD__) || RINGSOCK_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kHasThreadSanitizer = true;
#else
inline constexpr bool kHasThreadSanitizer = false;
#endif

#undef RINGSOCK_HAS_FEATURE

}  // namespace ringsock::support
