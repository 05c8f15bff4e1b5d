#include "lib/reshard/source_choice.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/layout/coverage.h>

#include <algorithm>
#include <compare>
#include <memory>

#include "lib/reshard/geometry.h"
#include "lib/storage/read_crc.h"

namespace tessera {

namespace {

std::strong_ordering compare_numbers(std::span<const std::int64_t> a,
                                     std::span<const std::int64_t> b) {
  return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
}

bool chunk_less(const ChunkView& a, const ChunkView& b) {
  if (const auto c = compare_numbers(a.origin, b.origin); c != 0) return c < 0;
  if (const auto c = compare_numbers(a.extents, b.extents); c != 0) return c < 0;
  if (a.flat_begin != b.flat_begin) return a.flat_begin < b.flat_begin;
  return a.flat_end < b.flat_end;
}

/// Most runs of one record that are sent to all ranks. Columns of rows that are longer than a slab
/// are a run each; reading them again is cheaper than sending them.
constexpr std::size_t kMostRunsSent = 64;

/// Bytes of a record that a reader of the rest reads for its checksum alone: far more than padding
/// ever is, far less than leaving tensors out saves.
std::uint64_t most_gap_bytes(const Record& record) {
  return std::max<std::uint64_t>(std::uint64_t{64} << 10, record.length / 64);
}

/// What reading some chunks reads of a record that has a checksum.
struct RecordReads {
  std::uint32_t record = 0;           // index in Manifest::records
  std::vector<std::uint64_t> tiling;  // chunks that overlap none before, in file order
  std::uint64_t tiling_bytes = 0;
  std::uint64_t wanted_bytes = 0;  // in one chunk or more

  /// Whether so little of the record is wanted by nobody (padding of a flat parameter, of a ZeRO
  /// partition) that it is read for the checksum alone.
  bool proves(const Manifest& manifest) const {
    const Record& of = manifest.records[record];
    return of.length - wanted_bytes <= most_gap_bytes(of);
  }
};

/// Ascending by record. `chunks`: indices in Manifest::chunks, in any order.
std::vector<RecordReads> reads_of_records(const Manifest& manifest,
                                          std::span<const std::uint64_t> chunks) {
  struct Part {
    std::uint32_t record;
    std::uint64_t begin, end, chunk;
  };
  std::vector<Part> parts;
  for (const std::uint64_t chunk : chunks) {
    const Source& source = manifest.chunks.source(chunk);
    bool in_file = source.kind == Source::Kind::kExtent || source.kind == Source::Kind::kCoded;
    if (source.record == 0 || !in_file || source.length == 0) continue;
    const Record& record = manifest.records[source.record - 1];
    if (record.file != source.file || source.offset < record.offset ||
        source.offset + source.length > record.offset + record.length) {
      continue;
    }
    parts.push_back({source.record - 1, source.offset, source.offset + source.length, chunk});
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return std::tie(a.record, a.begin, b.end, a.chunk) <
           std::tie(b.record, b.begin, a.end, b.chunk);
  });
  std::vector<RecordReads> out;
  std::uint64_t wanted_to = 0, tiled_to = 0;
  for (const Part& part : parts) {
    if (out.empty() || out.back().record != part.record) {
      out.push_back({part.record, {}, 0, 0});
      wanted_to = tiled_to = manifest.records[part.record].offset;
    }
    RecordReads& reads = out.back();
    if (part.begin >= tiled_to) {
      reads.tiling.push_back(part.chunk);
      reads.tiling_bytes += part.end - part.begin;
      tiled_to = part.end;
    }
    reads.wanted_bytes += part.end - std::min(part.end, std::max(part.begin, wanted_to));
    wanted_to = std::max(wanted_to, part.end);
  }
  return out;
}

/// The chunk, or, where it is computed, those that it is computed from.
void add_read_chunks(const Manifest& manifest, std::uint64_t chunk,
                     std::vector<std::uint64_t>& read) {
  const Source& source = manifest.chunks.source(chunk);
  if (source.kind != Source::Kind::kComputed) return read.push_back(chunk);
  SourceChooser chooser(manifest);
  for (const std::uint32_t part : manifest.computed[computed_index(manifest, source)].parts)
    for (const std::uint32_t c : chooser.choose(part))
      add_read_chunks(manifest, manifest.tensors[part].first_chunk + c, read);
}

}  // namespace

void check_record(const Record& record, std::uint32_t crc) {
  if (crc == record.crc32) return;
  fail(Code::kCorrupt,
       fmt::format("its bytes do not match their stored checksum (CRC-32 {:08x}, stored {:08x}, "
                   "{} bytes at {})",
                   crc, record.crc32, record.length, record.offset),
       "restore the file from another copy, or save what is whole with --salvage");
}

