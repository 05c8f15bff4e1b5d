#include "lib/format/torch_files/archive_plan.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <deque>
#include <utility>

namespace tessera {

// ArchivePlanBuilder::Rep, which other files may see, holds these: so they are not anonymous.

/// What a segment that is no tensor shows: a piece of an archive, or a text.
struct Rendered {
  std::size_t archive = 0;  // of a text: its index in texts
  std::size_t piece = 0;
  static constexpr std::size_t kText = ~std::size_t{0};
};

/// Segments [first, last) of the plan hold one storage.
struct StorageSegments {
  std::size_t first = 0;
  std::size_t last = 0;
};

struct PlannedArchive {
  TorchArchiveLayout layout;
  std::vector<StorageSegments> storages;
};

struct PlannedFiles {
  std::deque<PlannedArchive> archives;
  std::deque<std::string> texts;
  std::vector<Rendered> rendered;  // by Segment::payload
};

namespace {

/// Zeros are rendered in pieces of at most this size: a literal is staged whole.
constexpr std::uint64_t kZeroRunBytes = std::uint64_t{1} << 20;
/// Segment::payload of a run of zeros.
constexpr std::uint64_t kZeroPayload = ~std::uint64_t{0};

std::uint32_t crc_of_zeros(std::uint64_t length) {
  constexpr std::byte kZero{};
  std::uint32_t crc = 0, power = crc32(0, {&kZero, 1});  // of 2^i zeros
  std::uint64_t power_length = 1;
  for (; length > 0; length >>= 1) {
    if (length & 1) crc = crc32_combine(crc, power, power_length);
    power = crc32_combine(power, power, power_length);
    power_length *= 2;
  }
  return crc;
}

class ArchivesRenderer : public OutputRenderer {
 public:
  explicit ArchivesRenderer(PlannedFiles files) : files_(std::move(files)) {}

  Bytes render(const OutputPlan& plan, std::size_t segment, const SegmentCrc& crc) const override {
    const Segment& of = plan.segments[segment];
    if (of.payload == kZeroPayload) return Bytes(of.length);
    const Rendered& what = files_.rendered.at(of.payload);
    if (what.piece == Rendered::kText) {
      const ByteView text = text_of(of);
      return {text.begin(), text.end()};
    }
    const PlannedArchive& archive = files_.archives[what.archive];
    return archive.layout.render(what.piece, [&](std::uint32_t storage) {
      return storage_crc(plan, archive.storages[storage], crc);
    });
  }

 private:
  ByteView text_of(const Segment& segment) const {
    return as_bytes(files_.texts[files_.rendered.at(segment.payload).archive]);
  }
  std::uint32_t storage_crc(const OutputPlan& plan, const StorageSegments& storage,
                            const SegmentCrc& crc) const {
    std::uint32_t out = 0;
    for (std::size_t s = storage.first; s < storage.last; ++s) {
      const Segment& segment = plan.segments[s];
      if (segment.length == 0) continue;
      const std::uint32_t part = segment.kind == Segment::Kind::kTensor ? crc(s)
                                 : segment.payload == kZeroPayload ? crc_of_zeros(segment.length)
                                                                   : crc32(0, text_of(segment));
      out = crc32_combine(out, part, segment.length);
    }
    return out;
  }

  PlannedFiles files_;
};

}  // namespace

struct ArchivePlanBuilder::Rep {
  explicit Rep(const Manifest& manifest) : source(manifest) {}

