#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/encoding/torch_archive.h>
#include <tessera/layout/coverage.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "lib/format/torch_files/archive_source.h"
#include "lib/format/torchsnapshot/parts.h"

namespace tessera::snapshot {
namespace {

constexpr std::uint64_t kWholeBytes = 64 << 10;
constexpr std::uint64_t kSampleBytes = 4 << 10;

bool equal_at(const ReadFile& a, const ReadFile& b, std::uint64_t at_a, std::uint64_t at_b,
              std::uint64_t length) {
  Bytes left(length);
  Bytes right(length);
  a.read_at(at_a, left);
  b.read_at(at_b, right);
  return left == right;
}

}  // namespace

std::uint32_t SnapshotFiles::number(const std::string& location) {
  const auto next = static_cast<std::uint32_t>(manifest_.files.size());
  const auto [found, is_new] = numbers_.emplace(location, next);
  if (!is_new) return found->second;
  StoredFile file{location, 0, 0};
  const std::optional<FileInfo> info = in_file(location, [&] { return directory_.stat(location); });
  const bool present = info && info->type == FileType::kRegular;
  if (present) {
    file.size_bytes = info->size_bytes;
    file.mtime_ns = info->mtime_ns;
  } else {
    findings_.error(Finding::kMissingFile,
                    info ? std::string(no_regular_file(info->type))
                         : "the file is missing, .snapshot_metadata names it",
                    location);
  }
  missing_.resize(next, false);  // files that were not made here
  missing_.push_back(!present);
  manifest_.files.push_back(std::move(file));
  return next;
}

/// Where the bytes lie that make up the part, the container's own included.
LeafMaker::Run LeafMaker::run_of(const StoredPart& part) {
  Run run;
  run.file = files_.number(part.location);
  if (part.serializer == Serializer::kTorchSave) {
    if (part.range)
      fail(Code::kUnsupported, "a tensor of torch.save inside a slab: no release writes it");
    run.length = manifest_.files[run.file].size_bytes;
    return run;
  }
  run.length = static_cast<std::uint64_t>(part.spec.size_bytes());
  if (!part.range) return run;
  run.offset = part.range->first;
  if (part.range->second - part.range->first != run.length)
    fail(Code::kCorrupt,
         fmt::format("byte_range [{},{}] disagrees with {} ({} bytes)", part.range->first,
                     part.range->second, part.spec.to_string(), run.length));
  return run;
}

bool LeafMaker::is_there(const Run& run) const {
  const std::uint64_t size = manifest_.files[run.file].size_bytes;
  return !files_.is_missing(run.file) && run.offset <= size && run.length <= size - run.offset;
}

void LeafMaker::add_chunk(const TensorPart& part, StoredTensor& stored) {
  const Run run = run_of(part.part);
  Source source;
  source.kind = Source::Kind::kExtent;
  source.file = run.file;
  source.offset = run.offset;
  source.length = run.length;
  const std::uint64_t size = manifest_.files[run.file].size_bytes;
  if (!files_.is_missing(run.file) && !is_there(run))
    findings_.error(Finding::kShortFile,
                    fmt::format("its {} bytes at offset {} end past the file's end ({} bytes)",
                                run.length, run.offset, size),
                    part.part.location, stored.name);
  if (!part.part.range && is_there(run) && size > run.length)
    findings_.note(
        Finding::kTrailingBytes, findings_.tolerate() ? Severity::kError : Severity::kWarning,
        fmt::format("{} bytes follow the tensor", size - run.length), part.part.location);
  if (part.part.serializer == Serializer::kTorchSave && is_there(run))
    source = archive_source(part, run.file, stored);
  manifest_.chunks.add(Chunk::whole_of(part.box), source);
}

/// Source of a tensor that torch.save wrote; locate_archives() finds its bytes.
Source LeafMaker::archive_source(const TensorPart& part, std::uint32_t file, StoredTensor& stored) {
  return in_file(part.part.location, [&] {
    const TorchArchive archive = open(file);
    if (!archive.root.is_tensor()) fail(Code::kCorrupt, "the archive holds no tensor");
    const std::uint32_t index = archive.root.tensor_index();
    const ArchiveTensor& tensor = archive.tensors[index];
    const TensorSpec spec{tensor.dtype, tensor.shape};
    if (spec != part.part.spec)
      fail(Code::kCorrupt, fmt::format("the archive holds {}, .snapshot_metadata says {}",
                                       spec.to_string(), part.part.spec.to_string()));
    if (tensor.quant >= 0) {
      const QuantParams& params = archive.quant[static_cast<std::size_t>(tensor.quant)];
      if (params.scheme != "per_tensor_affine")
        fail(Code::kUnsupported, fmt::format("quantized by {}", params.scheme));
      if (stored.quant < 0) {
        stored.quant = static_cast<std::int32_t>(manifest_.quant.size());
        manifest_.quant.push_back(params);
      }
      const QuantParams& first = manifest_.quant[static_cast<std::size_t>(stored.quant)];
      if (first.scale != params.scale || first.zero_point != params.zero_point)
        fail(Code::kUnsupported, "its parts are quantized with different scales");
    }
    return pending_source(archive, file, index, 0, tensor.shape.numel());
  });
}

TorchArchive LeafMaker::open(std::uint32_t file) {
  const std::string& location = manifest_.files[file].path;
  const auto opened = files_.directory().open(location);
  ArchiveOptions how;
  how.collect_denied = options_.list_globals;
  how.allow_opaque_root = true;
  how.pickle_limit_bytes = options_.pickle_limit_bytes;
  TorchArchive archive = open_torch_archive(ByteWindow::whole(*opened), how);
  for (GlobalUse& use : archive.globals) {
    use.file = location;
    manifest_.globals.push_back(std::move(use));
  }
  return archive;
}

std::optional<Value> LeafMaker::tensor(const std::vector<const Entry*>& entries) {
  StoredTensor stored;
  stored.name = entries[0]->path;
  stored.spec = entries[0]->spec;
  std::vector<const TensorPart*> parts;
  for (const Entry* entry : entries) {
    if (entry->parts.empty()) continue;  // a rank without a shard
    if (parts.empty()) stored.spec = entry->spec;
    if (entry->spec.dtype != stored.spec.dtype ||
        entry->spec.shape.rank() != stored.spec.shape.rank())
      fail(Code::kCorrupt, "its shards differ in dtype or number of dimensions");
    for (int d = 0; d < stored.spec.shape.rank(); ++d)
      stored.spec.shape[d] = std::max(stored.spec.shape[d], entry->spec.shape[d]);
    for (const TensorPart& part : entry->parts) parts.push_back(&part);
  }
  const bool sharded = entries[0]->kind == Entry::Kind::kSharded;
  if (parts.empty() && (sharded || stored.spec.shape.numel() > 0)) {
    findings_.error(Finding::kUnplaced, "no rank has a shard of it", {}, stored.name);
    return std::nullopt;
  }
  Shape::checked(stored.spec.shape.extents());
  stored.first_chunk = manifest_.chunks.size();
  stored.always_sharded = sharded;
  std::vector<Chunk> boxes;
  std::set<std::tuple<std::string, std::uint32_t, std::uint64_t>> seen;  // ranks may name one file
  for (const TensorPart* part : parts) {
    const Run run = run_of(part->part);
    if (!seen.emplace(part->box.to_string(), run.file, run.offset).second) continue;
    boxes.push_back(Chunk::whole_of(part->box));
    add_chunk(*part, stored);
  }
  stored.chunk_count = static_cast<std::uint32_t>(boxes.size());
  if (const CoverageReport report = check_coverage(stored.spec.shape, boxes); !report.complete)
    findings_.error(Finding::kHole, report.to_string(), {}, stored.name);
  manifest_.tensors.push_back(std::move(stored));
  return Value::tensor(static_cast<std::uint32_t>(manifest_.tensors.size() - 1));
}

std::uint32_t LeafMaker::embed(const TorchArchive& archive, std::uint32_t index,
                               std::uint32_t file) {
  const ArchiveTensor& tensor = archive.tensors[index];
  if (tensor.quant >= 0)
    fail(Code::kUnsupported, "a quantized tensor inside an object", "leave it out (--exclude)");
  StoredTensor stored;
  stored.spec = {tensor.dtype, tensor.shape};
  stored.first_chunk = manifest_.chunks.size();
  stored.chunk_count = 1;
  stored.embedded = true;
  stored.is_parameter = tensor.is_parameter;
  stored.requires_grad = tensor.requires_grad;
  manifest_.chunks.add(Chunk::whole_of(Box::whole(tensor.shape)),
                       pending_source(archive, file, index, 0, tensor.shape.numel()));
  manifest_.tensors.push_back(std::move(stored));
  return static_cast<std::uint32_t>(manifest_.tensors.size() - 1);
}

std::optional<Value> LeafMaker::object(const Entry& entry) {
  const std::uint32_t file = files_.number(entry.location);
  if (files_.is_missing(file)) {
    findings_.error(Finding::kLost, "lost: its file is missing", entry.location, entry.path);
    return std::nullopt;
  }
  try {
    return in_file(entry.location, [&] {
      const TorchArchive archive = open(file);
      std::vector<std::uint32_t> numbers(archive.tensors.size(), kNoTensor);
      for_each_tensor(archive.root, [&](std::uint32_t index) {
        if (numbers[index] == kNoTensor) numbers[index] = embed(archive, index, file);
      });
      return std::optional(remap_tensors(archive.root, numbers));
    });
  } catch (const Error& error) {
    if (!findings_.tolerate() || error.code() != Code::kCorrupt) throw;
    findings_.error(Finding::kUnreadableFile, error.status().message, entry.location, entry.path);
    return std::nullopt;
  }
}

bool LeafMaker::same_bytes(const Run& a, const Run& b) {
  if (a.length != b.length) return false;
  if (a.file == b.file && a.offset == b.offset) return true;
  const auto left = files_.directory().open(manifest_.files[a.file].path);
  const auto right = files_.directory().open(manifest_.files[b.file].path);
  if (a.length <= kWholeBytes) return equal_at(*left, *right, a.offset, b.offset, a.length);
  for (const std::uint64_t at : {std::uint64_t{0}, a.length / 2, a.length - kSampleBytes})
    if (!equal_at(*left, *right, a.offset + at, b.offset + at, kSampleBytes)) return false;
  return true;
}

bool LeafMaker::same(const Entry& a, const Entry& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == Entry::Kind::kPrimitive) return a.primitive == b.primitive;
  std::vector<std::pair<Run, Run>> pairs;
  if (a.kind == Entry::Kind::kObject) {
    Run left{files_.number(a.location)};
    Run right{files_.number(b.location)};
    left.length = manifest_.files[left.file].size_bytes;
    right.length = manifest_.files[right.file].size_bytes;
    pairs.emplace_back(left, right);
  } else {
    if (a.spec != b.spec || a.parts.size() != b.parts.size()) return false;
    for (std::size_t i = 0; i < a.parts.size(); ++i) {
      if (a.parts[i].box != b.parts[i].box) return false;
      pairs.emplace_back(run_of(a.parts[i].part), run_of(b.parts[i].part));
    }
  }
  // What is not there is a finding of its own; the other copy stands in.
  return std::ranges::all_of(pairs, [&](const auto& pair) {
    return !is_there(pair.first) || !is_there(pair.second) || same_bytes(pair.first, pair.second);
  });
}

}  // namespace tessera::snapshot
