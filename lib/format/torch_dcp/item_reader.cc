#include "lib/format/torch_dcp/item_reader.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/codec.h>
#include <tessera/encoding/zip_reader.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera::dcp {
namespace {

constexpr std::uint64_t kMaxGapBytes = 4096;

/// Decoded bytes, read like a file.
class MemoryFile final : public ReadFile {
 public:
  MemoryFile(Bytes bytes, std::string path) : bytes_(std::move(bytes)), path_(std::move(path)) {}
  std::uint64_t size_bytes() const override { return bytes_.size(); }
  const std::string& path() const override { return path_; }
  void read_at(std::uint64_t offset, MutableBytes out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
      fail(Code::kCorrupt, fmt::format("the decoded item ends at {}", bytes_.size()));
    }
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  Bytes bytes_;
  std::string path_;
};

}  // namespace

/// A file with two pieces read ahead. read_at serves what they hold and passes the rest on.
class ReadAhead final : public ReadFile {
 public:
  explicit ReadAhead(std::unique_ptr<ReadFile> file) : file_(std::move(file)) {}
  std::uint64_t size_bytes() const override { return file_->size_bytes(); }
  const std::string& path() const override { return file_->path(); }

  void read_at(std::uint64_t offset, MutableBytes out) const override {
    for (const Piece* piece : {&head_, &tail_}) {
      if (!piece->holds(offset, out.size())) continue;
      if (!out.empty()) {
        std::memcpy(out.data(), piece->bytes.data() + (offset - piece->offset), out.size());
      }
      return;
    }
    file_->read_at(offset, out);
  }

  /// `offset + length` lies inside the file.
  void expect(std::uint64_t offset, std::uint64_t length, std::uint64_t run_end) {
    if (length <= kSmallItemBytes) {
      if (head_.holds(offset, length) || tail_.holds(offset, length)) return;
      load(head_, offset, std::max(run_end, offset + length));
      return;
    }
    // What the archive's reader looks at, and with an item's end the head of the next one.
    constexpr std::uint64_t kHead = ZipReader::kHeadBytes, kTail = ZipReader::kTailBytes;
    if (tail_.holds(offset, kHead)) {
      std::swap(head_, tail_);
    } else if (!head_.holds(offset, kHead)) {
      load(head_, offset, offset + kHead);
    }
    load(tail_, offset + length - kTail, offset + length + kHead);
  }

 private:
  /// A piece of a file held in memory.
  struct Piece {
    std::uint64_t offset = 0;
    Bytes bytes;
    bool holds(std::uint64_t at, std::uint64_t length) const {
      return at >= offset && length <= bytes.size() && at - offset <= bytes.size() - length;
    }
  };

  void load(Piece& piece, std::uint64_t begin, std::uint64_t end) {
    end = std::min(end, file_->size_bytes());
    piece.bytes = Bytes();  // a failed read leaves nothing behind, and one run is held, not two
    Bytes bytes(end - begin);
    file_->read_at(begin, bytes);
    piece.offset = begin;
    piece.bytes = std::move(bytes);
  }

  std::unique_ptr<ReadFile> file_;
  Piece head_;
  Piece tail_;
};

ItemReader::ItemReader(const Directory& directory, const Manifest& manifest,
                       const ReadOptions& options, std::mutex* large)
    : directory_(directory), manifest_(manifest), options_(options), large_(large) {}
ItemReader::~ItemReader() = default;

ReadAhead& ItemReader::file(std::uint32_t index) {
  if (!open_file_ || open_index_ != index) {
    open_file_.reset();
    open_file_ = std::make_unique<ReadAhead>(directory_.open(manifest_.files[index].path));
    open_index_ = index;
  }
  return *open_file_;
}

ByteWindow ItemReader::rest_of_file(std::uint32_t index, std::uint64_t offset) {
  const ByteWindow whole = ByteWindow::whole(file(index));
  if (offset > whole.length) {
    fail(Code::kCorrupt,
         fmt::format("the file ends at {}, before offset {}", whole.length, offset));
  }
  return whole.sub(offset, whole.length - offset);
}

OpenItem ItemReader::open(const Item& item, std::uint64_t run_end) {
  ReadAhead& source = file(item.file);
  const ByteWindow window = ByteWindow::whole(source).sub(item.offset, item.length);
  if (item.codecs == 0) {
    source.expect(item.offset, item.length, run_end);
    return {window, nullptr, {}};
  }
  // One item per thread is decoded at a time, and one large one; together they stay within the
  // limit.
  const auto threads = static_cast<std::uint64_t>(std::max(1, options_.threads));
  const std::uint64_t limit =
      large_ != nullptr ? most_decoded_bytes(options_) : options_.memory_limit_bytes / threads;
  const std::uint64_t share = std::min(limit, options_.memory_limit_bytes / 2 / threads);
  if (item.length > limit) {
    fail(Code::kResourceExhausted,
         fmt::format("an encoded item of {} bytes is beyond the memory limit", item.length),
         "raise --mem-limit");
  }
  if (item.length <= kSmallItemBytes) source.expect(item.offset, item.length, run_end);
  const Bytes stored = window.read(0, item.length);
  std::unique_lock<std::mutex> alone;
  Bytes bytes;
  try {
    bytes = decode_item(item, stored, large_ != nullptr ? share : limit);
  } catch (const Error& error) {
    // More than a share, or damaged: the second attempt shows which.
    if (large_ == nullptr || share == limit || error.code() != Code::kCorrupt) throw;
    alone = std::unique_lock(*large_);
    bytes = decode_item(item, stored, limit);
  }
  auto memory = std::make_shared<MemoryFile>(std::move(bytes), source.path());
  return {ByteWindow::whole(*memory), memory, std::move(alone)};
}

Bytes ItemReader::decode_item(const Item& item, ByteView stored, std::uint64_t most_bytes) const {
  Bytes bytes;
  for (const std::string& codec : manifest_.codecs[item.codecs - 1]) {
    bytes = decode(codec, stored, most_bytes);
    stored = bytes;
  }
  return bytes;
}

std::vector<std::uint64_t> run_ends(const std::vector<Item>& items) {
  std::vector<std::uint64_t> ends(items.size());
  std::size_t first = 0;
  while (first < items.size()) {
    // Grow a run of small neighbours; each of its items gets the same end.
    const std::uint64_t begin = items[first].offset;
    std::uint64_t end = begin + items[first].length;
    std::size_t next = first + 1;
    while (items[first].length <= kSmallItemBytes && next < items.size() &&
           items[next].file == items[first].file && items[next].length <= kSmallItemBytes &&
           items[next].offset <= end + kMaxGapBytes &&
           items[next].offset + items[next].length - begin <= kRunBytes) {
      end = std::max(end, items[next].offset + items[next].length);
      ++next;
    }
    for (; first < next; ++first) ends[first] = end;
  }
  return ends;
}

}  // namespace tessera::dcp
