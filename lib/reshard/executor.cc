#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/reshard/executor.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "lib/reshard/transfer.h"

namespace tessera {

Gather Transfer::make_gather() {
  return Gather(source_, files_, options_.check_crc ? &prover_ : nullptr,
                gather_options(budget_, gate_, options_.cancel));
}

void Transfer::prepare(const Plan& proving) {
  if (options_.check_crc) prover_.expect(proving.chosen_chunks());
  for (const JournalEntry& entry : stage_.finished()) {
    if (entry.file < finished_.size() && entry.length > 0) {
      finished_[entry.file][entry.offset] = entry;
    }
  }
}

void Transfer::run_units() {
  std::vector<Unit> units = make_units(source_, output_, plan_, geometries_, budget_);
  std::vector<std::unique_ptr<Worker>> workers(static_cast<std::size_t>(budget_.threads));
  parallel_for(units.size(), budget_.threads, [&](std::size_t i, int number) {
    std::unique_ptr<Worker>& worker = workers[static_cast<std::size_t>(number)];
    if (!worker) worker = make_worker();
    run_unit(units[i], *worker);
  });
  for (const auto& worker : workers)
    if (worker) totals_.add(*worker);
}

TransferResult Transfer::result() {
  TransferResult result;
  result.bytes_read = totals_.bytes_read;
  result.casts = std::move(totals_.casts);
  result.bytes_written = bytes_written_;
  result.resumed_bytes = resumed_bytes_;
  result.proved_bytes = prover_.proved_bytes();
  result.peak_staged_bytes = meter_.peak();
  return result;
}

TransferResult Transfer::run() {
  prepare(plan_);
  if (options_.progress != nullptr) options_.progress->total_bytes += output_.total_bytes();
  run_units();
  if (resumed_bytes_ > 0) {
    prover_.finish_all(files_, budget_.threads, options_.cancel);
  } else {
    prover_.finish(files_);
  }
  parallel_for(output_.files.size(), budget_.threads,
               [&](std::size_t file, int) { finish_file(static_cast<std::uint32_t>(file)); });
  TransferResult done = result();
  for (std::uint32_t file = 0; file < output_.files.size(); ++file)
    done.crc32_per_mib.push_back(sums_.file_crcs(file));
  return done;
}

/// A worker of a large transfer takes its whole buffers at once: what the run needs shows in its
/// first second, and is the same whatever the tensors are.
std::unique_ptr<Worker> Transfer::make_worker() {
  auto worker = tessera::make_worker(meter_, gate_, budget_.threads);
  const std::uint64_t whole = budget_.block_bytes + 2 * kIoAlignment;
  if (output_.total_bytes() / 8 < whole * static_cast<std::uint64_t>(budget_.threads))
    return worker;
  if (!source_.files.empty()) worker->read.fill(whole);
  worker->write.fill(whole);
  return worker;
}

void Transfer::run_unit(const Unit& unit, Worker& worker) {
  if (options_.cancel != nullptr) options_.cancel->check();
  Gather gather = make_gather();
  const DecodedAtEnd dropped(worker);
  if (unit.sequential) {
    for (const Slab& slab : unit.slabs) run_slabs({&slab, 1}, gather, worker);
  } else {
    run_slabs(unit.slabs, gather, worker);
  }
}

void Transfer::run_slabs(std::span<const Slab> slabs, const Gather& gather, Worker& worker) {
  std::vector<std::shared_ptr<const Geometry>> geometries;
  std::vector<CopyTask> tasks;
  std::vector<FileRange> pieces;
  for (const Slab& slab : slabs) {
    std::shared_ptr<const Geometry> geometry = geometries_.get(slab.entry);
    CopyTask task{geometry.get(), plan_.tensor(slab.entry), slab.region, {}};
    std::span<const std::uint64_t> segments = plan_.segments(slab.entry);
    geometry->targets.query(slab.region, [&](std::size_t i, const Region& common) {
      std::uint64_t number = segments[geometry->targets.owner(i)];
      std::uint64_t at = file_offset_of(*geometry, i, common, output_.segments[number]);
      auto length = static_cast<std::uint64_t>(region_numel(common) * geometry->element_bytes);
      auto target = static_cast<std::uint32_t>(task.targets.size());
      auto which = static_cast<std::uint32_t>(tasks.size());
      task.targets.push_back({common, nullptr, at, true});
      pieces.push_back(
          {file_of_segment(output_, number), {number, at, length, which, target, true}});
    });
    tasks.push_back(std::move(task));
    geometries.push_back(std::move(geometry));
  }
  std::vector<WriteRun> runs = join_runs(output_, std::move(pieces), budget_.block_bytes * 2);
  place_runs(runs, worker.write.need(runs_buffer_bytes(runs)));
  if (resume_runs(runs)) return;
  for (const WriteRun& run : runs) {
    for (const RunPart& part : run.parts) {
      if (!part.is_tensor) continue;
      tasks[part.task].targets[part.target].data = run.data + (part.offset - run.begin);
    }
  }
  std::vector<Fragment> fragments;
  gather.run(tasks, worker, &fragments);
  std::sort(fragments.begin(), fragments.end(), [](const Fragment& a, const Fragment& b) {
    return std::tie(a.task, a.target, a.offset) < std::tie(b.task, b.target, b.offset);
  });
  for (const WriteRun& run : runs) write_run(run, fragments);
}

namespace {

/// The checksums of one tensor part in order, cut at MiB borders: from the copy where they came
/// with it, else summed now.
void tensor_parts(const WriteRun& run, const RunPart& part, const std::vector<Fragment>& fragments,
                  std::vector<FilePart>& out) {
  auto key = std::make_tuple(part.task, part.target);
  auto first = std::lower_bound(
      fragments.begin(), fragments.end(), key,
      [](const Fragment& f, const auto& k) { return std::tie(f.task, f.target) < k; });
  std::size_t before = out.size();
  std::uint64_t reached = 0;
  for (; first != fragments.end() && std::tie(first->task, first->target) == key; ++first) {
    if (first->offset != reached) break;
    out.push_back({part.offset + first->offset, first->length, first->crc});
    reached += first->length;
  }
  if (reached == part.length) return;
  out.resize(before);
  cut_at_mib(part.offset, part.length, [&](std::uint64_t offset, std::uint64_t length) {
    ByteView bytes{run.data + (offset - run.begin), static_cast<std::size_t>(length)};
    out.push_back({offset, length, crc32(0, bytes)});
  });
}

std::uint32_t combined(std::span<const FilePart> parts) {
  std::uint32_t crc = 0;
  for (const FilePart& part : parts) crc = crc32_combine(crc, part.crc, part.length);
  return crc;
}

}  // namespace

void Transfer::write_run(const WriteRun& run, const std::vector<Fragment>& fragments) {
  std::unordered_map<std::size_t, std::uint32_t> known;  // segments wholly inside this run, so far
  std::vector<FilePart> parts;
  std::uint64_t begin = run.begin;
  for (const RunPart& part : run.parts) {
    const Segment& segment = output_.segments[part.segment];
    std::size_t before = parts.size();
    if (part.is_tensor) {
      tensor_parts(run, part, fragments, parts);
      std::uint32_t crc = combined(std::span(parts).subspan(before));
      sums_.add_segment_part(part.segment, part.offset - segment.offset, part.length, crc);
      if (part.length == segment.length) known[part.segment] = crc;
      continue;
    }
    bool missing = false;
    Bytes bytes = output_.renderer->render(output_, part.segment, [&](std::size_t s) {
      auto found = known.find(s);
      if (found != known.end()) return found->second;
      missing = missing || output_.segments[s].length > 0;
      return std::uint32_t{0};
    });
    TESSERA_CHECK(bytes.size() == part.length);
    if (missing) {  // needs a checksum of another unit: written at the end, this run goes around it
      write_range(run.file, begin, run.data + (begin - run.begin), parts);
      begin = part.offset + part.length;
      continue;
    }
    std::memcpy(run.data + (part.offset - run.begin), bytes.data(), bytes.size());
    cut_at_mib(part.offset, part.length, [&](std::uint64_t offset, std::uint64_t length) {
      ByteView cut{run.data + (offset - run.begin), static_cast<std::size_t>(length)};
      parts.push_back({offset, length, crc32(0, cut)});
    });
    written_[part.segment].store(true);
  }
  write_range(run.file, begin, run.data + (begin - run.begin), parts);
}

void Transfer::write_range(std::uint32_t file, std::uint64_t begin, const std::byte* data,
                           std::vector<FilePart>& parts) {
  if (parts.empty()) return;
  std::uint64_t length = parts.back().offset + parts.back().length - begin;
  outputs_.get(file)->write_at(begin, {data, static_cast<std::size_t>(length)});
  sums_.add_run(file, parts);
  stage_.journal({file, combined(parts), begin, length});
  bytes_written_ += length;
  if (options_.progress != nullptr) options_.progress->done_bytes += length;
  parts.clear();
}

/// Takes over what an interrupted run wrote, if all of these runs are in its journal and still have
/// the bytes it says.
bool Transfer::resume_runs(std::vector<WriteRun>& runs) {
  if (stage_.finished().empty()) return false;
  std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> ranges(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!read_back(runs[i], ranges[i])) return false;
  }
  for (std::size_t i = 0; i < runs.size(); ++i) account_resumed(runs[i], ranges[i]);
  return true;
}

