#pragma once
// True in builds with AddressSanitizer or ThreadSanitizer, where everything takes longer. GCC and
// Clang say so differently.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TESSERA_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TESSERA_SANITIZED
#endif

namespace tessera::testing {
#ifdef TESSERA_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// How many of `count` random cases are drawn: all in a plain build, a fifth where each takes long
/// and memory is what is watched.
template <class Count>
constexpr Count draws(Count count) {
  return kSanitized ? count / 5 : count;
}
}  // namespace tessera::testing
