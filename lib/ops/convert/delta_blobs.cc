#include "lib/ops/convert/delta_blobs.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/storage/checksum.h>
#include <tessera/tensor/dtype.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "lib/encoding/zstd_encoder.h"
#include "lib/storage/content_sums.h"

namespace tessera {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
/// Readers of one file are several blocks apart at most.
constexpr std::uint64_t kWindowBytes = std::uint64_t{32} << 20;
constexpr std::size_t kRecent = 2;

using ReadElements = std::function<void(std::int64_t begin, std::int64_t end, MutableBytes out)>;

}  // namespace

/// Makes one blob, piece by piece.
class DeltaBlobs::BlobMaker {
 public:
  BlobMaker(const TensorSpec& spec, ReadElements tensor, ReadElements base)
      : tensor_(std::move(tensor)),
        base_(std::move(base)),
        numel_(spec.shape.numel()),
        size_bytes_(static_cast<std::uint64_t>(spec.size_bytes())),
        encoder_(size_bytes_, static_cast<std::uint64_t>(bits(spec.dtype) + 7) / 8) {
    const bool cut = bits(spec.dtype) % 8 == 0;
    element_bytes_ = cut ? static_cast<std::uint64_t>(element_bytes(spec.dtype)) : 0;
    step_ = cut ? static_cast<std::int64_t>(kPieceBytes / element_bytes_) : numel_;
  }

  /// Appends the next piece of the blob to `out`; false: that was the last one.
  bool next(Bytes& out) {
    const std::int64_t end = std::min(numel_, at_ + std::max<std::int64_t>(step_, 1));
    const std::uint64_t bytes =
        element_bytes_ > 0 ? static_cast<std::uint64_t>(end - at_) * element_bytes_ : size_bytes_;
    ours_.resize(bytes);
    theirs_.resize(bytes);
    tensor_(at_, end, ours_);
    base_(at_, end, theirs_);
    sum_.add(ours_);
    std::byte any{};
    for (std::size_t i = 0; i < ours_.size(); ++i) {
      ours_[i] ^= theirs_[i];
      any |= ours_[i];
    }
    changed_ |= any != std::byte{};
    encoder_.add(ours_, out);
    at_ = end;
    if (at_ < numel_) return true;
    encoder_.finish(out);
    return false;
  }
  bool changed() const { return changed_; }
  std::string sum() const { return sum_.hex(); }

 private:
  ReadElements tensor_, base_;
  std::int64_t numel_, at_ = 0, step_ = 1;
  std::uint64_t size_bytes_, element_bytes_ = 0;
  Bytes ours_, theirs_;
  ZstdEncoder encoder_;
  Xxh3Sum sum_;
  bool changed_ = false;
};

std::vector<DeltaBlob> DeltaBlobs::plan(const DeltaReaders& readers,
                                        const std::vector<DeltaPair>& pairs,
                                        const TransferOptions& options) {
  constexpr std::uint64_t kPartOfMemory = 4;  // that kept blobs may take
  std::atomic<std::uint64_t> room = options.memory_limit_bytes / kPartOfMemory;
  std::vector<DeltaBlob> out(pairs.size());
  parallel_for(pairs.size(), options.threads, [&](std::size_t i, int) {
    DeltaBlob& blob = out[i];
    blob.pair = pairs[i];
    const DeltaPair& pair = blob.pair;
    in_tensor(pair.name, [&] {
      TensorReader::Reading tensor(readers.tensors, {&pair.tensor, 1});
      TensorReader::Reading base(readers.base, {&pair.base, 1}, &tensor);
      BlobMaker maker(
          readers.manifest.tensors[pair.tensor].spec,
          [&](auto begin, auto end, auto to) { tensor.read(pair.tensor, begin, end, to); },
          [&](auto begin, auto end, auto to) { base.read(pair.base, begin, end, to); });
      Bytes piece;
      blob.is_kept = true;
      for (bool more = true; more;) {
        if (options.cancel != nullptr) options.cancel->check();
        piece.clear();
        more = maker.next(piece);
        blob.size_bytes += piece.size();
        blob.crc32 = crc32(blob.crc32, piece);
        if (!blob.is_kept) continue;
        std::uint64_t left = room.load();
        while (left >= piece.size() && !room.compare_exchange_weak(left, left - piece.size())) {
        }
        if (left >= piece.size()) {
          blob.kept.insert(blob.kept.end(), piece.begin(), piece.end());
        } else {
          room += blob.kept.size();
          blob.kept = {};
          blob.is_kept = false;
        }
      }
      blob.changed = maker.changed();
      blob.sum = maker.sum();
      if (blob.changed) return;
      room += blob.kept.size();
      blob.kept = {};
    });
  });
  return out;
}

