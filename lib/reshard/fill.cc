#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/reshard/fill.h>
#include <tessera/tensor/region_copy.h>

#include <algorithm>
#include <atomic>

#include "lib/reshard/gather.h"
#include "lib/reshard/transfer_parts.h"
#include "lib/reshard/units.h"

namespace tessera {

namespace {

/// Part of a strided target, read dense into a block first.
struct Detour {
  const MemoryTarget* target = nullptr;
  std::int64_t first_element = 0;  // of the target chunk's ravel
  std::int64_t numel = 0;
  std::uint64_t at = 0;  // in the block
};

void scatter(const Detour& detour, int element_bytes, const std::byte* block) {
  const MemoryTarget& target = *detour.target;
  const Chunk run{target.chunk.box, detour.first_element, detour.first_element + detour.numel};
  for (const ChunkPiece& piece : decompose(run)) {
    std::int64_t to = 0;
    for (int d = 0; d < piece.box.rank(); ++d)
      to += (piece.box.begin(d) - target.chunk.box.begin(d)) *
            target.strides[static_cast<std::size_t>(d)];
    copy_region(piece.box.shape, element_bytes, block + piece.chunk_offset * element_bytes,
                piece.box.shape.strides(), target.data + to * element_bytes, target.strides);
  }
}

class Filling {
 public:
  Filling(const Manifest& source, const Directory& directory, const OutputPlan& output,
          const Plan& plan, std::span<const MemoryTarget> targets, const TransferOptions& options,
          bool keeps)
      : source_(source),
        output_(output),
        plan_(plan),
        targets_(targets),
        options_(options),
        keeps_(keeps),
        gate_(reads_coded(source, plan) ? coded_part(options.memory_limit_bytes) : 0),
        budget_(Budget::make(options.memory_limit_bytes - gate_.total_bytes(), options.threads,
                             options.block_bytes)),
        files_(source, directory),
        prover_(source),
        geometries_(source, output, plan) {}

  TransferResult run() {
    if (options_.check_crc) prover_.expect(plan_.chosen_chunks());
    if (options_.progress != nullptr) options_.progress->total_bytes += plan_.tensor_bytes();
    const std::vector<Unit> units = make_units(source_, output_, plan_, geometries_, budget_);
    WorkerTotals totals;
    {
      std::vector<std::unique_ptr<Worker>> workers(static_cast<std::size_t>(budget_.threads));
      parallel_for(units.size(), budget_.threads, [&](std::size_t i, int number) {
        std::unique_ptr<Worker>& worker = workers[static_cast<std::size_t>(number)];
        if (!worker) worker = make_worker(meter_, gate_, budget_.threads);
        run_unit(units[i], *worker);
      });
      for (const auto& worker : workers)
        if (worker) totals.add(*worker);
    }
    prover_.finish(files_);
    TransferResult result;
    result.bytes_read = totals.bytes_read;
    result.casts = std::move(totals.casts);
    result.bytes_written = bytes_written_;
    result.proved_bytes = prover_.proved_bytes();
    result.unproved = prover_.unproved();
    result.peak_staged_bytes = meter_.peak();
    return result;
  }

 private:
  void run_unit(const Unit& unit, Worker& worker) {
    if (options_.cancel != nullptr) options_.cancel->check();
    GatherOptions gathering = gather_options(budget_, gate_, options_.cancel);
    gathering.place = keeps_;
    const Gather gather(source_, files_, options_.check_crc ? &prover_ : nullptr, gathering);
    const DecodedAtEnd dropped(worker);
    if (unit.sequential) {
      for (const Slab& slab : unit.slabs) run_slabs({&slab, 1}, gather, worker);
    } else {
      run_slabs(unit.slabs, gather, worker);
    }
  }

