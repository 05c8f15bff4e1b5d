// Elements that are made of other tensors' elements (state/element_recipe.h): what they need is
// gathered as any tensor is, block by block, and computed into the places that want it.
#include <tessera/base/error.h>

#include <algorithm>
#include <utility>

#include "lib/reshard/gather_need.h"
#include "lib/state/windowed_recipe.h"

namespace tessera {

namespace {

/// Parts are read in many short runs where they are columns of a matrix: what lies between them is
/// read later, by others.
constexpr std::uint64_t kPartReadThroughBytes = std::uint64_t{4} << 10;

const PartGeometries& parts_of(const Geometry& geometry, std::uint32_t computed) {
  const auto found = std::ranges::find(geometry.computed, computed, &PartGeometries::computed);
  TESSERA_CHECK(found != geometry.computed.end());
  return *found;
}

}  // namespace

void Gather::from_computed(const CopyTask& task, const Need& need, Worker& worker,
                           std::vector<Fragment>* fragments) const {
  const PartGeometries& of = parts_of(*task.geometry, computed_index(manifest_, *need.source));
  prove_parts(of, worker);
  if (!options_.place) return;
  const auto es = static_cast<std::uint64_t>(task.geometry->stored_element_bytes);
  const std::int64_t at_once =
      std::max<std::int64_t>(1, manifest_.computed[of.computed].recipe->at_once());
  const std::int64_t first = need.first_element;
  const auto numel = static_cast<std::int64_t>(need.length / es);
  const auto bytes_of = [es](std::int64_t count) { return static_cast<std::uint64_t>(count) * es; };
  const auto block_end = [&](std::int64_t begin, std::int64_t end) {
    return std::min(end, (begin / at_once + 1) * at_once);
  };
  if (need.strides != nullptr || need.common.size() > 1) {
    std::byte* out = worker.private_copy.need(need.length);
    for (std::int64_t at = first; at < first + numel;) {
      const std::int64_t end = block_end(at, first + numel);
      compute(task, *need.source, at, end, numel, worker,
              {out + bytes_of(at - first), static_cast<std::size_t>(bytes_of(end - at))});
      at = end;
    }
    return place(task, need, out, false, worker, fragments);
  }
  for (std::int64_t at = first; at < first + numel;) {
    const std::int64_t end = block_end(at, first + numel);
    Need part = need;
    part.first_element = at;
    part.length = bytes_of(end - at);
    part.offset = need.offset + bytes_of(at - first);
    part.common[0] = {need.common[0].begin + (at - first), need.common[0].begin + (end - first)};
    std::byte* out = worker.private_copy.need(part.length);
    compute(task, *need.source, at, end, numel, worker,
            {out, static_cast<std::size_t>(part.length)});
    place(task, part, out, false, worker, fragments);
    at = end;
  }
}

/// Elements [begin, end) of all that the recipe makes. `wanted`: how many follow each other in all.
void Gather::compute(const CopyTask& task, const Source& source, std::int64_t begin,
                     std::int64_t end, std::int64_t wanted, Worker& worker,
                     MutableBytes out) const {
  const PartGeometries& of = parts_of(*task.geometry, computed_index(manifest_, source));
  const ElementRecipe& recipe = *manifest_.computed[of.computed].recipe;
  const auto* windowed = dynamic_cast<const WindowedRecipe*>(&recipe);
  // Who wants a few elements reads no more than what these are made of.
  ElementRange range{begin, end};
  if (windowed != nullptr && wanted >= recipe.at_once())
    range = windowed->read_window(begin, options_.window_bytes);
  TESSERA_CHECK(range.begin <= begin && end <= range.end);
  const Worker::PartsWindow& held = worker.window;
  const bool is_exact = held.first == begin && held.last == end;
  const bool is_held = is_exact || (windowed != nullptr && held.first <= begin && end <= held.last);
  if (held.computed != of.computed || !is_held) read_parts(of, range, worker);
  if (windowed != nullptr)
    windowed->compute_within({held.first, held.last}, begin, end, held.parts, out);
  else
    recipe.compute(begin, end, held.parts, out);
}

/// Makes `range` the worker's window.
void Gather::read_parts(const PartGeometries& of, ElementRange range, Worker& worker) const {
  const ComputedElements& computed = manifest_.computed[of.computed];
  const std::vector<ElementRuns> needs = computed.recipe->needs(range.begin, range.end);
  TESSERA_CHECK(needs.size() == computed.parts.size());
  std::vector<std::uint64_t> sizes;
  std::uint64_t total = 0;
  for (std::size_t p = 0; p < needs.size(); ++p) {
    sizes.push_back(static_cast<std::uint64_t>(needs[p].numel()) *
                    static_cast<std::uint64_t>(of.parts[p]->element_bytes));
    total += sizes.back();
  }
  Worker& reading = worker.for_parts();
  worker.window = {};
  std::byte* to = reading.write.need(total);
  std::vector<ByteView> parts;
  std::vector<CopyTask> tasks;
  for (std::size_t p = 0; p < needs.size(); ++p) {
    parts.emplace_back(to, static_cast<std::size_t>(sizes[p]));
    const Geometry& geometry = *of.parts[p];
    const ElementRuns& runs = needs[p];
    for (std::int64_t r = 0; r < runs.repeats; ++r) {
      const std::int64_t from = runs.first + r * runs.step;
      TESSERA_CHECK(from >= 0 && from + runs.count <= geometry.numel());
      for_each_region(geometry, from, from + runs.count, [&](const Region& region) {
        tasks.push_back({&geometry, computed.parts[p], region, {TargetSpan{region, to, 0, false}}});
        to += region_numel(region) * geometry.element_bytes;
      });
    }
  }
  GatherOptions options = options_;
  options.read_through_bytes = kPartReadThroughBytes;
  Gather(manifest_, files_, nullptr, options).run(tasks, reading, nullptr);
  worker.bytes_read += std::exchange(reading.bytes_read, 0);
  worker.window = {of.computed, range.begin, range.end, std::move(parts)};
}

/// Parts are read in any order, some more than once: their records are proved apart, once.
void Gather::prove_parts(const PartGeometries& of, Worker& worker) const {
  if (prover_ == nullptr) return;
  for (const auto& geometry : of.parts) {
    for (const SourceChunk& chunk : geometry->source_chunks) {
      if (!prover_->wants(chunk.chunk)) continue;
      Need need;
      need.chunk = chunk.chunk;
      need.source = &manifest_.chunks.source(chunk.chunk);
      in_file(files_.path(need.source->file), [&] { prove_apart(need, worker.for_parts()); });
    }
    for (const PartGeometries& inner : geometry->computed) prove_parts(inner, worker);
  }
}

}  // namespace tessera
