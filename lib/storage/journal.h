#pragma once
// The journal of a stage: which pieces reached their file.
//
//   "TSRJRNL2" | u32 length | plan hash | u32 length | binding | u32 CRC of all before
//   then records of 28 bytes:
//   u32 file | u32 CRC of the piece | u64 offset | u64 length | u32 CRC of the 24 bytes before
//
// Read back, it ends at the first record that is torn or does not sum up. A record of no file says
// that the stage was complete, and what its seal is.
#include <tessera/storage/stage.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::storage {

inline constexpr std::string_view kJournalName = ".tessera-journal";

/// The file number of a record of the seal: its length and its CRC.
inline constexpr std::uint32_t kSealRecord = 0xffffffff;

struct JournalContent {
  bool same_plan = false;             // else nothing more is known
  Bytes binding;                      // StageOptions::binding of the run that began it
  std::vector<JournalEntry> entries;  // of files
  std::optional<JournalEntry> seal;   // the last record, where it is one of the seal
  std::uint64_t valid_bytes = 0;
};

/// nullopt: no journal `name` in the folder, or one that ends before its plan hash does.
std::optional<JournalContent> read_journal(const Directory& folder, std::string_view name,
                                           std::string_view plan_hash);

/// Appends in batches of some records, or of some 100 KiB of pieces. Thread-safe.
class JournalWriter {
 public:
  /// A new journal, header written.
  static std::unique_ptr<JournalWriter> start(FileSystem& fs, const std::string& stage_path,
                                              std::string_view plan_hash, ByteView binding);
  /// Goes on behind `valid_bytes`; what follows is cut off.
  static std::unique_ptr<JournalWriter> resume(FileSystem& fs, const std::string& stage_path,
                                               std::uint64_t valid_bytes);
  void append(const JournalEntry& entry);
  void flush();
  /// Flushes and closes; nothing may be appended afterwards.
  void close();

 private:
  JournalWriter(std::unique_ptr<WriteFile> file, std::uint64_t end);
  void flush_locked();

  std::mutex mutex_;
  std::unique_ptr<WriteFile> file_;
  std::uint64_t end_;
  Bytes pending_;
  std::uint64_t unnoted_bytes_ = 0;  // that the pending records speak of
};

}  // namespace tessera::storage
