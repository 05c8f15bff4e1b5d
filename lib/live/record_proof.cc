#include "lib/live/record_proof.h"

#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

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

void prove(const RecordToProve& wanted, const Manifest& manifest, FilePool& files,
           const TransferOptions& options) {
  const Record* record = record_of(manifest, wanted.chunk);
  if (record == nullptr) return;  // (Located alike on all ranks: there is one.)
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
  struct Read {
    RecordToProve record;
    std::uint64_t most_gap_bytes = 0;
    std::uint64_t bytes = 0;  // of its chunks that are read
    bool cut = false;         // a chunk is read in part
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Read> reads;  // by file and offset
  for (std::size_t i = 0; i < plan.tensor_count(); ++i) {
    const StoredTensor& tensor = manifest.tensors[plan.tensor(i)];
    std::unordered_map<std::uint64_t, std::int64_t> read;  // elements, by chunk
    for (const CopyOp& op : plan.ops(i)) read[op.source_chunk] += op.box.numel();
    for (const auto& [chunk, numel] : read) {
      const Record* record = record_of(manifest, chunk);
      if (record == nullptr) continue;
      Read& of_record = reads[{record->file, record->offset}];
      if (of_record.record.length == 0) {
        of_record.record = {record->file, record->offset, record->length, plan.tensor(i), chunk};
        of_record.most_gap_bytes = most_gap_bytes(*record);
      }
      const ChunkView view = manifest.chunks_of(tensor)[chunk - tensor.first_chunk];
      of_record.bytes += manifest.chunks.source(chunk).length;
      of_record.cut = of_record.cut || numel < view.numel();
    }
  }
  std::vector<RecordToProve> out;
  for (const auto& [place, read] : reads)
    if (all || read.cut || read.bytes + read.most_gap_bytes < read.record.length)
      out.push_back(read.record);
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
      fail(Code::kCorrupt, "another rank sees another checkpoint");
    tensors.push_back(each.tensor);
    chunks.push_back(each.chunk);
  }
  std::ranges::sort(tensors);
  tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  std::ranges::sort(chunks);
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
