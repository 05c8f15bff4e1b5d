#pragma once
// What operator new is asked for on one thread, and from where: by code of this program (the
// runtime is a part of it, LibTorch is not) or by a library. runtime_counting_new_support.cc takes
// operator new's place in the whole program.
#include <cstdint>
#include <string>

namespace tessera::fsdp::test {

struct NewCounts {
  std::int64_t all = 0;
  std::int64_t own = 0;  // the caller, past the standard library, lies in this program
};

/// Counts on this thread while it lives; one at a time.
class CountNew {
 public:
  CountNew();
  ~CountNew();
  CountNew(const CountNew&) = delete;
  CountNew& operator=(const CountNew&) = delete;
  const NewCounts& counts() const;
  /// Own callers, for addr2line -e PROGRAM, with how often each asked.
  std::string own_callers() const;
};

}  // namespace tessera::fsdp::test
