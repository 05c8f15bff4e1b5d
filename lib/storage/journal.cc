#include "lib/storage/journal.h"

#include <tessera/base/error.h>
#include <tessera/storage/checksum.h>

#include <array>

#include "lib/storage/path_rules.h"

namespace tessera::storage {

namespace {

constexpr std::string_view kMagic = "TSRJRNL2";
constexpr std::size_t kRecordBytes = 28;
// What a kill may cost on resuming: pieces that were written but not yet noted.
constexpr std::size_t kBatchRecords = 16;
constexpr std::uint64_t kBatchBytes = std::uint64_t{1} << 18;

void append_field(Bytes& to, ByteView field) {
  const std::size_t at = to.size();
  to.resize(at + 4);
  store_le(to.data() + at, static_cast<std::uint32_t>(field.size()));
  to.insert(to.end(), field.begin(), field.end());
}

Bytes header(std::string_view plan_hash, ByteView binding) {
  const ByteView magic = as_bytes(kMagic);
  Bytes bytes(magic.begin(), magic.end());
  append_field(bytes, as_bytes(plan_hash));
  append_field(bytes, binding);
  const std::uint32_t crc = crc32(0, bytes);
  bytes.resize(bytes.size() + 4);
  store_le(bytes.data() + bytes.size() - 4, crc);
  return bytes;
}

struct Header {
  std::string plan_hash;
  Bytes binding;
  std::size_t size_bytes = 0;
};

/// nullopt: it is not whole.
std::optional<Header> parse_header(ByteView bytes) {
  if (!as_text(bytes).starts_with(kMagic)) return std::nullopt;
  std::size_t at = kMagic.size();
  std::array<ByteView, 2> fields;
  for (ByteView& field : fields) {
    if (bytes.size() - at < 4) return std::nullopt;
    const std::size_t length = load_le<std::uint32_t>(bytes.data() + at);
    at += 4;
    if (bytes.size() - at < length) return std::nullopt;
    field = bytes.subspan(at, length);
    at += length;
  }
  if (bytes.size() - at < 4 ||
      load_le<std::uint32_t>(bytes.data() + at) != crc32(0, bytes.first(at)))
    return std::nullopt;
  return Header{std::string(as_text(fields[0])), Bytes(fields[1].begin(), fields[1].end()), at + 4};
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
  std::optional<Header> head = parse_header(bytes);
  if (!head) return std::nullopt;
  JournalContent content;
  content.same_plan = head->plan_hash == plan_hash;
  if (!content.same_plan) return content;
  content.binding = std::move(head->binding);
  content.valid_bytes = head->size_bytes;
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
                                                    std::string_view plan_hash, ByteView binding) {
  auto file = fs.create(join_path(stage_path, kJournalName), IoMode::kBuffered);
  const Bytes first = header(plan_hash, binding);
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
