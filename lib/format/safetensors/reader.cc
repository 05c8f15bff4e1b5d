#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/parallel.h>
#include <tessera/base/text.h>
#include <tessera/base/text_index.h>
#include <tessera/encoding/json.h>
#include <tessera/encoding/safetensors_header.h>
#include <tessera/layout/coverage.h>
#include <tessera/state/aliases.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/format/safetensors/names.h"
#include "lib/format/safetensors/parts.h"
#include "lib/format/safetensors/shard_set.h"
#include "lib/format/safetensors/state.h"

namespace tessera::st {
namespace {

/// Tensor name -> offsets of this file's piece in the whole (DCP_SHARDING_INFO).
using Offsets = std::unordered_map<std::string, std::vector<std::int64_t>>;

struct ShardFile {
  SafetensorsHeader header;
  Offsets offsets;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;
  std::optional<Status> unreadable;  // why nothing of it can be read

  bool is_lost() const { return size_bytes == 0 || unreadable.has_value(); }
};

/// One stored piece of a tensor: which entry of which file.
struct Piece {
  std::uint32_t file = 0;
  std::uint32_t entry = 0;
};
using Pieces = SmallVector<Piece, 1>;

Offsets read_sharding_info(const std::string& text) {
  const auto malformed = [] {
    fail(Code::kCorrupt, fmt::format("__metadata__[\"{}\"] is malformed", kShardingInfo));
  };
  const Value json = parse_json(as_bytes(text));
  if (!json.is_dict()) malformed();
  Offsets out;
  for (const auto& [name, info] : json.as_dict()) {
    const Value* saved = info.find("saved_offsets");
    if (!saved || saved->kind() != Value::Kind::kList) malformed();
    std::vector<std::int64_t>& offsets = out[name.as_string()];
    for (const Value& offset : saved->as_list()) {
      if (!offset.is_int() || offset.as_int() < 0) malformed();
      offsets.push_back(offset.as_int());
    }
  }
  return out;
}

void read_header(const ReadFile& file, bool tolerate, ShardFile& out) {
  out.header = read_safetensors_header(ByteWindow::whole(file), tolerate);
  const auto info = out.header.metadata.find(std::string(kShardingInfo));
  if (info != out.header.metadata.end()) out.offsets = read_sharding_info(info->second);
}

/// `one_of_several`: where damage is tolerated, one that cannot be read is lost.
ShardFile read_shard(const Directory& directory, const std::string& path, bool one_of_several,
                     const ReadOptions& options) {
  return in_file(path, [&] {
    ShardFile out;
    try {
      const auto file = directory.open(path);
      if (options.tolerate_damage && file->size_bytes() == 0) return out;  // list_files says so
      out.size_bytes = file->size_bytes();
      if (const auto info = directory.stat(path)) out.mtime_ns = info->mtime_ns;
      read_header(*file, options.tolerate_damage, out);
    } catch (const Error& error) {
      const bool is_feature = error.code() == Code::kUnsupported;
      if (!one_of_several || is_feature || !tolerates(options, error.code())) throw;
      out.header = {};
      out.offsets.clear();
      out.unreadable = error.status();
    }
    return out;
  });
}

class ManifestBuilder {
 public:
  ManifestBuilder(const Place& place, const ReadOptions& options)
      : place_(place), options_(options), findings_(options.tolerate_damage, out_.notes) {}

  Manifest build() {
    out_.format = "safetensors";
    set_ = find_shards(place_, options_, findings_);
    files_.resize(set_.files.size());
    parallel_for(files_.size(), std::max(1, options_.threads), [&](std::size_t i, int) {
      files_[i] = read_shard(*place_.directory, set_.files[i], is_set(), options_);
    });
    require_one_readable();
    list_files();
    gather();
    if (set_.index) apply_index();
    report_copies();
    leave_out_unbounded();
    out_.tensors.reserve(names_.size());
    for (std::size_t i = 0; i < names_.size(); ++i)
      in_tensor(names_[i], [&] { add_tensor(names_[i], pieces_[i]); });
    // A million tensors are not held twice.
    std::vector<Pieces>().swap(pieces_);
    for (ShardFile& file : files_) std::vector<SafetensorsTensor>().swap(file.header.tensors);
    restore_state();
    describe();
    return std::move(out_);
  }

 private:
  bool is_set() const { return set_.index || set_.files.size() > 1; }
  bool is_rank_file(std::size_t file) const { return shard_rank(set_.files[file]).has_value(); }

