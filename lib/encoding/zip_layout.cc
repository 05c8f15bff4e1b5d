#include "lib/encoding/zip_layout.h"

#include <tessera/base/error.h>

#include <algorithm>

#include "lib/encoding/zip_format.h"

namespace tessera {
namespace {

using namespace zip;

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kExtraHeaderBytes = 4;
constexpr std::uint16_t kPaddingExtraId = 0x4246;  // "FB"

template <class T>
void put(Bytes& out, T value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof value);
  store_le(out.data() + at, value);
}

void put_zeros(Bytes& out, std::size_t count) { out.resize(out.size() + count); }

void put_text(Bytes& out, std::string_view text) {
  const ByteView bytes = as_bytes(text);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

bool is_large(std::uint64_t value) { return value >= kSentinel32; }
bool needs_zip64(const ZipLayout::Record& r) {
  return is_large(r.size_bytes) || is_large(r.header_offset);
}

std::uint64_t zip64_bytes(const ZipLayout::Record& r) {
  if (!needs_zip64(r)) return 0;
  return kExtraHeaderBytes + (is_large(r.size_bytes) ? 16u : 0u) +
         (is_large(r.header_offset) ? 8u : 0u);
}

/// `stored`: the compressed size; zero in local headers, where it is not yet known.
void put_zip64(Bytes& out, const ZipLayout::Record& r, std::uint64_t stored) {
  if (!needs_zip64(r)) return;
  put(out, kZip64ExtraId);
  put(out, static_cast<std::uint16_t>(zip64_bytes(r) - kExtraHeaderBytes));
  if (is_large(r.size_bytes)) {
    put(out, r.size_bytes);
    put(out, stored);
  }
  if (is_large(r.header_offset)) put(out, r.header_offset);
}

std::uint32_t clamp32(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, kSentinel32));
}

std::uint16_t flags_of(const ZipLayout::Record& r) {
  return r.size_bytes ? kFlagUtf8 | kFlagDescriptor : kFlagUtf8;
}

std::uint64_t descriptor_bytes(const ZipLayout::Record& r) {
  if (r.size_bytes == 0) return 0;
  return needs_zip64(r) ? 24 : 16;
}

}  // namespace

std::size_t ZipLayout::add(std::string name, std::uint64_t size_bytes) {
  if (name.size() > kSentinel16)
    fail(Code::kInvalidArgument, "zip: a record name of more than 65535 bytes");
  Record r;
  r.name = std::move(name);
  r.size_bytes = size_bytes;
  r.header_offset = directory_offset();
  const std::uint64_t fixed = r.header_offset + kLocalBytes + r.name.size() + zip64_bytes(r);
  r.data_offset = (fixed + kExtraHeaderBytes + kAlignment - 1) / kAlignment * kAlignment;
  r.end_offset = r.data_offset + size_bytes + descriptor_bytes(r);
  directory_bytes_ += kCentralBytes + r.name.size() + zip64_bytes(r);
  records_.push_back(std::move(r));
  return records_.size() - 1;
}

std::uint64_t ZipLayout::directory_offset() const {
  return records_.empty() ? 0 : records_.back().end_offset;
}

std::uint64_t ZipLayout::size_bytes() const {
  return directory_offset() + directory_bytes_ + kZip64EndBytes + kZip64LocatorBytes + kEndBytes;
}

void ZipLayout::append_header(std::size_t record, Bytes& out) const {
  const Record& r = records_[record];
  const std::uint64_t extra = r.data_offset - r.header_offset - kLocalBytes - r.name.size();
  put(out, kLocalSignature);
  put(out, std::uint16_t{0});  // version needed
  put(out, flags_of(r));
  put_zeros(out, 2 + 4 + 4 + 4 + 4);  // method, time and date, CRC, sizes
  put(out, static_cast<std::uint16_t>(r.name.size()));
  put(out, static_cast<std::uint16_t>(extra));
  put_text(out, r.name);
  put_zip64(out, r, 0);
  const std::uint64_t padding = extra - zip64_bytes(r) - kExtraHeaderBytes;
  put(out, kPaddingExtraId);
  put(out, static_cast<std::uint16_t>(padding));
  put_text(out, std::string(padding, 'Z'));
}

void ZipLayout::append_descriptor(std::size_t record, std::uint32_t crc, Bytes& out) const {
  const Record& r = records_[record];
  if (r.size_bytes == 0) return;
  put(out, kDescriptorSignature);
  put(out, crc);
  if (needs_zip64(r)) {
    put(out, r.size_bytes);
    put(out, r.size_bytes);
  } else {
    put(out, static_cast<std::uint32_t>(r.size_bytes));
    put(out, static_cast<std::uint32_t>(r.size_bytes));
  }
}

void ZipLayout::append_directory(const std::function<std::uint32_t(std::size_t)>& crc,
                                 Bytes& out) const {
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const Record& r = records_[i];
    put(out, kCentralSignature);
    put(out, std::uint32_t{0});  // versions
    put(out, flags_of(r));
    put_zeros(out, 2 + 4);  // method, time and date
    put(out, r.size_bytes ? crc(i) : std::uint32_t{0});
    put(out, clamp32(r.size_bytes));
    put(out, clamp32(r.size_bytes));
    put(out, static_cast<std::uint16_t>(r.name.size()));
    put(out, static_cast<std::uint16_t>(zip64_bytes(r)));
    put_zeros(out, 2 + 2 + 2 + 4);  // comment, disk, attributes
    put(out, clamp32(r.header_offset));
    put_text(out, r.name);
    put_zip64(out, r, r.size_bytes);
  }
  const std::uint64_t count = records_.size();
  const std::uint64_t zip64_end = directory_offset() + directory_bytes_;
  put(out, kZip64EndSignature);
  put(out, std::uint64_t{kZip64EndBytes - 12});
  put(out, std::uint16_t{0x031e});  // made by
  put(out, std::uint16_t{45});      // version needed
  put_zeros(out, 4 + 4);            // disks
  put(out, count);
  put(out, count);
  put(out, directory_bytes_);
  put(out, directory_offset());
  put(out, kZip64LocatorSignature);
  put(out, std::uint32_t{0});
  put(out, zip64_end);
  put(out, std::uint32_t{1});  // number of disks
  put(out, kEndSignature);
  put_zeros(out, 2 + 2);
  const auto short_count = static_cast<std::uint16_t>(std::min<std::uint64_t>(count, kSentinel16));
  put(out, short_count);
  put(out, short_count);
  put(out, clamp32(directory_bytes_));
  put(out, clamp32(directory_offset()));
  put(out, std::uint16_t{0});  // comment
}

}  // namespace tessera
