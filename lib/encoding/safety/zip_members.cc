#include "lib/encoding/safety/zip_members.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "lib/encoding/zip_format.h"

namespace tessera {
namespace {

constexpr std::string_view kLocalMark{"PK\x03\x04", 4};
constexpr std::string_view kCentralMark{"PK\x01\x02", 4};
constexpr std::string_view kEndMark{"PK\x05\x06", 4};
constexpr std::string_view kEnd64Mark{"PK\x06\x06", 4};
constexpr std::string_view kLocatorMark{"PK\x06\x07", 4};
constexpr std::size_t kMostMemberName = 4096;

template <class T>
T le_at(std::string_view bytes, std::size_t offset) {
  return load_le<T>(reinterpret_cast<const std::byte*>(bytes.data()) + offset);
}

/// Where a directory may lie.
struct FoundDirectory {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t base = 0;  // what to add to its offsets
};

bool is_central(const ByteWindow& window, std::uint64_t offset) {
  if (offset > window.length || window.length - offset < zip::kCentralBytes) return false;
  const Bytes head = window.read(offset, kCentralMark.size());
  return as_text(head) == kCentralMark;
}

/// The 64-bit sizes of an entry, in the order in which the 32-bit ones are full.
void widen(std::string_view extra, std::uint64_t& size, std::uint64_t& length,
           std::uint64_t& offset) {
  while (extra.size() >= 4) {
    const auto id = le_at<std::uint16_t>(extra, 0);
    const std::size_t n = std::min<std::size_t>(le_at<std::uint16_t>(extra, 2), extra.size() - 4);
    std::string_view body = extra.substr(4, n);
    extra.remove_prefix(4 + n);
    if (id != zip::kZip64ExtraId) continue;
    for (std::uint64_t* field : {&size, &length, &offset}) {
      if (*field != zip::kSentinel32 || body.size() < 8) continue;
      *field = le_at<std::uint64_t>(body, 0);
      body.remove_prefix(8);
    }
  }
}

class MemberLister {
 public:
  MemberLister(const ByteWindow& window, std::uint64_t tail_bytes)
      : window_(window), tail_bytes_(tail_bytes) {}

  std::vector<ZipMember> run() {
    const std::uint64_t start = window_.length - std::min(window_.length, tail_bytes_);
    const Bytes bytes = window_.read(start, window_.length - start);
    const std::string_view tail = as_text(bytes);
    for (std::size_t i = tail.rfind(kEndMark); i != std::string_view::npos;
         i = i == 0 ? std::string_view::npos : tail.rfind(kEndMark, i - 1)) {
      if (tail.size() - i < zip::kEndBytes) continue;
      for (const FoundDirectory& directory : places(tail, i, start)) read(directory);
    }
    return std::move(members_);
  }

 private:
  /// By the record's own words from the window's start, and from its own place backwards.
  std::vector<FoundDirectory> places(std::string_view tail, std::size_t i,
                                     std::uint64_t start) const {
    std::uint64_t length = le_at<std::uint32_t>(tail, i + 12);
    std::uint64_t offset = le_at<std::uint32_t>(tail, i + 16);
    std::uint64_t end = start + i;
    if (i >= zip::kZip64LocatorBytes &&
        tail.substr(i - zip::kZip64LocatorBytes, 4) == kLocatorMark) {
      const auto where = le_at<std::uint64_t>(tail, i - zip::kZip64LocatorBytes + 8);
      const std::uint64_t before = end - zip::kZip64LocatorBytes;
      for (const std::uint64_t place :
           {where, before - std::min<std::uint64_t>(before, zip::kZip64EndBytes)}) {
        if (place > window_.length || window_.length - place < zip::kZip64EndBytes) continue;
        const Bytes record = window_.read(place, zip::kZip64EndBytes);
        const std::string_view text = as_text(record);
        if (!text.starts_with(kEnd64Mark)) continue;
        length = le_at<std::uint64_t>(text, 40);
        offset = le_at<std::uint64_t>(text, 48);
        end = place;
        break;
      }
    }
    std::vector<FoundDirectory> out;
    if (is_central(window_, offset)) out.push_back({offset, end - std::min(end, offset), 0});
    if (length <= end && end - length != offset && is_central(window_, end - length))
      out.push_back({end - length, length, end - length - offset});
    return out;
  }