  void run_slabs(std::span<const Slab> slabs, const Gather& gather, Worker& worker) {
    std::vector<std::shared_ptr<const Geometry>> geometries;
    std::vector<CopyTask> tasks;
    std::vector<std::vector<Detour>> detours(slabs.size());
    std::uint64_t block_bytes = 0;
    std::uint64_t bytes = 0;
    for (std::size_t s = 0; s < slabs.size(); ++s) {
      geometries.push_back(geometries_.get(slabs[s].entry));
      const Geometry& geometry = *geometries.back();
      CopyTask task{&geometry, plan_.tensor(slabs[s].entry), slabs[s].region, {}};
      const auto segments = plan_.segments(slabs[s].entry);
      geometry.targets.query(slabs[s].region, [&](std::size_t i, const Region& common) {
        if (!keeps_) {
          task.targets.push_back({common, nullptr, 0, false});
          return;
        }
        const MemoryTarget& target = targets_[segments[geometry.targets.owner(i)]];
        const std::int64_t first =
            geometry.targets.chunk_offset(i) + offset_inside(geometry.targets.region(i), common);
        const std::int64_t numel = region_numel(common);
        const auto length = static_cast<std::uint64_t>(numel * geometry.element_bytes);
        bytes += length;
        if (target.strides.empty()) {
          task.targets.push_back({common, target.data + first * geometry.element_bytes, 0, false});
          return;
        }
        task.targets.push_back({common, nullptr, 0, false});
        detours[s].push_back({&target, first, numel, block_bytes});
        block_bytes += (length + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
      });
      tasks.push_back(std::move(task));
    }
    std::byte* block = block_bytes > 0 ? worker.write.need(block_bytes) : nullptr;
    for (std::size_t s = 0; s < slabs.size(); ++s) {
      if (detours[s].empty()) continue;
      auto next = detours[s].begin();
      for (TargetSpan& span : tasks[s].targets)
        if (span.data == nullptr) span.data = block + (next++)->at;
    }
    gather.run(tasks, worker, nullptr);
    for (std::size_t s = 0; s < slabs.size(); ++s) {
      for (const Detour& detour : detours[s])
        scatter(detour, geometries[s]->element_bytes, block + detour.at);
    }
    bytes_written_ += bytes;
    if (options_.progress != nullptr) options_.progress->done_bytes += bytes;
  }

  const Manifest& source_;
  const OutputPlan& output_;
  const Plan& plan_;
  std::span<const MemoryTarget> targets_;
  const TransferOptions& options_;
  const bool keeps_;
  CodedGate gate_;
  Budget budget_;
  FilePool files_;
  RecordProver prover_;
  GeometryCache geometries_;
  StagedMeter meter_;
  std::atomic<std::uint64_t> bytes_written_{0};
};

}  // namespace

OutputPlan memory_plan(const Manifest& source, std::span<const MemoryTarget> targets) {
  OutputPlan plan;
  plan.format = "memory";
  plan.single_file = true;
  std::uint64_t at = 0;
  for (const MemoryTarget& target : targets) {
    TESSERA_CHECK(target.tensor < source.tensors.size());
    const int width = bits(source.tensors[target.tensor].spec.dtype);
    const auto length = static_cast<std::uint64_t>((target.chunk.numel() * width + 7) / 8);
    plan.segments.push_back(
        {Segment::Kind::kTensor, target.tensor, at, length, plan.chunks.size()});
    plan.chunks.push_back(target.chunk);
    at += length;
  }
  plan.files.push_back({"", at, 0, plan.segments.size()});
  return plan;
}

TransferResult fill(const Manifest& source, const Directory& directory, const OutputPlan& output,
                    const Plan& plan, std::span<const MemoryTarget> targets,
                    const TransferOptions& options) {
  TESSERA_CHECK(output.segments.size() == targets.size());
  return Filling(source, directory, output, plan, targets, options, true).run();
}

TransferResult prove_fill(const Manifest& source, const Directory& directory,
                          const OutputPlan& output, const Plan& plan,
                          const TransferOptions& options) {
  return Filling(source, directory, output, plan, {}, options, false).run();
}

}  // namespace tessera
