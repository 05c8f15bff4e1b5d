#pragma once
// The C library's file calls, with this test program's own in front of them: the n-th one fails, or
// moves fewer bytes than asked. Everything below FileSystem is exercised so, the real file system
// included. For one thread at a time; calls of other threads are counted too.
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace tessera::faults {

enum class Shortened : std::uint8_t { kNot, kOneByte, kHalf, kAllButOne };

struct CallFault {
  std::uint64_t at = 0;  // the at-th call from arm() on, from 1; 0: none
  int error = 0;         // what it fails with
  /// All later calls fail too. EINTR: each later call is interrupted twice and then goes through.
  bool sticky = false;
  /// With sticky: nothing goes through any more, EINTR neither.
  bool endless = false;
  /// Not a failure either: the at-th call ends the process, as SIGKILL does.
  bool kills = false;
  /// Counts and fails only calls of this name; "" for all.
  std::string function = {};
  /// Not a failure: the at-th transfer (sticky: and all later ones) moves less than asked.
  Shortened shortened = Shortened::kNot;
};

struct CallReport {
  std::uint64_t calls = 0;  // that the fault might have hit
  std::uint64_t injected = 0;
  std::string function;            // of the first fault
  bool was_written_file = false;   // the first fault hit the sync or close of a file being written
  std::uint64_t sync_retries = 0;  // syncs of a file whose sync had failed
};

void arm(const CallFault& fault);
CallReport disarm();
/// Faults injected since the program began, by function.
std::vector<std::pair<std::string, std::uint64_t>> injected_by_function();

/// Notes where every descriptor leads that open, openat or openat2 hand out.
void watch_opens();
/// What was opened since, canonical paths.
std::set<std::string> opened_paths();

/// Open descriptors of this process.
int count_descriptors();

}  // namespace tessera::faults