/// Reads the journaled pieces of a run into its place; false when one is missing (a deferred part
/// may be) or differs.
bool Transfer::read_back(const WriteRun& run,
                         std::vector<std::pair<std::uint64_t, std::uint64_t>>& ranges) {
  const FinishedPieces& finished = finished_[run.file];
  std::unique_ptr<ReadFile> file;
  for (std::uint64_t at = run.begin; at < run.end;) {
    auto entry = finished.find(at);
    if (entry == finished.end()) {
      auto hole = std::find_if(run.parts.begin(), run.parts.end(),
                               [at](const RunPart& part) { return part.offset == at; });
      bool deferred = hole != run.parts.end() && !hole->is_tensor &&
                      output_.segments[hole->segment].kind == Segment::Kind::kDeferred;
      if (!deferred) return false;
      at += hole->length;
      continue;
    }
    std::uint64_t length = entry->second.length;
    if (length > run.end - at) return false;
    if (!file) file = outputs_.read_back(run.file);
    if (!file) return false;
    MutableBytes bytes{run.data + (at - run.begin), static_cast<std::size_t>(length)};
    file->read_at(at, bytes);
    if (crc32(0, bytes) != entry->second.crc32) return false;
    ranges.emplace_back(at, length);
    at += length;
  }
  return true;
}

