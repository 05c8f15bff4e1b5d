#include "lib/storage/lease.h"

#include <fmt/format.h>
#include <tessera/base/error.h>

#include <chrono>
#include <optional>
#include <thread>

namespace tessera::storage {

namespace {

// In the place of a plan hash, so that the janitor knows the lock that a killed run leaves.
constexpr std::string_view kTurn = "0";
constexpr int kPollMs = 20;

// nullopt: the file system has no locks; nullptr: another one holds it.
std::optional<std::unique_ptr<FileLock>> try_lock(FileSystem& fs, const std::string& path) {
  try {
    return fs.try_lock(path);
  } catch (const Error& error) {
    if (error.code() != Code::kUnsupported) throw;
    return std::nullopt;
  }
}

}  // namespace

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
  for (int waited_ms = 0;; waited_ms += kPollMs) {
    auto lock = try_lock(fs, paths.lock_of(kTurn));
    if (!lock) return nullptr;
    if (*lock) return std::move(*lock);
    if (waited_ms >= wait_ms)
      fail(Code::kAlreadyExists,
           fmt::format("another run is publishing {} and does not end", paths.final_path()),
           "run again when it has ended");
    std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
  }
}

}  // namespace tessera::storage
