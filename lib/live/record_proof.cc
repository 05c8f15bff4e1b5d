#include "lib/live/record_proof.h"

#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "lib/base/sort_unique.h"
#include "lib/reshard/file_pool.h"
#include "lib/reshard/source_choice.h"
#include "lib/state/live/wire.h"

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

/// Peers' numbers may be out of range: then the error goes on without names.
template <class Work>
void naming(const Manifest& manifest, const RecordToProve& record, Work&& work) {
  if (record.tensor >= manifest.tensors.size() || record.file >= manifest.files.size())
    return work();
  in_tensor(manifest.tensors[record.tensor].name,
            [&] { in_file(manifest.files[record.file].path, work); });
}

/// Files are located alike on all ranks, unless they are not the same ones.
[[noreturn]] void fail_differing() {
  fail(Code::kCorrupt, "another rank sees another checkpoint",
       "give all ranks the same files, and write nothing to them while they load");
}

void prove(const RecordToProve& wanted, const Manifest& manifest, FilePool& files,
           const TransferOptions& options) {
  const Record* record = record_of(manifest, wanted.chunk);
  if (record == nullptr || record->offset != wanted.offset || record->length != wanted.length)
    fail_differing();
  const std::uint64_t block_bytes =
      std::clamp<std::uint64_t>(options.memory_limit_bytes, 1, kBlockBytes);
  check_record(*record, crc_with_rest(*record, wanted.runs, *files.get(record->file), block_bytes,
                                      options.cancel));
}

void put(WireWriter& out, const RecordToProve& each) {
  out.number(each.file).number(each.offset).number(each.length);
  out.number(each.tensor).number(each.chunk).number(each.runs.size());
  for (const CrcRun& run : each.runs) out.number(run.offset).number(run.length).number(run.crc);
}

RecordToProve get(WireReader& in) {
  RecordToProve each;
  each.file = in.number();
  each.offset = in.number();
  each.length = in.number();
  each.tensor = static_cast<std::uint32_t>(in.number());
  each.chunk = in.number();
  for (std::size_t left = in.count(3); left > 0; --left) {
    CrcRun run;
    run.offset = in.number();
    run.length = in.number();
    run.crc = static_cast<std::uint32_t>(in.number());
    if (run.length > each.length || run.offset > each.length - run.length) fail_differing();
    each.runs.push_back(run);
  }
  return each;
}

}  // namespace

std::uint64_t RecordToProve::unread_bytes() const {
  std::uint64_t unread = length;
  for (const CrcRun& run : runs) unread -= run.length;
  return unread;
}

std::vector<RecordToProve> share_of_records(std::vector<RecordToProve> mine,
                                            const Manifest& manifest, RankGroup& ranks) {
  WireWriter message;
  message.number(mine.size());
  for (const RecordToProve& each : mine) put(message, each);
  mine.clear();
  struct Sent {
    RecordToProve record;
    int rank = 0;  // the first that sent it
  };
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>, Sent> all;
  const auto gathered = ranks.all_gather(message.finish());
  for (int r = 0; r < ranks.size(); ++r) {
    WireReader in(gathered[static_cast<std::size_t>(r)]);
    for (std::size_t left = in.count(6); left > 0; --left) {
      RecordToProve each = get(in);
      const auto [at, is_new] = all.try_emplace({each.file, each.offset, each.length});
      RecordToProve& known = at->second.record;
      if (is_new)
        at->second = {std::move(each), r};
      else
        known.runs.insert(known.runs.end(), each.runs.begin(), each.runs.end());
    }
  }
  std::set<std::pair<std::uint64_t, int>> load;  // bytes so far, rank: the least first
  for (int r = 0; r < ranks.size(); ++r) load.emplace(0, r);
  for (auto& [place, sent_first] : all) {
    auto& [record, rank] = sent_first;
    naming(manifest, record, [&] { record.runs = joined_runs(std::move(record.runs)); });
    if (const std::uint64_t unread = record.unread_bytes(); unread > 0) {
      const auto [bytes, least] = load.extract(load.begin()).value();
      load.emplace(bytes + unread, least);
      rank = least;
    }
    if (rank == ranks.rank()) mine.push_back(std::move(record));
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
    if (each.unread_bytes() == 0) continue;  // this rank has read a part: it knows where it is
    tensors.push_back(each.tensor);
    chunks.push_back(each.chunk);
  }
  sort_unique(tensors);
  sort_unique(chunks);
  these.chunks = std::move(chunks);
  if (!tensors.empty()) source.locate(tensors, these);
  FilePool files(source.manifest, *source.directory);
  parallel_for(records.size(), options.threads, [&](std::size_t i, int) {
    naming(source.manifest, records[i],
           [&] { prove(records[i], source.manifest, files, options); });
  });
  std::uint64_t bytes = 0;
  for (const RecordToProve& each : records) bytes += each.unread_bytes();
  return bytes;
}

}  // namespace tessera