  void add_storage(std::uint64_t offset, std::uint64_t length,
                   const std::vector<StoragePiece>& pieces) {
    const std::uint64_t end = offset + length;
    for (const StoragePiece& piece : pieces) {
      if (piece.tensor == StoragePiece::kZeros) {
        add_zeros(offset, piece.zero_bytes);
        offset += piece.zero_bytes;
      } else if (piece.tensor == StoragePiece::kBytes) {
        add_text(offset, piece.bytes);
        offset += piece.bytes.size();
      } else {
        offset += add_tensor(offset, piece);
      }
    }
    TESSERA_CHECK(offset == end);
  }
  void add_zeros(std::uint64_t offset, std::uint64_t length) {
    while (length > 0) {
      const std::uint64_t run = std::min(length, kZeroRunBytes);
      plan.segments.push_back({Segment::Kind::kLiteral, 0, offset, run, kZeroPayload});
      offset += run;
      length -= run;
    }
  }
  void add_text(std::uint64_t offset, std::string text) {
    if (text.empty()) return;
    plan.segments.push_back(
        {Segment::Kind::kLiteral, 0, offset, text.size(), files.rendered.size()});
    files.rendered.push_back({files.texts.size(), Rendered::kText});
    files.texts.push_back(std::move(text));
  }
  std::uint64_t add_tensor(std::uint64_t offset, const StoragePiece& piece) {
    const DType dtype = source.tensors.at(piece.tensor).spec.dtype;
    const auto length =
        static_cast<std::uint64_t>(TensorSpec{dtype, Shape{piece.chunk.numel()}}.size_bytes());
    plan.segments.push_back(
        {Segment::Kind::kTensor, piece.tensor, offset, length, plan.chunks.size()});
    plan.chunks.push_back(piece.chunk);
    return length;
  }
  void begin_file(std::string path, std::uint64_t size_bytes) {
    if (path.empty()) plan.single_file = true;
    plan.files.push_back({std::move(path), size_bytes, plan.segments.size(), 0});
  }
  void end_file() {
    plan.files.back().segment_count = plan.segments.size() - plan.files.back().first_segment;
  }

  const Manifest& source;
  OutputPlan plan;
  PlannedFiles files;
};

ArchivePlanBuilder::ArchivePlanBuilder(const Manifest& source)
    : rep_(std::make_unique<Rep>(source)) {}
ArchivePlanBuilder::~ArchivePlanBuilder() = default;

void ArchivePlanBuilder::add(ArchiveFile file) {
  Rep& rep = *rep_;
  using Piece = TorchArchiveLayout::Piece;
  const std::size_t number = rep.files.archives.size();
  rep.files.archives.push_back(
      {in_file(file.path,
               [&] { return TorchArchiveLayout(file.root, std::move(file.tensors), file.prefix); }),
       std::vector<StorageSegments>(file.storages.size())});
  PlannedArchive& archive = rep.files.archives.back();
  rep.begin_file(std::move(file.path), archive.layout.size_bytes());
  const auto& pieces = archive.layout.pieces();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.kind == Piece::Kind::kStorage) {
      StorageSegments& storage = archive.storages.at(piece.storage);
      storage.first = rep.plan.segments.size();
      rep.add_storage(piece.offset, piece.length, file.storages[piece.storage]);
      storage.last = rep.plan.segments.size();
      continue;
    }
    const bool deferred = piece.kind == Piece::Kind::kDeferred;
    rep.plan.segments.push_back({deferred ? Segment::Kind::kDeferred : Segment::Kind::kLiteral, 0,
                                 piece.offset, piece.length, rep.files.rendered.size()});
    rep.files.rendered.push_back({number, i});
  }
  rep.end_file();
}

void ArchivePlanBuilder::add_literal(std::string path, std::string text) {
  Rep& rep = *rep_;
  rep.begin_file(std::move(path), text.size());
  rep.add_text(0, std::move(text));
  rep.end_file();
}

std::vector<Note>& ArchivePlanBuilder::notes() { return rep_->plan.notes; }

std::vector<LeftOut>& ArchivePlanBuilder::left_out() { return rep_->plan.left_out; }

std::vector<std::uint32_t>& ArchivePlanBuilder::restated() { return rep_->plan.restated; }

OutputPlan ArchivePlanBuilder::finish(std::string format) {
  OutputPlan plan = std::move(rep_->plan);
  plan.format = std::move(format);
  plan.renderer = std::make_shared<ArchivesRenderer>(std::move(rep_->files));
  return plan;
}

}  // namespace tessera