/// A blob that was not kept, as far as it was made again, without what lies far behind.
class DeltaBlobs::Window {
 public:
  Window(const DeltaReaders& readers, const DeltaBlob& blob) : readers_(readers), blob_(blob) {
    begin();
  }
  const DeltaBlob& blob() const { return blob_; }

  void read(std::uint64_t offset, MutableBytes out) {
    if (offset < begin_) begin();
    while (more_ && begin_ + bytes_.size() < offset + out.size()) {
      if (bytes_.size() > 2 * kWindowBytes && begin_ + kWindowBytes < offset) {
        bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(kWindowBytes));
        begin_ += kWindowBytes;
      }
      extend();
    }
    const std::uint64_t end = begin_ + bytes_.size();
    if (end < offset + out.size()) changed();
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset - begin_), out.size(),
                out.begin());
  }

 private:
  void begin() {
    const DeltaPair& pair = blob_.pair;
    maker_.emplace(
        readers_.manifest.tensors[pair.tensor].spec,
        [&](auto begin, auto end, auto to) { readers_.tensors.read(pair.tensor, begin, end, to); },
        [&](auto begin, auto end, auto to) { readers_.base.read(pair.base, begin, end, to); });
    bytes_.clear();
    begin_ = 0;
    crc32_ = 0;
    more_ = true;
  }
  void extend() {
    const std::size_t before = bytes_.size();
    more_ = maker_->next(bytes_);
    crc32_ = crc32(crc32_, ByteView(bytes_).subspan(before));
    if (!more_ && (crc32_ != blob_.crc32 || begin_ + bytes_.size() != blob_.size_bytes)) changed();
  }
  [[noreturn]] void changed() const {
    in_tensor(blob_.pair.name, [] {
      fail(Code::kCorrupt, "the source or the base of --delta-from changed while it was read",
           "run again when nothing writes to them");
    });
    std::abort();  // not reached
  }

  const DeltaReaders& readers_;
  const DeltaBlob& blob_;
  std::optional<BlobMaker> maker_;
  Bytes bytes_;
  std::uint64_t begin_ = 0;  // of bytes_, in the blob
  std::uint32_t crc32_ = 0;
  bool more_ = true;
};

class DeltaBlobs::BlobFile final : public ReadFile {
 public:
  BlobFile(const DeltaBlobs& blobs, std::string path, const DeltaBlob& blob)
      : blobs_(blobs), path_(std::move(path)), blob_(blob) {}

  std::uint64_t size_bytes() const override { return blob_.size_bytes; }
  const std::string& path() const override { return path_; }
  void read_at(std::uint64_t offset, MutableBytes out) const override {
    const std::uint64_t left = offset < blob_.size_bytes ? blob_.size_bytes - offset : 0;
    // Direct I/O may ask for more than there is.
    if (left < out.size() && (offset + out.size()) % kIoAlignment != 0)
      fail(Code::kCorrupt, fmt::format("file ends at {}", blob_.size_bytes));
    blobs_.read(blob_, offset, out.first(std::min<std::uint64_t>(left, out.size())));
  }

 private:
  const DeltaBlobs& blobs_;
  std::string path_;
  const DeltaBlob& blob_;
};

DeltaBlobs::DeltaBlobs(std::unique_ptr<Directory> source, std::unique_ptr<DeltaReaders> readers,
                       std::map<std::string, DeltaBlob> files)
    : source_(std::move(source)), readers_(std::move(readers)), files_(std::move(files)) {}

DeltaBlobs::~DeltaBlobs() = default;

std::unique_ptr<ReadFile> DeltaBlobs::open(std::string_view relative, IoMode mode) const {
  const auto found = files_.find(std::string(relative));
  if (found == files_.end()) return source_->open(relative, mode);
  return std::make_unique<BlobFile>(*this, found->first, found->second);
}

std::optional<FileInfo> DeltaBlobs::stat(std::string_view relative) const {
  const auto found = files_.find(std::string(relative));
  if (found == files_.end()) return source_->stat(relative);
  FileInfo info;
  info.name = found->first;
  info.size_bytes = found->second.size_bytes;
  return info;
}

void DeltaBlobs::read(const DeltaBlob& blob, std::uint64_t offset, MutableBytes out) const {
  if (out.empty()) return;
  if (blob.is_kept) {
    std::copy_n(blob.kept.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    return;
  }
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find(recent_, &blob, [](const auto& held) { return &held->blob(); });
  if (found == recent_.end()) {
    if (recent_.size() == kRecent) recent_.pop_back();
    recent_.push_front(std::make_unique<Window>(*readers_, blob));
  } else {
    recent_.splice(recent_.begin(), recent_, found);
  }
  recent_.front()->read(offset, out);
}

}  // namespace tessera
