#pragma once
// What the CPU that runs this can do beyond what the build asks for.

namespace tessera {

/// Whether vectors of 32 bytes may be used (AVX2): by functions that are built for them alone.
inline bool has_wide_vectors() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
#else
  return false;
#endif
}

}  // namespace tessera
