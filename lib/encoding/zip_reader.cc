#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/zip_reader.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "lib/encoding/utf8.h"
#include "lib/encoding/zip_format.h"

namespace tessera {
namespace {

using namespace zip;

constexpr std::uint64_t kWholeBytes = 64 * 1024;  // windows up to this size are read at once

[[noreturn]] void bad_zip(const std::string& what) { fail(Code::kCorrupt, "zip: " + what); }

std::uint16_t u16(ByteView bytes, std::size_t at) {
  return load_le<std::uint16_t>(bytes.data() + at);
}
std::uint32_t u32(ByteView bytes, std::size_t at) {
  return load_le<std::uint32_t>(bytes.data() + at);
}
std::uint64_t u64(ByteView bytes, std::size_t at) {
  return load_le<std::uint64_t>(bytes.data() + at);
}

/// The payload of the zip64 extra field, or nullopt. Malformed extra fields are corrupt.
std::optional<ByteView> find_zip64(ByteView extra) {
  std::optional<ByteView> found;
  while (!extra.empty()) {
    if (extra.size() < 4 || u16(extra, 2) > extra.size() - 4) bad_zip("a malformed extra field");
    const ByteView payload = extra.subspan(4, u16(extra, 2));
    if (u16(extra, 0) == kZip64ExtraId) {
      if (found) bad_zip("two zip64 extra fields");
      found = payload;
    }
    extra = extra.subspan(4 + payload.size());
  }
  return found;
}

/// Replaces `field` by the next zip64 number when it holds the sentinel.
void widen(std::uint64_t& field, std::optional<ByteView>& zip64) {
  if (field != kSentinel32) return;
  if (!zip64 || zip64->size() < 8) bad_zip("a 32-bit field overflows without its zip64 value");
  field = u64(*zip64, 0);
  zip64 = zip64->subspan(8);
}

void check_entry_name(std::string_view name) {
  const auto refuse = [&](std::string_view why) {
    bad_zip(fmt::format("entry name \"{}\" {}", printable(name), why));
  };
  if (name.empty() || !is_python_utf8(name)) refuse("is empty or not UTF-8");
  if (name.find('\0') != std::string_view::npos || name.find('\\') != std::string_view::npos)
    refuse("holds a NUL or a backslash");
  if (name.front() == '/') refuse("is absolute");
  for (const std::string_view part : split(name, '/')) {
    if (part == "..") refuse("leaves its folder");
  }
}

void check_flags(std::string_view name, std::uint16_t flags) {
  const auto refuse = [&](const std::string& why) {
    fail(Code::kUnsupported,
         fmt::format("zip: entry \"{}\" {}: torch.save never writes that", printable(name), why));
  };
  if (flags & kFlagEncrypted) refuse("is encrypted");
  if (flags & ~(kFlagDescriptor | kFlagUtf8)) refuse(fmt::format("has flags 0x{:04x}", flags));
}

}  // namespace

/// torch finds records by names whose ASCII letters may be of either case, as miniz does.
int compare_folded(std::string_view a, std::string_view b) {
  const auto fold = [](char c) {
    return static_cast<unsigned char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  };
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (fold(a[i]) != fold(b[i])) return fold(a[i]) < fold(b[i]) ? -1 : 1;
  return a.size() == b.size() ? 0 : a.size() < b.size() ? -1 : 1;
}

/// The window's bytes, through the two blocks that are kept.
class ZipReader::Blocks {
 public:
  Blocks(const ByteWindow& window, Bytes head) : window_(window) {
    if (!head.empty()) head_ = {0, std::move(head), true};
  }

  std::uint64_t length() const { return window_.length; }

  Bytes read(std::uint64_t at, std::uint64_t length) {
    if (length > window_.length || at > window_.length - length) return window_.read(at, length);
    const std::uint64_t tail_bytes =
        ZipReader::head_bytes(window_) == window_.length ? 0 : ZipReader::kTailBytes;
    if (at < ZipReader::head_bytes(window_)) {
      fill(head_, 0, ZipReader::head_bytes(window_));
      if (head_.holds(at, length)) return head_.copy(at, length);
    }
    if (at >= window_.length - tail_bytes) {
      fill(tail_, window_.length - tail_bytes, tail_bytes);
      if (tail_.holds(at, length)) return tail_.copy(at, length);
    }
    return window_.read(at, length);
  }

