// --delta-from: the result as weight deltas against another checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/safetensors_header.h>
#include <tessera/format/registry.h>
#include <tessera/format/safetensors.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "lib/format/dtype_refusal.h"
#include "lib/ops/convert/conversion.h"
#include "lib/ops/convert/delta_blobs.h"
#include "lib/ops/convert/request.h"
#include "lib/ops/open/path_resolve.h"
#include "lib/ops/open/weight_delta.h"
#include "lib/storage/linked_directory.h"

namespace tessera {
namespace {

constexpr std::string_view kFirstVersion = "000000";
constexpr std::string_view kVersionMark = "_v";

/// "000012" of "weight_v000012"; "": the name does not say.
std::string version_in_name(const std::string& name) {
  const std::size_t at = name.rfind(kVersionMark);
  const std::string tail = at == name.npos ? "" : name.substr(at + kVersionMark.size());
  return is_decimal(tail) ? tail : "";
}

/// The same number of digits, one more where none is left.
std::string next_version(const std::string& version) {
  if (!is_decimal(version)) return next_version(std::string(kFirstVersion));
  std::string out = version;
  for (std::size_t i = out.size(); i-- > 0;) {
    if (out[i] != '9') {
      ++out[i];
      return out;
    }
    out[i] = '0';
  }
  return "1" + out;
}

/// Leaves that are tensors, by name.
std::unordered_map<std::string_view, std::uint32_t> tensors_by_name(const Manifest& manifest) {
  std::unordered_map<std::string_view, std::uint32_t> out;
  for (const StateEntry& entry : manifest.state.entries)
    if (entry.value.is_tensor()) out.emplace(entry.name, entry.value.tensor_index());
  return out;
}

std::string counted(std::size_t count, std::string_view what) {
  return fmt::format("{} tensor{} {}", count, count == 1 ? "" : "s", what);
}

}  // namespace

/// What the deltas are made against; read anew to prove them.
OpenedCheckpoint Conversion::open_delta_base() const {
  OpenOptions open;
  open.read = read_;
  open.read.own = {};
  open.read.tolerate_damage = open.read.guess_index = false;
  if (const std::string* base = options_.own.find(kBaseFlag))
    if (const auto formats = formats_at(fs_, options_.delta_from);
        !formats.empty() && takes(formats.front()->capabilities().reads_with, kBaseFlag))
      open.read.own.set(kBaseFlag, *base);
  OpenedCheckpoint base = open_checkpoint(fs_, options_.delta_from, open);
  base.locate_all(open.read);
  return base;
}

void Conversion::check_delta_request() const {
  if (options_.delta_from.empty()) return;
  if (!takes(driver_->capabilities().reads_with, kBaseFlag))
    fail(Code::kInvalidArgument,
         fmt::format("--delta-from writes safetensors, not {}", driver_->id()),
         "leave out --to, or write the whole weights");
  if (request_.single_file)
    fail(Code::kInvalidArgument, "--delta-from writes a folder: deltas have an index",
         "name a folder as DST");
  if (request_.own.find(kAsIndexFlag) != nullptr)
    fail(Code::kInvalidArgument, "--delta-from and --as-index exclude each other",
         "deltas have files and an index of their own");
}

void Conversion::name_versions(const OpenedCheckpoint& base, DeltaIndex& index) const {
  index.base_version = weight_version(fs_, base);
  if (index.base_version.empty()) index.base_version = kFirstVersion;
  index.version = version_in_name(result_name());
  if (index.version.empty()) {
    index.version = weight_version(fs_, source_);
    if (!is_decimal(index.version) || index.version == index.base_version)
      index.version = next_version(index.base_version);
  }
  if (index.version == index.base_version)
    fail(Code::kInvalidArgument,
         fmt::format("DST says version {}, which is that of {}", index.version,
                     printable(options_.delta_from)),
         "name DST as another version, as weight_v000002");
}

/// The manifest becomes that of the delta: blobs as tensors of bytes, nothing of what is unchanged.
void Conversion::plan_delta() {
  base_of_delta_ = std::make_unique<OpenedCheckpoint>(open_delta_base());
  // What SRC has no use for may be what the other begins from.
  if (takes(base_of_delta_->driver->capabilities().reads_with, kBaseFlag) &&
      std::ranges::none_of(base_of_delta_->notes, is_base_unused))
    std::erase_if(report_.notes, is_base_unused);
  check_apart(fs_.canonical(base_of_delta_->path), destination_, "--delta-from");
  check_not_a_part(fs_, *base_of_delta_, destination_);
  Manifest& manifest = source_.manifest;
  const Manifest& base = base_of_delta_->manifest;
  auto written = std::make_shared<WrittenDelta>();
  name_versions(*base_of_delta_, written->index);
  written->index.encoding = "xor";
  written->index.compression = "zstd";
  written->index.checksum = "xxh3-128";
  written->tensors.assign(manifest.tensors.size(), WrittenDelta::As::kWhole);
  written->sums.resize(manifest.tensors.size());

  const auto in_base = tensors_by_name(base);
  std::vector<DeltaPair> pairs;
  std::set<std::uint32_t> seen;
  std::set<std::string_view> here;
  std::vector<std::string> changed_form;
  for (const StateEntry& entry : manifest.state.entries) {
    if (!entry.value.is_tensor()) continue;
    const std::uint32_t number = entry.value.tensor_index();
    const StoredTensor& tensor = manifest.tensors[number];
    if (!safetensors_name(tensor.spec.dtype)) refuse_dtype(tensor, "safetensors");
    here.insert(entry.name);
    const auto found = in_base.find(entry.name);
    if (found == in_base.end() || !seen.insert(number).second) continue;
    const StoredTensor& other = base.tensors[found->second];
    if (other.spec.dtype == tensor.spec.dtype && other.spec.shape == tensor.spec.shape)
      pairs.push_back({entry.name, number, found->second});
    else
      changed_form.push_back(entry.name);
  }
  for (const auto& [name, number] : in_base)
    if (!here.contains(name)) written->gone.emplace_back(name);
  std::ranges::sort(written->gone);

  whole_ = std::make_unique<Manifest>(manifest);
  auto readers =
      std::make_unique<DeltaReaders>(*whole_, *source_.directory, *base_of_delta_, transfer_);
  std::map<std::string, DeltaBlob> files;
  std::size_t changed = 0, unchanged = 0;
  for (DeltaBlob& blob : DeltaBlobs::plan(*readers, pairs, transfer_)) {
    StoredTensor& tensor = manifest.tensors[blob.pair.tensor];
    const bool has_bytes = tensor.spec.size_bytes() > 0;
    if (has_bytes) written->sums[blob.pair.tensor] = blob.sum;
    delta_sums_ += fmt::format("{} {} {:08x}\n", blob.pair.name, blob.sum, blob.crc32);
    ++(blob.changed ? changed : unchanged);
    written->tensors[blob.pair.tensor] =
        blob.changed ? WrittenDelta::As::kBlob : WrittenDelta::As::kUnchanged;
    const auto size = static_cast<std::int64_t>(blob.changed ? blob.size_bytes : 0);
    tensor.spec = {DType::kUInt8, Shape({size})};
    tensor.cast_from.reset();
    tensor.quant = -1;
    tensor.first_chunk = manifest.chunks.size();
    tensor.chunk_count = blob.changed ? 1 : 0;
    if (!blob.changed) continue;
    const std::string path = fmt::format("--delta-from/{}", blob.pair.name);  // no file's path
    Source source;
    source.kind = Source::Kind::kExtent;
    source.file = static_cast<std::uint32_t>(manifest.files.size());
    source.length = blob.size_bytes;
    manifest.files.push_back({path, blob.size_bytes, 0});
    manifest.chunks.add(Chunk::whole_of(Box::whole(tensor.spec.shape)), source);
    kept_blob_bytes_ += blob.kept.size();
    files.emplace(path, std::move(blob));
  }
  source_.directory = std::make_unique<DeltaBlobs>(std::move(source_.directory), std::move(readers),
                                                   std::move(files));
  report_.balance.restate(manifest, "--delta-from");
  std::string text = fmt::format("version {} against {}: {}, {}", written->index.version,
                                 written->index.base_version, counted(changed, "as deltas"),
                                 counted(unchanged, "unchanged and left to the base"));
  const std::size_t whole = leaf_tensors(*whole_).size() - changed - unchanged;
  if (whole > 0) text += ", " + counted(whole, "whole");
  if (!written->gone.empty())
    text += ", " + counted(written->gone.size(), "of the base not in SRC");
  report_.notes.push_back({Finding::kNone, Severity::kInfo, std::move(text), "", ""});
  if (whole > 0 || !written->gone.empty())
    report_.notes.push_back(
        {Finding::kNone, Severity::kWarning,
         "SRC and the base of --delta-from have not the same tensors: only Tessera reads such a "
         "delta, engines that take deltas of slime refuse whole tensors",
         "", changed_form.empty() ? "" : changed_form.front()});
  request_.own.set(kWrittenDelta, std::shared_ptr<const WrittenDelta>(std::move(written)));
}

void Conversion::check_delta_base_unchanged() const {
  if (!base_of_delta_) return;
  for (const StoredFile& file : base_of_delta_->manifest.files) {
    const auto now = base_of_delta_->directory->stat(file.path);
    if (now && now->size_bytes == file.size_bytes && now->mtime_ns == file.mtime_ns) continue;
    in_file(file.path, [] {
      fail(Code::kCorrupt, "the base of --delta-from changed while it was read",
           "run again when nothing writes to it");
    });
  }
}

/// The result, as whoever has the base reads it.
OpenedCheckpoint Conversion::open_written_delta(const std::string& folder) const {
  DeltaLink link{folder, fs_.open_directory(folder), {}};
  link.index = read_delta_index(*link.directory);
  std::vector<DeltaLink> deltas;
  deltas.push_back(std::move(link));
  return std::move(*apply_weight_deltas(open_delta_base(), std::move(deltas), read_));
}

}  // namespace tessera