  void read(const FoundDirectory& directory) {
    const std::uint64_t most = std::min(directory.length, window_.length - directory.offset);
    std::uint64_t position = directory.offset;
    const std::uint64_t end = directory.offset + most;
    while (end - position >= zip::kCentralBytes) {
      const Bytes fixed = window_.read(position, zip::kCentralBytes);
      const std::string_view head = as_text(fixed);
      if (!head.starts_with(kCentralMark)) return;
      const std::uint64_t name = le_at<std::uint16_t>(head, 28),
                          extra = le_at<std::uint16_t>(head, 30);
      const std::uint64_t rest = name + extra + le_at<std::uint16_t>(head, 32);
      position += zip::kCentralBytes;
      const Bytes variable = window_.read(position, std::min(name + extra, end - position));
      add(head, as_text(variable), name, directory.base);
      if (rest > end - position) return;
      position += rest;
    }
  }

  void add(std::string_view head, std::string_view variable, std::size_t name_bytes,
           std::uint64_t base) {
    ZipMember member;
    member.name = variable.substr(0, name_bytes);
    member.method = le_at<std::uint16_t>(head, 10);
    std::uint64_t length = le_at<std::uint32_t>(head, 20), size = le_at<std::uint32_t>(head, 24);
    std::uint64_t offset = le_at<std::uint32_t>(head, 42);
    widen(variable.substr(std::min(name_bytes, variable.size())), size, length, offset);
    member.length = length;
    member.header_offset = offset + base;
    if (seen_.emplace(member.header_offset, member.name, member.length, member.method).second)
      members_.push_back(std::move(member));
  }

  const ByteWindow& window_;
  std::uint64_t tail_bytes_;
  std::vector<ZipMember> members_;
  std::set<std::tuple<std::uint64_t, std::string, std::uint64_t, std::uint16_t>> seen_;
};

/// A local header in `text`, which stands at `offset` of the window.
std::optional<ZipMember> local_header(std::string_view text, std::uint64_t offset) {
  if (text.size() < zip::kLocalBytes || !text.starts_with(kLocalMark)) return std::nullopt;
  ZipMember member;
  const std::size_t name = le_at<std::uint16_t>(text, 26), extra = le_at<std::uint16_t>(text, 28);
  member.method = le_at<std::uint16_t>(text, 8);
  if (name > kMostMemberName || name + zip::kLocalBytes > text.size()) return std::nullopt;
  member.name = text.substr(zip::kLocalBytes, name);
  member.header_offset = offset;
  member.data_offset = offset + zip::kLocalBytes + name + extra;
  member.length = le_at<std::uint32_t>(text, 18);
  return member;
}

}  // namespace

std::vector<ZipMember> list_zip_members(const ByteWindow& window, std::uint64_t tail_bytes) {
  if (window.length < zip::kEndBytes) return {};
  return MemberLister(window, tail_bytes).run();
}

bool place_member(const ByteWindow& window, ZipMember& member) {
  if (member.header_offset > window.length ||
      window.length - member.header_offset < zip::kLocalBytes)
    return false;
  const Bytes head = window.read(member.header_offset, zip::kLocalBytes);
  const std::string_view text = as_text(head);
  if (!text.starts_with(kLocalMark)) return false;
  member.data_offset = member.header_offset + zip::kLocalBytes + le_at<std::uint16_t>(text, 26) +
                       le_at<std::uint16_t>(text, 28);
  if (member.data_offset > window.length) return false;
  member.length = std::min(member.length, window.length - member.data_offset);
  return true;
}

std::vector<ZipMember> find_zip_members(const ByteWindow& window) {
  constexpr std::uint64_t kBlock = std::uint64_t{4} << 20;
  constexpr std::uint64_t kOverlap = zip::kLocalBytes + kMostMemberName;
  std::vector<ZipMember> out;
  for (std::uint64_t start = 0; start < window.length; start += kBlock) {
    const Bytes block = window.read(start, std::min(kBlock + kOverlap, window.length - start));
    const std::string_view text = as_text(block);
    for (std::size_t i = text.find(kLocalMark); i < kBlock; i = text.find(kLocalMark, i + 1)) {
      auto member = local_header(text.substr(i), start + i);
      if (!member || member->data_offset > window.length) continue;
      if (!out.empty() && out.back().length == 0)
        out.back().length =
            member->header_offset - std::min(member->header_offset, out.back().data_offset);
      out.push_back(std::move(*member));
    }
  }
  for (ZipMember& member : out) {
    const std::uint64_t left = window.length - member.data_offset;
    member.length = member.length == 0 ? left : std::min(member.length, left);
  }
  return out;
}

}  // namespace tessera