 private:
  struct Block {
    std::uint64_t offset = 0;
    Bytes bytes;
    bool filled = false;

    bool holds(std::uint64_t at, std::uint64_t length) const {
      return at >= offset && at + length <= offset + bytes.size();
    }
    Bytes copy(std::uint64_t at, std::uint64_t length) const {
      const ByteView part = ByteView(bytes).subspan(at - offset, length);
      return Bytes(part.begin(), part.end());
    }
  };
  void fill(Block& block, std::uint64_t offset, std::uint64_t length) {
    if (!block.filled) block = {offset, window_.read(offset, length), true};
  }

  ByteWindow window_;
  Block tail_;
  Block head_;
};

std::uint64_t ZipReader::head_bytes(const ByteWindow& window) {
  return window.length <= kWholeBytes ? window.length : kHeadBytes;
}

/// What the end records say.
struct ZipReader::End {
  std::uint64_t end_offset = 0;     // of the end record
  std::uint64_t directory_end = 0;  // where the directory must end
  std::uint64_t entry_count = 0;
  std::uint64_t directory_bytes = 0;
  std::uint64_t directory_offset = 0;
};

ZipReader::ZipReader(const ByteWindow& window, Bytes head, ZipTop top)
    : blocks_(std::make_unique<Blocks>(window, std::move(head))) {
  const End end = find_end();
  if (end.directory_offset > end.directory_end ||
      end.directory_bytes != end.directory_end - end.directory_offset)
    bad_zip("the central directory does not end where the end record begins");
  const Bytes directory = blocks_->read(end.directory_offset, end.directory_bytes);
  parse_directory(directory, end);
  set_prefix_and_names(top);
  check_extents(end.directory_offset);
  has_checksums_ = std::ranges::any_of(entries_, [](const ZipEntry& e) { return e.crc32 != 0; }) ||
                   std::ranges::all_of(entries_, [](const ZipEntry& e) { return !e.size_bytes; });
}

ZipReader::~ZipReader() = default;
ZipReader::ZipReader(ZipReader&&) noexcept = default;
ZipReader& ZipReader::operator=(ZipReader&&) noexcept = default;

ZipReader::End ZipReader::find_end() {
  const std::uint64_t length = blocks_->length();
  const std::string missing =
      "no end of central directory: the file is truncated or is not a zip archive";
  if (length < kEndBytes) bad_zip(missing);
  std::optional<std::uint64_t> found;
  // Without a comment, as torch writes, the last 22 bytes are it; only else is more read.
  for (const std::uint64_t reach : {kEndBytes, std::min(length, kEndBytes + kMaxCommentBytes)}) {
    const Bytes tail = blocks_->read(length - reach, reach);
    for (std::size_t at = 0; at + kEndBytes <= tail.size(); ++at) {
      if (u32(tail, at) != kEndSignature) continue;
      // Other readers take the last one, whatever the comment's length says.
      if (found) bad_zip("two end records");
      if (u16(tail, at + 20) == tail.size() - at - kEndBytes) found = length - reach + at;
    }
    if (found) break;
  }
  if (!found) bad_zip(missing);
  const Bytes record = blocks_->read(*found, kEndBytes);
  if (u16(record, 4) != 0 || u16(record, 6) != 0) fail(Code::kUnsupported, "zip: split archive");
  End end{*found, *found, u16(record, 10), u32(record, 12), u32(record, 16)};
  if (u16(record, 8) != u16(record, 10)) bad_zip("the end record disagrees with itself");
  read_zip64_end(end);
  return end;
}

void ZipReader::read_zip64_end(End& end) {
  const bool needed = end.entry_count == kSentinel16 || end.directory_bytes == kSentinel32 ||
                      end.directory_offset == kSentinel32;
  Bytes locator;
  if (end.end_offset >= kZip64LocatorBytes)
    locator = blocks_->read(end.end_offset - kZip64LocatorBytes, kZip64LocatorBytes);
  if (locator.empty() || u32(locator, 0) != kZip64LocatorSignature) {
    if (needed) bad_zip("the zip64 end record is missing");
    return;
  }
  const std::uint64_t at = u64(locator, 8);
  const std::uint64_t locator_offset = end.end_offset - kZip64LocatorBytes;
  if (u32(locator, 4) != 0 || u32(locator, 16) > 1) fail(Code::kUnsupported, "zip: split archive");
  if (at > locator_offset || locator_offset - at < kZip64EndBytes)
    bad_zip("the zip64 end record lies outside");
  const Bytes record = blocks_->read(at, kZip64EndBytes);
  if (u32(record, 0) != kZip64EndSignature || u64(record, 4) != locator_offset - at - 12 ||
      u32(record, 16) != 0 || u32(record, 20) != 0 || u64(record, 24) != u64(record, 32))
    bad_zip("a malformed zip64 end record");
  const auto take = [](std::uint64_t& field, std::uint64_t sentinel, std::uint64_t value) {
    if (field != sentinel && field != value) bad_zip("the two end records disagree");
    field = value;
  };
  take(end.entry_count, kSentinel16, u64(record, 32));
  take(end.directory_bytes, kSentinel32, u64(record, 40));
  take(end.directory_offset, kSentinel32, u64(record, 48));
  end.directory_end = at;
}

void ZipReader::parse_directory(ByteView directory, const End& end) {
  if (end.entry_count > directory.size() / kCentralBytes)
    bad_zip(fmt::format("{} entries cannot fit in a directory of {} bytes", end.entry_count,
                        directory.size()));
  entries_.reserve(end.entry_count);
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < end.entry_count; ++i) at = parse_entry(directory, at);
  if (at != directory.size()) bad_zip("bytes after the last directory entry");
}

