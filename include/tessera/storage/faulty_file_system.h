#pragma once
// FaultyFileSystem: the n-th operation fails. For the loop
//
//   for (n = 1;; ++n) {
//     FaultyFileSystem faulty(disk, {.at = n, .error = EIO, .sticky = s});
//     ... do the work on `faulty`, catching Error ...
//     if (faulty.faults() == 0) break;       // n is past the last operation
//     ... old state intact? nothing left behind? ...
//   }
//
// Operations are whole calls of the interface (short transfers are the real file system's own
// business). Thread-safe.
#include <tessera/storage/observed_file_system.h>

#include <cerrno>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>

namespace tessera {

struct Fault {
  std::uint64_t at = 0;           // fails the at-th operation of `ops`, from 1; 0: none
  int error = EIO;                // mapped to an Error as the real file system does
  bool sticky = false;            // all later operations of `ops` fail too
  bool after = false;             // the operation happens, and then reports the error
  std::uint32_t ops = kAllIoOps;  // io_op_bit of each operation that counts
};

class FaultyFileSystem final : public ObservedFileSystem {
 public:
  explicit FaultyFileSystem(FileSystem& inner, const Fault& fault = {})
      : ObservedFileSystem(inner), fault_(fault) {}

  std::uint64_t operations() const;  // of `ops`, so far
  std::uint64_t faults() const;
  /// "cannot sync /out/x" of the first fault, for messages of tests; empty when none.
  std::string first_fault() const;
  /// Number of syncs that were repeated for a file or folder whose sync had failed: must stay 0.
  std::uint64_t sync_retries() const;
  /// No faults from here on.
  void disarm();

 protected:
  void before(const IoEvent& event) const override;
  void after(const IoEvent& event) const override;

 private:
  bool due(const IoEvent& event) const;
  [[noreturn]] void inject(const IoEvent& event) const;

  mutable std::mutex mutex_;
  Fault fault_;
  mutable std::uint64_t operations_ = 0;
  mutable std::uint64_t faults_ = 0;
  mutable std::uint64_t sync_retries_ = 0;
  mutable std::string first_fault_;
  mutable std::set<std::string> unsynced_paths_;
};

}  // namespace tessera