std::vector<CrcRun> joined_runs(std::vector<CrcRun> runs) {
  std::ranges::sort(runs, [](const CrcRun& a, const CrcRun& b) {
    return std::tie(a.offset, b.length) < std::tie(b.offset, a.length);
  });
  std::vector<CrcRun> out;
  for (const CrcRun& run : runs) {
    if (out.empty() || run.offset >= out.back().offset + out.back().length) {
      out.push_back(run);
    } else if (const CrcRun& same = out.back();
               run.offset == same.offset && run.length == same.length && run.crc != same.crc) {
      fail(Code::kCorrupt,
           fmt::format("{} bytes of it were read twice and were not the same (CRC-32 {:08x} and "
                       "{:08x})",
                       run.length, same.crc, run.crc),
           "give all ranks the same files, and write nothing to them meanwhile");
    }
  }
  return out;
}

std::uint32_t crc_with_rest(const Record& record, std::span<const CrcRun> runs,
                            const ReadFile& file, std::uint64_t block_bytes,
                            const CancelToken* cancel) {
  std::uint32_t crc = 0;
  std::uint64_t at = 0;
  const auto read_to = [&](std::uint64_t end) {
    crc = read_crc32(crc, file, record.offset + at, end - at, block_bytes, [&](std::size_t) {
      if (cancel != nullptr) cancel->check();
    });
    at = end;
  };
  for (const CrcRun& run : runs) {
    read_to(run.offset);
    crc = crc32_combine(crc, run.crc, run.length);
    at += run.length;
  }
  read_to(record.length);
  return crc;
}

std::vector<std::uint32_t> SourceChooser::choose(std::uint32_t tensor_index) {
  const StoredTensor& tensor = manifest_.tensors[tensor_index];
  return in_tensor(tensor.name, [&] {
    const ChunkSlice chunks = manifest_.chunks_of(tensor);
    std::vector<std::uint32_t> order;
    order.reserve(tensor.chunk_count);
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
      if (chunks[c].numel() > 0) order.push_back(c);
    const auto comes_first = [&](std::uint32_t a, std::uint32_t b) {
      return chunk_less(chunks[a], chunks[b]);
    };
    if (!std::is_sorted(order.begin(), order.end(), comes_first))
      std::stable_sort(order.begin(), order.end(), comes_first);
    load_bytes_.resize(std::max<std::size_t>(load_bytes_.size(), manifest_.files.size()));
    auto load_of = [this](const Source& source) -> std::uint64_t {
      bool in_memory = source.kind == Source::Kind::kInline || source.kind == Source::Kind::kFill ||
                       source.kind == Source::Kind::kMemory;
      if (in_memory || source.file >= load_bytes_.size()) return 0;
      return load_bytes_[source.file];
    };
    std::vector<std::uint32_t> chosen;
    chosen.reserve(order.size());
    for (std::size_t i = 0; i < order.size();) {
      std::size_t best = i;
      std::size_t next = i + 1;
      for (; next < order.size() && chunks[order[next]] == chunks[order[i]]; ++next) {
        if (load_of(manifest_.source(tensor, order[next])) <
            load_of(manifest_.source(tensor, order[best]))) {
          best = next;
        }
      }
      const Source& source = manifest_.source(tensor, order[best]);
      if (source.file < load_bytes_.size()) load_bytes_[source.file] += source.length;
      chosen.push_back(order[best]);
      i = next;
    }
    std::sort(chosen.begin(), chosen.end());
    if (tensor.spec.shape.numel() == 0 && chosen.empty()) return chosen;
    PackedChunks kept;
    if (chosen.size() != chunks.size())
      for (const std::uint32_t c : chosen) kept.push_back(chunks[c]);
    const CoverageReport report =
        check_coverage(tensor.spec.shape, chosen.size() == chunks.size() ? chunks : kept);
    if (!report.complete) {
      fail(Code::kCorrupt, fmt::format("its stored chunks do not make up {}: {}",
                                       tensor.spec.to_string(), report.to_string()));
    }
    return chosen;
  });
}

RecordProver::~RecordProver() = default;

void RecordProver::expect(std::span<const std::uint64_t> chunks) {
  std::vector<std::uint64_t> read;
  for (const std::uint64_t chunk : chunks) add_read_chunks(manifest_, chunk, read);
  for (const RecordReads& reads : reads_of_records(manifest_, read)) {
    const bool proves = reads.proves(manifest_);
    if (proves) wanted_.insert(reads.tiling.begin(), reads.tiling.end());
    expected_.emplace(reads.record,
                      Expected{reads.tiling.front(), proves ? reads.tiling_bytes : 0});
  }
}