void Transfer::account_resumed(const WriteRun& run,
                               const std::vector<std::pair<std::uint64_t, std::uint64_t>>& ranges) {
  outputs_.get(run.file);
  for (const auto& [begin, length] : ranges) {
    std::vector<FilePart> parts;
    cut_at_mib(begin, length, [&](std::uint64_t offset, std::uint64_t part) {
      ByteView bytes{run.data + (offset - run.begin), static_cast<std::size_t>(part)};
      parts.push_back({offset, part, crc32(0, bytes)});
    });
    sums_.add_run(run.file, parts);
    stage_.journal({run.file, combined(parts), begin, length});
    resumed_bytes_ += length;
    if (options_.progress != nullptr) {
      options_.progress->done_bytes += length;
      options_.progress->resumed_bytes += length;
    }
    for (const RunPart& part : run.parts) {
      if (part.offset < begin || part.offset >= begin + length) continue;
      if (!part.is_tensor) {
        written_[part.segment].store(true);
        continue;
      }
      const Segment& segment = output_.segments[part.segment];
      ByteView bytes{run.data + (part.offset - run.begin), static_cast<std::size_t>(part.length)};
      sums_.add_segment_part(part.segment, part.offset - segment.offset, part.length,
                             crc32(0, bytes));
    }
  }
}

/// Literals and deferred bytes that no run took along, then the sync.
void Transfer::finish_file(std::uint32_t file) {
  if (options_.cancel != nullptr) options_.cancel->check();
  const OutputFile& planned = output_.files[file];
  Bytes pending;
  std::uint64_t begin = 0;
  auto flush = [&] {
    if (pending.empty()) return;
    std::vector<FilePart> parts;
    cut_at_mib(begin, pending.size(), [&](std::uint64_t offset, std::uint64_t length) {
      ByteView cut = ByteView(pending).subspan(static_cast<std::size_t>(offset - begin),
                                               static_cast<std::size_t>(length));
      parts.push_back({offset, length, crc32(0, cut)});
    });
    write_range(file, begin, pending.data(), parts);
    pending.clear();
  };
  std::uint64_t last = planned.first_segment + planned.segment_count;
  for (std::uint64_t s = planned.first_segment; s < last; ++s) {
    const Segment& segment = output_.segments[s];
    if (segment.length == 0) continue;
    if (segment.kind == Segment::Kind::kTensor || written_[s].load()) continue;
    Bytes bytes = output_.renderer->render(
        output_, s, [this](std::size_t tensor) { return sums_.segment_crc(tensor); });
    TESSERA_CHECK(bytes.size() == segment.length);
    bool follows = !pending.empty() && begin + pending.size() == segment.offset &&
                   pending.size() + bytes.size() <= budget_.block_bytes;
    if (!follows) {
      flush();
      begin = segment.offset;
      pending = std::move(bytes);
    } else {
      pending.insert(pending.end(), bytes.begin(), bytes.end());
    }
  }
  flush();
  outputs_.finish(file);
}

TransferResult transfer(const Manifest& source, const Directory& directory,
                        const OutputPlan& output, const Plan& plan, FileSystem& fs, Stage& stage,
                        const TransferOptions& options) {
  return Transfer(source, directory, output, plan, fs, stage, options).run();
}

std::uint64_t coded_bytes_needed(const Manifest& source, const StoredTensor& tensor,
                                 std::uint32_t chunk) {
  return coded_size(source, tensor, tensor.first_chunk + chunk).at_once();
}

std::uint64_t coded_bytes_bound(const TransferOptions& options) {
  return coded_part(options.memory_limit_bytes);
}

std::uint64_t staged_bytes_bound(const TransferOptions& options) {
  Budget budget = Budget::make(options.memory_limit_bytes, options.threads, options.block_bytes);
  return std::max<std::uint64_t>(options.memory_limit_bytes,
                                 budget.share_bytes * static_cast<std::uint64_t>(budget.threads));
}

}  // namespace tessera
