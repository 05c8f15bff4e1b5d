#include "tools/hdf5_helper/channel.h"

#include <tessera/base/interrupted.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace tessera::h5 {
namespace {

constexpr int kSocket = 0;
constexpr std::uint64_t kPageBytes = 16 << 10;
constexpr std::size_t kPages = 1024;

// Exit statuses that only show when the channel itself is broken.
constexpr int kPeerGone = 3;

void read_fully(void* out, std::size_t length) {
  Interruptions interruptions;
  char* at = static_cast<char*>(out);
  while (length > 0) {
    const ssize_t n = ::read(kSocket, at, length);
    if (n < 0 && interruptions.retry()) continue;
    if (n <= 0) _exit(kPeerGone);
    at += n;
    length -= static_cast<std::size_t>(n);
  }
}

void write_fully(const void* from, std::size_t length) {
  Interruptions interruptions;
  const char* at = static_cast<const char*>(from);
  while (length > 0) {
    const ssize_t n = ::write(kSocket, at, length);
    if (n < 0 && interruptions.retry()) continue;
    if (n <= 0) _exit(kPeerGone);
    at += n;
    length -= static_cast<std::size_t>(n);
  }
}

}  // namespace

Channel::Channel() : pages_(kPages) {
  read_fully(&hello_, sizeof hello_);
  if (hello_.magic != kWireMagic || hello_.version != kWireVersion)
    fail(ErrorKind::kUnsupported, "tessera-hdf5 is of another version than the command");
}

void Channel::frame(Frame type, const void* payload, std::size_t length) {
  WireWriter head;
  head.tag(type);
  head.number(static_cast<std::uint32_t>(length));
  std::vector<char>& bytes = head.bytes();
  const char* from = static_cast<const char*>(payload);
  bytes.insert(bytes.end(), from, from + length);
  write_fully(bytes.data(), bytes.size());
}

void Channel::request(std::uint64_t offset, std::size_t length, void* out) {
  WireWriter request;
  request.number(offset);
  request.number(static_cast<std::uint32_t>(length));
  frame(Frame::kRead, request.bytes().data(), request.bytes().size());
  read_fully(out, length);
}

const Channel::Page& Channel::page(std::uint64_t number) {
  Page& page = pages_[number % kPages];
  if (page.number == number) return page;
  const std::uint64_t begin = number * kPageBytes;
  page.bytes.resize(std::min(kPageBytes, hello_.file_bytes - begin));
  page.number = ~std::uint64_t{0};
  request(begin, page.bytes.size(), page.bytes.data());
  page.number = number;
  return page;
}

bool Channel::read(std::uint64_t offset, std::size_t length, void* out) {
  if (offset > hello_.file_bytes || length > hello_.file_bytes - offset) return false;
  char* to = static_cast<char*>(out);
  while (length > 0) {
    std::size_t part;
    if (length > 4 * kPageBytes) {
      part = std::min<std::size_t>(length, kMaxFrameBytes);
      request(offset, part, to);
    } else {
      const Page& from = page(offset / kPageBytes);
      const std::size_t skip = offset % kPageBytes;
      part = std::min(length, from.bytes.size() - skip);
      std::memcpy(to, from.bytes.data() + skip, part);
    }
    offset += part;
    to += part;
    length -= part;
  }
  return true;
}

void Channel::send(WireWriter& report) {
  std::vector<char>& bytes = report.bytes();
  if (bytes.size() > hello_.max_report_bytes - sent_)
    fail(ErrorKind::kExhausted, "its description is larger than the file can honestly need");
  sent_ += bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += kMaxFrameBytes)
    frame(Frame::kData, bytes.data() + at,
          std::min<std::size_t>(kMaxFrameBytes, bytes.size() - at));
  bytes.clear();
}

void Channel::finish() {
  frame(Frame::kEnd, nullptr, 0);
  _exit(0);
}

void Channel::fail(ErrorKind kind, std::string_view text) {
  std::string payload(1, static_cast<char>(kind));
  payload += text.substr(0, 4096);
  frame(Frame::kError, payload.data(), payload.size());
  _exit(1);
}

}  // namespace tessera::h5