void RecordProver::add(std::uint64_t chunk, std::uint64_t offset, std::uint64_t length,
                       std::uint32_t crc) {
  std::uint32_t index = manifest_.chunks.source(chunk).record - 1;
  const Record& record = manifest_.records[index];
  if (length != record.length) {
    std::lock_guard lock(mutex_);
    std::unique_ptr<CrcFold>& slot = open_[index];
    if (!slot) slot = std::make_unique<CrcFold>(record.length);
    slot->add(offset - record.offset, length, crc);
    if (!slot->complete()) return;
    crc = slot->value();
    open_.erase(index);
  }
  compare(index, crc);
}

/// One of those that lie in the record.
template <class Work>
void RecordProver::naming_tensor(std::uint32_t index, Work&& work) const {
  try {
    work();
  } catch (const Error&) {
    for (const StoredTensor& tensor : manifest_.tensors)
      for (std::uint64_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c)
        if (manifest_.chunks.source(c).record == index + 1) in_tensor(tensor.name, [] { throw; });
    throw;
  }
}

void RecordProver::compare(std::uint32_t index, std::uint32_t crc) {
  const Record& record = manifest_.records[index];
  check_record(record, crc);
  std::lock_guard lock(mutex_);
  proved_.insert(index);
  proved_bytes_ += record.length;
}

std::vector<RecordProver::ReadPart> RecordProver::give_parts() {
  std::lock_guard lock(mutex_);
  std::vector<ReadPart> parts;
  for (const auto& [record, open] : open_)
    for (const CrcRun& run : open->runs()) parts.push_back({record, run});
  open_.clear();
  return parts;
}

void RecordProver::take_parts(std::vector<ReadPart> parts) {
  std::map<std::uint32_t, std::vector<CrcRun>> runs_of;
  for (const ReadPart& part : parts)
    runs_of[static_cast<std::uint32_t>(part.record)].push_back(part.run);
  for (auto& [index, runs] : runs_of) {
    const Record& record = manifest_.records[index];
    auto open = std::make_unique<CrcFold>(record.length);
    in_file(manifest_.files[record.file].path, [&] {
      naming_tensor(index, [&] {
        const std::size_t before = runs.size();
        runs = joined_runs(std::move(runs));
        if (runs.size() < before) overlapping_.insert(index);
        for (const CrcRun& run : runs) open->add(run.offset, run.length, run.crc);
        if (open->complete()) compare(index, open->value());
      });
    });
    if (!open->complete()) open_[index] = std::move(open);
  }
}

void RecordProver::finish(FilePool& files) {
  for (const auto& [record, expected] : expected_) {
    const auto open = open_.find(record);
    if (open == open_.end()) continue;
    const std::vector<CrcRun> runs = open->second->runs();
    std::uint64_t read = 0;
    for (const CrcRun& run : runs) read += run.length;
    // Less than that: a fill reads parts of chunks.
    if (read == expected.tiling_bytes || overlapping_.contains(record))
      read_rest(record, runs, files, nullptr);
  }
}

void RecordProver::finish_all(FilePool& files, int threads, const CancelToken* cancel) {
  std::vector<std::uint32_t> left;
  for (const auto& [record, expected] : expected_)
    if (expected.tiling_bytes > 0 && !proved_.contains(record)) left.push_back(record);
  parallel_for(left.size(), threads, [&](std::size_t i, int) {
    const auto open = open_.find(left[i]);
    read_rest(left[i], open != open_.end() ? open->second->runs() : std::vector<CrcRun>(), files,
              cancel);
  });
}

void RecordProver::read_rest(std::uint32_t index, std::span<const CrcRun> read, FilePool& files,
                             const CancelToken* cancel) {
  const Record& record = manifest_.records[index];
  in_file(files.path(record.file), [&] {
    const std::uint32_t crc = crc_with_rest(record, read, *files.get(record.file), kMiB, cancel);
    naming_tensor(index, [&] { compare(index, crc); });
  });
}

std::vector<UnprovedRecord> RecordProver::unproved() const {
  std::lock_guard lock(mutex_);
  std::vector<UnprovedRecord> out;
  for (const auto& [record, expected] : expected_) {
    if (proved_.contains(record)) continue;
    out.push_back({record, expected.chunk, {}});
    const auto open = open_.find(record);
    if (open == open_.end()) continue;
    out.back().runs = open->second->runs();
    if (out.back().runs.size() > kMostRunsSent) out.back().runs.clear();
  }
  return out;
}

bool RecordProver::claim(std::uint64_t chunk) {
  std::lock_guard lock(mutex_);
  return claimed_.insert(chunk).second;
}

std::uint64_t RecordProver::proved_bytes() const {
  std::lock_guard lock(mutex_);
  return proved_bytes_;
}

}  // namespace tessera
