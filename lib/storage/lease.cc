#include "lib/storage/lease.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <chrono>
#include <thread>

namespace tessera::storage {

namespace {

// In the place of a plan hash, so that the janitor knows the lock that a killed run leaves.
constexpr std::string_view kTurn = "0";
constexpr int kPollMs = 20;

}  // namespace

TriedLock try_lock(FileSystem& fs, const std::string& path) {
  try {
    return fs.try_lock(path);
  } catch (const Error& error) {
    if (error.code() != Code::kUnsupported) throw;
    return std::nullopt;
  }
}

TriedLock try_lock_within(FileSystem& fs, const std::string& path, int wait_ms) {
  for (int waited_ms = 0;; waited_ms += kPollMs) {
    TriedLock lock = try_lock(fs, path);
    if (!lock || *lock || waited_ms >= wait_ms) return lock;
    std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
  }
}

std::unique_ptr<FileLock> take_lease(FileSystem& fs, const StagePaths& paths) {
  auto lock = try_lock(fs, paths.lock());
  if (lock && !*lock) {
    fail(Code::kAlreadyExists,
         fmt::format("another run is writing {} right now (stage {})", paths.final_path(),
                     paths.stage()),
         "wait for it, or choose another output");
  }
  return lock ? std::move(*lock) : nullptr;
}

std::unique_ptr<FileLock> take_turn(FileSystem& fs, const StagePaths& paths, int wait_ms) {
  TriedLock lock = try_lock_within(fs, paths.lock_of(kTurn), wait_ms);
  if (lock && !*lock)
    fail(Code::kAlreadyExists,
         fmt::format("another run is still publishing {}", paths.final_path()),
         "run again when it has ended");
  return lock ? std::move(*lock) : nullptr;
}

}  // namespace tessera::storage