  /// Throws where no file can be read: what the first says.
  void require_one_readable() const {
    if (set_.index || files_.empty() || !files_[0].unreadable) return;
    if (std::ranges::all_of(files_, &ShardFile::is_lost)) throw Error(*files_[0].unreadable);
  }

  void list_files() {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      out_.files.push_back({set_.files[i], files_[i].size_bytes, files_[i].mtime_ns});
      if (files_[i].header.missing_bytes > 0)
        findings_.error(Finding::kShortFile,
                        fmt::format("the file ends {} bytes early", files_[i].header.missing_bytes),
                        set_.files[i]);
      if (files_[i].size_bytes == 0)
        findings_.error(Finding::kShortFile, "the file is empty", set_.files[i]);
      if (files_[i].unreadable)
        findings_.error(Finding::kUnreadableFile, unreadable_text("a shard", *files_[i].unreadable),
                        set_.files[i]);
      if (is_rank_file(i) && !files_[i].is_lost() && files_[i].header.tensors.empty())
        findings_.error(Finding::kShortFile,
                        "it holds no tensor, and a rank that has none to save writes no file",
                        set_.files[i]);
      if (files_[i].header.trailing_bytes > 0)
        findings_.error(
            Finding::kTrailingBytes,
            fmt::format("{} bytes follow the last tensor", files_[i].header.trailing_bytes),
            set_.files[i]);
    }
  }
  void gather() {
    std::size_t entries = 0;
    for (const ShardFile& file : files_) entries += file.header.tensors.size();
    names_.reserve(entries);
    pieces_.reserve(entries);
    for (std::uint32_t f = 0; f < files_.size(); ++f) {
      const auto& tensors = files_[f].header.tensors;
      for (std::uint32_t e = 0; e < tensors.size(); ++e) {
        const auto known = index_.add(tensors[e].name, name_of_);
        if (!known) {
          names_.push_back(tensors[e].name);
          pieces_.emplace_back();
        }
        pieces_[known.value_or(names_.size() - 1)].push_back({f, e});
      }
    }
  }
  /// Each piece is saved by one rank.
  void report_copies() {
    std::map<std::string, std::size_t> known;  // what a file holds -> the file
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (!is_rank_file(i) || files_[i].offsets.empty()) continue;
      std::string pieces;
      for (const SafetensorsTensor& tensor : files_[i].header.tensors) {
        pieces += fmt::format("{} {}", tensor.name.view(), tensor.spec.to_string());
        if (const auto at = files_[i].offsets.find(std::string(tensor.name.view()));
            at != files_[i].offsets.end())
          pieces += fmt::format(" at {}\n", fmt::join(at->second, ","));
      }
      const auto [other, is_new] = known.emplace(std::move(pieces), i);
      if (!is_new && !files_[i].header.tensors.empty())
        findings_.error(
            Finding::kOtherRanksFile,
            fmt::format("it holds the same pieces of tensors as {}, and each is saved by "
                        "one rank: one file was copied over the other",
                        printable(set_.files[other->second])),
            set_.files[i]);
    }
  }