std::size_t ZipReader::parse_entry(ByteView directory, std::size_t at) {
  const ByteView rest = directory.subspan(at);
  if (rest.size() < kCentralBytes || u32(rest, 0) != kCentralSignature)
    bad_zip("a malformed directory entry");
  const std::size_t name_bytes = u16(rest, 28);
  const std::size_t extra_bytes = u16(rest, 30);
  const std::size_t total = kCentralBytes + name_bytes + extra_bytes + u16(rest, 32);
  if (total > rest.size()) bad_zip("a directory entry past the directory's end");
  ZipEntry entry;
  entry.name = as_text(rest.subspan(kCentralBytes, name_bytes));
  check_entry_name(entry.name);
  entry.flags = u16(rest, 8);
  check_flags(entry.name, entry.flags);
  entry.method = u16(rest, 10);
  entry.crc32 = u32(rest, 16);
  std::uint64_t stored = u32(rest, 20);
  entry.size_bytes = u32(rest, 24);
  entry.header_offset = u32(rest, 42);
  auto zip64 = find_zip64(rest.subspan(kCentralBytes + name_bytes, extra_bytes));
  widen(entry.size_bytes, zip64);
  widen(stored, zip64);
  widen(entry.header_offset, zip64);
  if (u16(rest, 34) != 0) fail(Code::kUnsupported, "zip: split archive");
  if (entry.method != kMethodStored) entry.size_bytes = stored;
  if (stored != entry.size_bytes)
    bad_zip(fmt::format("entry \"{}\" has two sizes", printable(entry.name)));
  // torch reads nothing from a folder, and leaves the storage's memory as it was.
  if (entry.size_bytes != 0 && ((u32(rest, 38) & kFolderAttribute) || entry.name.ends_with('/')))
    bad_zip(fmt::format("entry \"{}\" is a folder that holds bytes", printable(entry.name)));
  entries_.push_back(std::move(entry));
  return at + total;
}

void ZipReader::set_prefix_and_names(ZipTop top) {
  if (entries_.empty()) bad_zip("no entries");
  if (top == ZipTop::kOneFolder)
    prefix_ = entries_.front().name.substr(0, entries_.front().name.find('/'));
  for (ZipEntry& entry : entries_) {
    if (top == ZipTop::kAsNamed) break;
    if (entry.name.size() <= prefix_.size() || !entry.name.starts_with(prefix_) ||
        entry.name[prefix_.size()] != '/')
      bad_zip(fmt::format("entry \"{}\" is not below the top folder \"{}\"", printable(entry.name),
                          printable(prefix_)));
    entry.name.erase(0, prefix_.size() + 1);
  }
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  const auto name = [&](std::uint32_t i) -> const std::string& { return entries_[i].name; };
  std::sort(by_name_.begin(), by_name_.end(),
            [&](auto a, auto b) { return compare_folded(name(a), name(b)) < 0; });
  const auto twice = std::adjacent_find(by_name_.begin(), by_name_.end(), [&](auto a, auto b) {
    return compare_folded(name(a), name(b)) == 0;
  });
  if (twice == by_name_.end()) return;
  bad_zip(fmt::format("two entries are named \"{}\"{}", printable(name(*twice)),
                      name(*twice) == name(twice[1]) ? "" : ", but for capital letters"));
}

