#pragma once
// What the CPU that runs this can do beyond what the build asks for. Asked of the CPU itself:
// __builtin_cpu_supports() needs start-up code that some static runtimes leave out, and then says
// no to everything.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tessera {

struct CpuFeatures {
  bool avx = false;   // vector registers of 32 bytes, which the kernel saves
  bool avx2 = false;  // integers in them
  bool sha = false;   // SHA-256 instructions, and the SSE4.1 that code around them needs
};

inline CpuFeatures find_cpu_features() {
  CpuFeatures found;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
  const bool sse41 = (c >> 19 & 1) != 0;
  const bool saves_state = (c >> 27 & 1) != 0;  // OSXSAVE: XGETBV may be asked
  if (saves_state) {
    unsigned low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    found.avx = (c >> 28 & 1) != 0 && (low & 6) == 6;  // the kernel keeps both halves
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  found.avx2 = found.avx && (b >> 5 & 1) != 0;
  found.sha = sse41 && (b >> 29 & 1) != 0;
#endif
  return found;
}

inline const CpuFeatures& cpu_features() {
  static const CpuFeatures found = find_cpu_features();
  return found;
}

/// Whether vectors of 32 bytes may be used (AVX2): by functions that are built for them alone.
inline bool has_wide_vectors() { return cpu_features().avx2; }

/// Before a function that is built for such vectors, and called where has_wide_vectors(). What it
/// calls is built for them where it becomes part of it: TESSERA_INLINE.
#if defined(__x86_64__)
#define TESSERA_WIDE __attribute__((target("avx2")))
#else
#define TESSERA_WIDE
#endif
#define TESSERA_INLINE inline __attribute__((always_inline))

}  // namespace tessera
