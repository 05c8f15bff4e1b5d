#include "lib/live/record_proof.h"

#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "lib/base/sort_unique.h"
#include "lib/live/live_wire.h"
#include "lib/reshard/file_pool.h"
#include "lib/reshard/source_choice.h"

namespace tessera {

namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;

/// The record that the chunk lies in; null: none.
const Record* record_of(const Manifest& manifest, std::uint64_t chunk) {
  const Source& source = manifest.chunks.source(chunk);
  const bool in_file = source.kind == Source::Kind::kExtent || source.kind == Source::Kind::kCoded;
  if (source.record == 0 || !in_file) return nullptr;
  const Record& record = manifest.records[source.record - 1];
  return record.file == source.file ? &record : nullptr;
}

/// What one rank reads of a chunk.
class ReadOfChunk {
 public:
  void add(const CopyOp& op) {
    tensor_ = op.tensor;
    unknown_ = unknown_ || boxes_.size() == kMostBoxes;
    // Several targets may want the same elements: those are read once.
    for (const Box& box : boxes_) {
      if (unknown_ || box.contains(op.box)) return;
      unknown_ = intersect(box, op.box).has_value();
    }
    if (!unknown_) boxes_.push_back(op.box);
  }
  std::uint32_t tensor() const { return tensor_; }
  /// False only where it is known to be all of it.
  bool is_part(const Manifest& manifest, std::uint64_t chunk) const {
    std::int64_t numel = 0;
    for (const Box& box : boxes_) numel += box.numel();
    const StoredTensor& tensor = manifest.tensors[tensor_];
    return unknown_ || numel < manifest.chunks_of(tensor)[chunk - tensor.first_chunk].numel();
  }

 private:
  static constexpr std::size_t kMostBoxes = 64;  // each is held against all
  std::uint32_t tensor_ = 0;
  std::vector<Box> boxes_;  // that have no element in common
  bool unknown_ = false;
};

/// Files are located alike on all ranks, unless they are not the same ones.
[[noreturn]] void fail_differing() {
  fail(Code::kCorrupt, "another rank sees another checkpoint",
       "give all ranks the same files, and let nobody write to them while they load");
}

void prove(const RecordToProve& wanted, const Manifest& manifest, FilePool& files,
           const TransferOptions& options) {
  const Record* record = record_of(manifest, wanted.chunk);
  if (record == nullptr || record->offset != wanted.offset || record->length != wanted.length)
    fail_differing();
  const auto file = files.get(record->file);
  Bytes block(static_cast<std::size_t>(std::min(
      {record->length, kBlockBytes, std::max<std::uint64_t>(1, options.memory_limit_bytes)})));
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < record->length; at += block.size()) {
    if (options.cancel != nullptr) options.cancel->check();
    block.resize(
        static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), record->length - at)));
    file->read_at(record->offset + at, block);
    crc = crc32(crc, block);
  }
  check_record(*record, crc);
}

}  // namespace

std::vector<RecordToProve> records_to_prove(const Manifest& manifest, const Plan& plan, bool all) {
  std::map<std::uint64_t, ReadOfChunk> reads;
  for (std::size_t i = 0; i < plan.tensor_count(); ++i)
    for (const CopyOp& op : plan.ops(i)) reads[op.source_chunk].add(op);
  std::vector<std::uint64_t> chunks;
  for (const auto& [chunk, read] : reads) chunks.push_back(chunk);
  const auto is_cut = [&](std::uint64_t chunk) { return reads.at(chunk).is_part(manifest, chunk); };
  std::vector<RecordToProve> out;
  for (const RecordReads& of : reads_of_records(manifest, chunks)) {
    if (!all && of.proves(manifest) && std::ranges::none_of(of.tiling, is_cut)) continue;
    const Record& record = manifest.records[of.record];
    const std::uint64_t chunk = of.tiling.front();
    out.push_back({record.file, record.offset, record.length, reads.at(chunk).tensor(), chunk});
  }
  return out;
}

std::vector<RecordToProve> share_of_records(std::vector<RecordToProve> mine, RankGroup& ranks) {
  WireWriter told;
  told.number(mine.size());
  for (const RecordToProve& each : mine)
    told.number(each.file)
        .number(each.offset)
        .number(each.length)
        .number(each.tensor)
        .number(each.chunk);
  mine.clear();
  std::map<std::pair<std::uint64_t, std::uint64_t>, RecordToProve> all;
  for (const auto& bytes : ranks.all_gather(told.finish())) {
    WireReader in(bytes);
    for (std::size_t left = in.count(5 * sizeof(std::uint64_t)); left > 0; --left) {
      RecordToProve each;
      each.file = in.number();
      each.offset = in.number();
      each.length = in.number();
      each.tensor = static_cast<std::uint32_t>(in.number());
      each.chunk = in.number();
      all.try_emplace({each.file, each.offset}, each);
    }
  }
  std::set<std::pair<std::uint64_t, int>> load;  // bytes so far, rank: the least first
  for (int r = 0; r < ranks.size(); ++r) load.emplace(0, r);
  for (const auto& [place, record] : all) {
    const auto [bytes, rank] = load.extract(load.begin()).value();
    load.emplace(bytes + record.length, rank);
    if (rank == ranks.rank()) mine.push_back(record);
  }
  return mine;
}

std::uint64_t prove_records(OpenedCheckpoint& source, std::span<const RecordToProve> records,
                            const ReadOptions& locating, const TransferOptions& options) {
  if (records.empty()) return 0;
  ReadOptions these = locating;
  std::vector<std::uint32_t> tensors;
  std::vector<std::uint64_t> chunks;
  for (const RecordToProve& each : records) {
    if (each.tensor >= source.manifest.tensors.size() ||
        each.chunk >= source.manifest.chunks.size() || each.file >= source.manifest.files.size())
      fail_differing();
    tensors.push_back(each.tensor);
    chunks.push_back(each.chunk);
  }
  sort_unique(tensors);
  sort_unique(chunks);
  these.chunks = std::move(chunks);
  source.locate(tensors, these);
  FilePool files(source.manifest, *source.directory);
  parallel_for(records.size(), options.threads, [&](std::size_t i, int) {
    in_tensor(source.manifest.tensors[records[i].tensor].name, [&] {
      in_file(source.manifest.files[records[i].file].path,
              [&] { prove(records[i], source.manifest, files, options); });
    });
  });
  std::uint64_t bytes = 0;
  for (const RecordToProve& each : records) bytes += each.length;
  return bytes;
}

}  // namespace tessera
