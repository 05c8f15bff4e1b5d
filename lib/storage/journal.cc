#include "lib/storage/journal.h"

#include <tessera/base/error.h>
#include <tessera/storage/checksum.h>

#include "lib/storage/path_rules.h"

namespace tessera::storage {

namespace {

constexpr std::string_view kMagic = "TSRJRNL1";
constexpr std::size_t kRecordBytes = 28;
// What a kill may cost on resuming: pieces that were written but not yet noted.
constexpr std::size_t kBatchRecords = 16;
constexpr std::uint64_t kBatchBytes = std::uint64_t{1} << 18;

Bytes header(std::string_view plan_hash) {
  Bytes bytes(kMagic.size() + 4 + plan_hash.size() + 4);
  std::byte* at = bytes.data();
  std::memcpy(at, kMagic.data(), kMagic.size());
  store_le(at + kMagic.size(), static_cast<std::uint32_t>(plan_hash.size()));
  std::memcpy(at + kMagic.size() + 4, plan_hash.data(), plan_hash.size());
  store_le(at + bytes.size() - 4, crc32(0, ByteView(bytes).first(bytes.size() - 4)));
  return bytes;
}

/// The plan hash of a whole header.
std::optional<std::string> parse_header(ByteView bytes) {
  const std::size_t fixed = kMagic.size() + 8;
  if (bytes.size() < fixed || !as_text(bytes).starts_with(kMagic)) return std::nullopt;
  const std::size_t length = load_le<std::uint32_t>(bytes.data() + kMagic.size());
  if (bytes.size() - fixed < length) return std::nullopt;
  const std::size_t summed = fixed - 4 + length;
  if (load_le<std::uint32_t>(bytes.data() + summed) != crc32(0, bytes.first(summed)))
    return std::nullopt;
  return std::string(as_text(bytes.subspan(kMagic.size() + 4, length)));
}

void append_record(Bytes& to, const JournalEntry& entry) {
  const std::size_t start = to.size();
  to.resize(start + kRecordBytes);
  std::byte* at = to.data() + start;
  store_le(at, entry.file);
  store_le(at + 4, entry.crc32);
  store_le(at + 8, entry.offset);
  store_le(at + 16, entry.length);
  store_le(at + 24, crc32(0, ByteView(at, 24)));
}

std::optional<JournalEntry> parse_record(ByteView record) {
  if (load_le<std::uint32_t>(record.data() + 24) != crc32(0, record.first(24))) return std::nullopt;
  JournalEntry entry;
  entry.file = load_le<std::uint32_t>(record.data());
  entry.crc32 = load_le<std::uint32_t>(record.data() + 4);
  entry.offset = load_le<std::uint64_t>(record.data() + 8);
  entry.length = load_le<std::uint64_t>(record.data() + 16);
  return entry;
}

}  // namespace

std::optional<JournalContent> read_journal(const Directory& folder, std::string_view name,
                                           std::string_view plan_hash) {
  const std::optional<FileInfo> info = folder.stat(name);
  if (!info || info->type != FileType::kRegular) return std::nullopt;
  const std::unique_ptr<ReadFile> file = folder.open(name);
  Bytes bytes(file->size_bytes());
  file->read_at(0, bytes);
  const std::optional<std::string> plan = parse_header(bytes);
  if (!plan) return std::nullopt;
  JournalContent content;
  content.same_plan = *plan == plan_hash;
  if (!content.same_plan) return content;
  content.valid_bytes = header(plan_hash).size();
  while (bytes.size() - content.valid_bytes >= kRecordBytes) {
    const auto entry = parse_record(ByteView(bytes).subspan(content.valid_bytes, kRecordBytes));
    if (!entry) break;
    content.valid_bytes += kRecordBytes;
    content.seal.reset();
    if (entry->file == kSealRecord) {
      content.seal = *entry;
    } else {
      content.entries.push_back(*entry);
    }
  }
  return content;
}

JournalWriter::JournalWriter(std::unique_ptr<WriteFile> file, std::uint64_t end)
    : file_(std::move(file)), end_(end) {}

std::unique_ptr<JournalWriter> JournalWriter::start(FileSystem& fs, const std::string& stage_path,
                                                    std::string_view plan_hash) {
  auto file = fs.create(join_path(stage_path, kJournalName), IoMode::kBuffered);
  const Bytes first = header(plan_hash);
  file->write_at(0, first);
  return std::unique_ptr<JournalWriter>(new JournalWriter(std::move(file), first.size()));
}

std::unique_ptr<JournalWriter> JournalWriter::resume(FileSystem& fs, const std::string& stage_path,
                                                     std::uint64_t valid_bytes) {
  auto file = fs.reopen(join_path(stage_path, kJournalName), IoMode::kBuffered);
  file->allocate(valid_bytes);
  return std::unique_ptr<JournalWriter>(new JournalWriter(std::move(file), valid_bytes));
}

void JournalWriter::append(const JournalEntry& entry) {
  const std::lock_guard lock(mutex_);
  TESSERA_CHECK(file_ != nullptr);
  append_record(pending_, entry);
  unnoted_bytes_ += entry.length;
  if (pending_.size() >= kBatchRecords * kRecordBytes || unnoted_bytes_ >= kBatchBytes)
    flush_locked();
}

void JournalWriter::flush() {
  const std::lock_guard lock(mutex_);
  TESSERA_CHECK(file_ != nullptr);
  flush_locked();
}

void JournalWriter::close() {
  const std::lock_guard lock(mutex_);
  TESSERA_CHECK(file_ != nullptr);
  flush_locked();
  file_->close();
  file_.reset();
}

void JournalWriter::flush_locked() {
  if (pending_.empty()) return;
  file_->write_at(end_, pending_);
  end_ += pending_.size();
  pending_.clear();
  unnoted_bytes_ = 0;
}

}  // namespace tessera::storage
