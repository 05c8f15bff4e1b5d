#include <fmt/format.h>
#include <tessera/base/error.h>

#include <algorithm>
#include <set>

#include "lib/format/torch_files/archive_names.h"
#include "lib/format/torch_rank_files/local_state.h"
#include "lib/format/torch_rank_files/parts.h"
#include "lib/format/torch_rank_files/rank_merge.h"
#include "lib/format/torch_rank_files/rank_states.h"

namespace tessera::rank_files {
namespace {

class Reader {
 public:
  Reader(const Place& place, const ReadOptions& options)
      : place_(place),
        options_(options),
        builder_(*place.directory, options),
        bytes_(*place.directory, builder_),
        merger_(builder_, bytes_),
        findings_(options.tolerate_damage, builder_.manifest().notes) {}

  Manifest run() {
    auto folder = find_rank_files(*place_.directory);
    if (!folder)
      fail(Code::kUnsupported, "no file of this folder is named like a rank's (rank0.pt, ..)");
    states_ = open_ranks(std::move(*folder), builder_, findings_);
    if (states_.entries.empty() && states_.containers.empty())
      fail(Code::kCorrupt, "the rank files hold nothing");
    LocalState local(states_, builder_, bytes_, merger_, findings_);
    if (local.present()) local.name_parameters(*place_.directory, options_);
    for (const RankEntry& entry : states_.entries) {
      first_entry_.emplace(entry.name, builder_.manifest().state.entries.size());
      if (!local.add(entry)) merger_.add(entry);
    }
    add_containers(builder_, states_.containers, first_entry_);
    report_renamed(builder_, findings_);
    add_lost_files();
    describe(local);
    return builder_.finish("torch-rank-files", dialect(local));
  }

 private:
  /// Files that are not there, and what other ranks know of their content: so that verify can say
  /// which rows are lost.
  void add_lost_files() {
    if (states_.missing.empty()) return;
    Manifest& manifest = builder_.manifest();
    std::map<std::int64_t, std::uint32_t> lost;
    for (std::size_t i = 0; i < states_.missing.size(); ++i) {
      lost.emplace(states_.missing_ranks[i], static_cast<std::uint32_t>(manifest.files.size()));
      manifest.files.push_back({states_.missing[i], 0, 0});
    }
    std::map<std::string, std::size_t> tensors;
    for (std::size_t t = 0; t < manifest.tensors.size(); ++t)
      if (!manifest.tensors[t].embedded) tensors.emplace(manifest.tensors[t].name, t);
    ChunkTable chunks;
    std::map<std::size_t, std::vector<std::pair<Chunk, std::uint32_t>>> more;
    for (const RankEntry& entry : states_.entries) {
      const auto known = tensors.find(entry.name);
      if (known == tensors.end() || !entry.is_sharded()) continue;
      for (const auto& [rank, chunk] : lost_chunks(*entry.leaves.front().sharded))
        if (const auto file = lost.find(rank); file != lost.end() && chunk.numel() > 0)
          more[known->second].emplace_back(chunk, file->second);
    }
    for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
      StoredTensor& tensor = manifest.tensors[t];
      const std::uint64_t first = chunks.size();
      for (std::uint32_t c = 0; c < tensor.chunk_count; ++c)
        chunks.add(manifest.chunk(tensor, c), manifest.source(tensor, c));
      for (const auto& [chunk, file] : more[t]) {
        Source source;
        source.file = file;
        source.length = static_cast<std::uint64_t>(
            TensorSpec{tensor.spec.dtype, Shape{chunk.numel()}}.size_bytes());
        chunks.add(chunk, source);
      }
      tensor.first_chunk = first;
      tensor.chunk_count = static_cast<std::uint32_t>(chunks.size() - first);
    }
    manifest.chunks = std::move(chunks);
  }
  std::vector<std::pair<std::int64_t, Chunk>> lost_chunks(const ShardedValue& value) const {
    std::vector<std::pair<std::int64_t, Chunk>> out;
    for (const auto& [rank, box] : value.boxes) out.emplace_back(rank, Chunk::whole_of(box));
    if (!value.layout) return out;
    const std::int64_t ranks = value.layout->mesh().world_size();
    for (const std::int64_t rank : states_.missing_ranks)
      for (Chunk& chunk : value.layout->chunks_of(rank % ranks, value.spec.shape))
        out.emplace_back(rank, std::move(chunk));
    return out;
  }

  void describe(const LocalState& local) {
    Manifest& manifest = builder_.manifest();
    manifest.world_size = states_.folder.world_size;
    manifest.world_size_source =
        fmt::format("rank numbers in {} file names", manifest.files.size());
    manifest.provenance.emplace(kFlavour, flavour(local));
    std::string parts;
    for (const RankPart& part : states_.folder.parts)
      parts += fmt::format("{}={}\n", part.key, name_template(part));
    manifest.provenance.emplace(kParts, std::move(parts));
    if (local.record() && !local.state_alone())
      manifest.provenance.emplace(kFlatLayout, dump_flat_record(*local.record()));
    merger_.note_rank_local(manifest.notes);
    if (!states_.folder.others.empty())
      manifest.notes.push_back(
          {Finding::kStaleFile, Severity::kInfo,
           fmt::format("{} is no rank's file and is left out", states_.folder.others.front()),
           states_.folder.others.front(), ""});
  }
  /// "model_world_size_{W}_rank_{R}.pt"
  std::string name_template(const RankPart& part) const {
    const std::string name = part.name_of(0);
    const auto world = parse_rank_name(name);
    std::string out = part.name_of(987654321);
    out.replace(out.find("987654321"), 9, "{R}");
    if (world && world->world_size) {
      const std::string digits = std::to_string(*world->world_size);
      for (const std::string_view word : {"world_size_", "world-size-", "world_size", "ws_", "ws"})
        if (const std::size_t at = out.find(std::string(word) + digits); at != out.npos) {
          out.replace(at + word.size(), digits.size(), "{W}");
          break;
        }
    }
    return out;
  }

  std::string flavour(const LocalState& local) const {
    if (local.present() && !local.state_alone())
      return std::string(local.uses_orig_params() ? kLocalOrig : kLocal);
    const bool sharded = std::ranges::any_of(
        states_.entries, [](const RankEntry& entry) { return entry.is_sharded(); });
    return std::string(sharded ? kSharded : kFull);
  }
  std::string dialect(const LocalState& local) const {
    std::size_t dtensors = 0, sharded = 0;
    for (const RankEntry& entry : states_.entries)
      if (entry.is_sharded()) ++(entry.leaves.front().sharded->is_dtensor() ? dtensors : sharded);
    const std::string ranks = fmt::format("{} rank files", builder_.manifest().files.size());
    if (local.state_alone())
      return fmt::format("{}, FSDP1's flat optimizer state, {}",
                         dtensors > 0 ? "DTensors" : "ShardedTensors", ranks);
    if (local.present())
      return fmt::format("FSDP1 local state dicts (flat parameters{}), {}",
                         local.uses_orig_params() ? ", use_orig_params" : "", ranks);
    if (dtensors > 0) return "DTensors, " + ranks;
    if (sharded > 0) return "ShardedTensors, " + ranks;
    return "full state dicts, " + ranks;
  }

  const Place& place_;
  const ReadOptions& options_;
  mutable ArchiveManifestBuilder builder_;
  ArchiveBytes bytes_;
  RankMerger merger_;
  Findings findings_;
  RankStates states_;
  std::map<std::string, std::size_t> first_entry_;
};

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  return Reader(place, options).run();
}

}  // namespace tessera::rank_files