/// Records must follow each other without overlap, from the window's first byte to the directory.
void ZipReader::check_extents(std::uint64_t directory_offset) {
  std::vector<std::uint32_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](auto a, auto b) { return entries_[a].header_offset < entries_[b].header_offset; });
  if (entries_[order.front()].header_offset != 0) bad_zip("bytes before the first record");
  std::uint64_t limit = directory_offset;
  for (std::size_t i = order.size(); i-- > 0;) {
    ZipEntry& entry = entries_[order[i]];
    const std::uint64_t fixed = kLocalBytes + name_bytes(entry);
    if (entry.header_offset > limit || limit - entry.header_offset < fixed ||
        limit - entry.header_offset - fixed < entry.size_bytes)
      bad_zip(fmt::format("record \"{}\" ({} bytes) overlaps what follows it, or leaves the file",
                          printable(entry.name), entry.size_bytes));
    entry.end_limit = limit;
    limit = entry.header_offset;
  }
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](std::uint32_t i, std::string_view n) { return compare_folded(entries_[i].name, n) < 0; });
  if (found == by_name_.end() || compare_folded(entries_[*found].name, name) != 0) return nullptr;
  return &entries_[*found];
}

void ZipReader::refuse_compression(const ZipEntry& entry) {
  if (entry.method == kMethodStored) return;
  fail(Code::kUnsupported,
       fmt::format("zip: entry \"{}\" is compressed (method {}): torch.save never writes that",
                   printable(entry.name), entry.method));
}

std::uint64_t ZipReader::data_offset(const ZipEntry& entry) {
  const auto refuse = [&](std::string_view what) {
    bad_zip(fmt::format("local header of \"{}\": {}", printable(entry.name), what));
  };
  refuse_compression(entry);
  const std::uint64_t room = entry.end_limit - entry.header_offset;
  const std::uint64_t name_length = name_bytes(entry);
  const std::string name = prefix_.empty() ? entry.name : prefix_ + "/" + entry.name;
  const Bytes fixed = blocks_->read(entry.header_offset, kLocalBytes + name_length);
  if (u32(fixed, 0) != kLocalSignature) refuse("no signature");
  if (u16(fixed, 26) != name_length || as_text(fixed).substr(kLocalBytes) != name)
    refuse("another name than in the directory");
  if (u16(fixed, 6) != entry.flags || u16(fixed, 8) != kMethodStored)
    refuse("other flags or method than in the directory");
  const std::uint64_t extra_bytes = u16(fixed, 28);
  const std::uint64_t header = kLocalBytes + name_length + extra_bytes;
  const bool descriptor = entry.flags & kFlagDescriptor;
  const std::uint64_t tail = descriptor ? 12 : 0;  // a descriptor without its optional signature
  if (header > room || room - header < entry.size_bytes || room - header - entry.size_bytes < tail)
    refuse("the record overlaps what follows it");
  const Bytes extra = blocks_->read(entry.header_offset + kLocalBytes + name_length, extra_bytes);
  auto zip64 = find_zip64(extra);
  // With a descriptor, zeros mean "see below".
  const auto agrees = [&](std::uint64_t here, std::uint64_t there) {
    return here == there || (descriptor && here == 0);
  };
  std::uint64_t size = u32(fixed, 22);
  std::uint64_t stored = u32(fixed, 18);
  widen(size, zip64);
  widen(stored, zip64);
  if (!agrees(u32(fixed, 14), entry.crc32) || !agrees(size, entry.size_bytes) ||
      !agrees(stored, entry.size_bytes))
    refuse("another size or CRC than in the directory");
  return entry.header_offset + header;
}

Bytes ZipReader::read(const ZipEntry& entry) {
  Bytes out = blocks_->read(data_offset(entry), entry.size_bytes);
  const std::uint32_t sum = crc32(0, out);
  if (has_checksums_ && sum != entry.crc32)
    bad_zip(
        fmt::format("CRC-32 of \"{}\" is {:08x}, the directory says {:08x}: the file is damaged",
                    printable(entry.name), sum, entry.crc32));
  return out;
}

}  // namespace tessera