  /// No file says how large a tensor of pieces is. Where a rank's file is lost, that may be more
  /// than the bounding box of the pieces that are left, whether or not they leave a hole.
  void leave_out_unbounded() {
    std::string lost;
    for (std::size_t i = 0; i < files_.size(); ++i)
      if (is_rank_file(i) && lost.empty() && files_[i].header.tensors.empty()) lost = set_.files[i];
    const bool per_rank = !files_.empty() && is_rank_file(0);
    if (lost.empty() && per_rank) lost = set_.incomplete;
    if (lost.empty()) return;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const bool is_scalar = entry(pieces_[i][0]).spec.shape.rank() == 0;
      if (is_scalar || !has_offsets(names_[i], pieces_[i][0])) {
        names_[kept] = names_[i];
        pieces_[kept++] = std::move(pieces_[i]);
        continue;
      }
      findings_.error(Finding::kLost,
                      fmt::format("lost: pieces of it may have been in {}, and nothing else says "
                                  "how large it is",
                                  printable(lost)),
                      lost, names_[i]);
    }
    names_.resize(kept);
    pieces_.resize(kept);
    index_ = {};
    for (std::size_t i = 0; i < kept; ++i) index_.add(names_[i], name_of_);
  }
  bool is_tensor(std::string_view name) const { return index_.find(name, name_of_).has_value(); }
  bool has_offsets(const std::string& name, const Piece& piece) const {
    return files_[piece.file].offsets.contains(name);
  }
  bool is_sharded(const std::string& name, const Pieces& pieces) const {
    return std::all_of(pieces.begin(), pieces.end(),
                       [&](const Piece& p) { return has_offsets(name, p); });
  }

  void apply_index() {
    std::vector<HeldName> held(names_.size());
    for (std::size_t i = 0; i < names_.size(); ++i) {
      held[i] = {names_[i], {}, is_sharded(names_[i], pieces_[i])};
      for (const Piece& piece : pieces_[i]) held[i].files.push_back(piece.file);
    }
    const auto lost = [&](std::uint32_t file) { return files_[file].is_lost(); };
    const auto takes = compare_with_index(set_, held, lost, findings_);
    for (std::size_t i = 0; i < takes.size(); ++i)
      if (takes[i]) {
        const auto stale = [&](const Piece& piece) { return piece.file != *takes[i]; };
        pieces_[i].erase(std::remove_if(pieces_[i].begin(), pieces_[i].end(), stale),
                         pieces_[i].end());
      }
    std::uint64_t total = 0;
    for (const ShardFile& file : files_)
      for (const SafetensorsTensor& tensor : file.header.tensors)
        total += tensor.end - tensor.begin;
    compare_total_size(*set_.index, total, findings_);
  }

  const SafetensorsTensor& entry(const Piece& piece) const {
    return files_[piece.file].header.tensors[piece.entry];
  }

  void add_tensor(const SharedText& name, const Pieces& pieces) {
    if (pieces.size() > 1 && !is_sharded(name, pieces)) {
      refuse_nanotron(pieces[0]);
      fail(Code::kCorrupt,
           fmt::format("stored twice: in {} and in {}", set_.files[pieces[0].file],
                       set_.files[pieces[1].file]),
           "name the one file you mean, or write an index");
    }
    if (pieces.size() == 1 && files_[pieces[0].file].offsets.empty())
      return add_whole(name, pieces[0]);
    std::vector<Chunk> chunks;
    for (const Piece& piece : pieces)
      chunks.push_back(in_file(set_.files[piece.file], [&] { return chunk_of(name, piece); }));
    StoredTensor tensor;
    tensor.name = name;
    tensor.spec = {entry(pieces[0]).spec.dtype, global_shape(chunks)};
    tensor.first_chunk = out_.chunks.size();
    tensor.chunk_count = static_cast<std::uint32_t>(chunks.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) add_chunk(pieces[i], chunks[i], pieces[0]);
    const bool one_whole = chunks.size() == 1 && chunks[0].box == Box::whole(tensor.spec.shape);
    if (!one_whole) check_pieces(name, tensor.spec.shape, chunks);
    out_.tensors.push_back(std::move(tensor));
  }
  void refuse_nanotron(const Piece& piece) const {
    if (!is_nanotron_part(files_[piece.file].header)) return;
    fail(Code::kUnsupported,
         "files of one layer in a checkpoint of nanotron: each has a rank's part",
         "name the folder that has checkpoint_metadata.json");
  }
  void add_whole(const SharedText& name, const Piece& piece) {
    StoredTensor tensor;
    tensor.name = name;
    tensor.spec = entry(piece).spec;
    tensor.first_chunk = out_.chunks.size();
    tensor.chunk_count = 1;
    const std::vector<std::int64_t> origin(static_cast<std::size_t>(tensor.spec.shape.rank()));
    add_chunk(piece, ChunkView(origin, tensor.spec.shape.extents()), piece);
    out_.tensors.push_back(std::move(tensor));
  }
  Chunk chunk_of(const std::string& name, const Piece& piece) const {
    const Shape& shape = entry(piece).spec.shape;
    Box box = Box::whole(shape);
    const auto offsets = files_[piece.file].offsets.find(name);
    if (offsets != files_[piece.file].offsets.end()) {
      if (offsets->second.size() != box.origin.size())
        fail(Code::kCorrupt, fmt::format("saved_offsets has {} numbers for shape {}",
                                         offsets->second.size(), shape.to_string()));
      box.origin = offsets->second;
    }
    return Chunk::whole_of(std::move(box));
  }
  static Shape global_shape(const std::vector<Chunk>& chunks) {
    std::vector<std::int64_t> extents(static_cast<std::size_t>(chunks[0].box.rank()), 0);
    for (const Chunk& chunk : chunks) {
      if (chunk.box.rank() != static_cast<int>(extents.size()))
        fail(Code::kCorrupt, "its pieces differ in rank");
      for (std::size_t d = 0; d < extents.size(); ++d) {
        const auto end = checked_add(chunk.box.origin[d], chunk.box.shape[static_cast<int>(d)]);
        if (!end) fail(Code::kCorrupt, "saved_offsets overflow");
        extents[d] = std::max(extents[d], *end);
      }
    }
    return Shape::checked(extents);
  }
  void add_chunk(const Piece& piece, const ChunkView& chunk, const Piece& first) {
    const SafetensorsTensor& stored = entry(piece);
    if (stored.spec.dtype != entry(first).spec.dtype)
      fail(Code::kCorrupt,
           fmt::format("{} here, {} in {}", torch_name(stored.spec.dtype),
                       torch_name(entry(first).spec.dtype), set_.files[first.file]));
    Source source;
    source.kind = Source::Kind::kExtent;
    source.file = piece.file;
    source.offset = files_[piece.file].header.data_offset + stored.begin;
    source.length = stored.end - stored.begin;
    out_.chunks.add(chunk, source);
  }
  void check_pieces(const std::string& name, const Shape& shape, const std::vector<Chunk>& chunks) {
    const CoverageReport report = check_coverage(shape, chunks);
    if (!report.complete)
      findings_.error(report.first_overlap ? Finding::kOverlap : Finding::kHole, report.to_string(),
                      "", name);
  }

  void restore_state() {
    std::map<std::string, std::string> ours;
    for (std::size_t i = 0; i < files_.size(); ++i)
      for (const auto& [key, value] : files_[i].header.metadata) {
        if (key == kShardingInfo) continue;
        if (is_tensor(value) && !is_tensor(key)) {  // as safetensors' save_model says it
          record_alias(out_, key, value);
          continue;
        }
        const bool is_ours = key == kValues || key == kState;
        const bool is_new =
            is_ours ? ours.emplace(key, value).second
                    : out_.provenance.emplace(std::string(kProvenancePrefix) + key, value).second;
        if (is_ours && !is_new)
          fail(Code::kCorrupt, fmt::format("two files hold __metadata__[\"{}\"]", key));
      }
    std::vector<bool> embedded;
    out_.state = decode_state(names_, ours, embedded);
    for (std::size_t i = 0; i < embedded.size(); ++i) out_.tensors[i].embedded = embedded[i];
  }
  /// Names say which ranks saved, and nothing how many there were.
  void note_absent_ranks(const std::set<std::int64_t>& ranks) {
    std::int64_t absent = 1;
    while (ranks.contains(absent)) ++absent;
    if (absent < *ranks.rbegin())
      findings_.note(Finding::kMissingFile, Severity::kWarning,
                     "no such file is here: its rank had nothing to save, or what it saved is lost",
                     fmt::format("shard-{:05}-*{}", absent, kNaming.suffix));
    const bool has_pieces = std::ranges::any_of(
        files_[0].offsets, [](const auto& item) { return !item.second.empty(); });
    if (files_.size() == 1 && *ranks.begin() == 1 && has_pieces)
      findings_.note(Finding::kMissingFile, Severity::kWarning,
                     "the file of one rank, and nothing in it says how many ranks saved: if others "
                     "did, it holds pieces of tensors, which are shown as whole ones",
                     set_.files[0]);
  }
  void describe() {
    std::set<std::int64_t> ranks;
    for (const std::string& file : set_.files)
      if (const auto rank = shard_rank(file)) ranks.insert(*rank);
    if (!ranks.empty()) {
      note_absent_ranks(ranks);
      out_.world_size = static_cast<std::int64_t>(ranks.size());
      out_.world_size_source = fmt::format("rank numbers in {} file names", set_.files.size());
    }
    const bool dcp =
        out_.provenance.contains(std::string(kProvenancePrefix) + std::string(kDcpVersion));
    out_.dialect = !ranks.empty()       ? "Hugging Face shards per rank, written by PyTorch"
                   : dcp                ? "Hugging Face shards, written by PyTorch"
                   : set_.index         ? "Hugging Face shards with index"
                   : files_.size() == 1 ? "one file"
                                        : "several files without index";
  }

  const Place& place_;
  const ReadOptions& options_;
  Manifest out_;
  Findings findings_;
  ShardSet set_;
  std::vector<ShardFile> files_;
  std::vector<SharedText> names_;
  TextIndex index_;  // of names_
  const std::function<std::string_view(std::size_t)> name_of_ = [this](std::size_t i) {
    return names_[i].view();
  };
  std::vector<Pieces> pieces_;
};

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  return ManifestBuilder(place, options).build();
}

}  // namespace tessera::st
