// Stands before the C library in a command (LD_PRELOAD), with the file calls of system_calls.cc,
// and fails them from the command's start to its end as the environment says:
//
//   TESSERA_FAIL_AT=N       the N-th call fails
//   TESSERA_FAIL_STICKY=1   and all later ones
//   TESSERA_FAIL_ERROR=E    with this errno, a number
//   TESSERA_FAIL_REPORT=F   at the end: calls, failed ones, syncs repeated after they had failed,
//                           whether a written file's sync or close failed, and the first failed
//                           call's name
//
// A program that is not ours (Python) calls the two functions instead, in a child of its own.
#include <stdio.h>
#include <stdlib.h>

#include <cstdint>

#include "tests/faults/system_calls.h"

using namespace tessera::faults;

namespace {

std::uint64_t number_of(const char* variable) {
  const char* const text = ::getenv(variable);
  return text == nullptr ? 0 : ::strtoull(text, nullptr, 10);
}

__attribute__((constructor)) void begin() {
  CallFault fault;
  fault.at = number_of("TESSERA_FAIL_AT");
  fault.error = static_cast<int>(number_of("TESSERA_FAIL_ERROR"));
  fault.sticky = number_of("TESSERA_FAIL_STICKY") != 0;
  arm(fault);
}

__attribute__((destructor)) void report() {
  const CallReport report = disarm();
  const char* const path = ::getenv("TESSERA_FAIL_REPORT");
  std::FILE* const file = path == nullptr ? nullptr : ::fopen(path, "we");
  if (file == nullptr) return;
  ::fprintf(file, "%llu %llu %llu %d %s\n", static_cast<unsigned long long>(report.calls),
            static_cast<unsigned long long>(report.injected),
            static_cast<unsigned long long>(report.sync_retries), report.was_written_file ? 1 : 0,
            report.function.empty() ? "none" : report.function.c_str());
  ::fclose(file);
}

}  // namespace

/// The N-th call from now on ends the process; 0: none does.
extern "C" void tessera_test_kill_at(std::uint64_t call) {
  CallFault fault;
  fault.at = call;
  fault.kills = true;
  arm(fault);
}

/// Calls since then.
extern "C" std::uint64_t tessera_test_calls() { return disarm().calls; }
