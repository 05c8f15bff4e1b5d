#include "lib/ops/open/weight_delta.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>
#include <tessera/format/safetensors.h>
#include <tessera/state/aliases.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "lib/ops/open/delta_directory.h"
#include "lib/ops/open/path_resolve.h"
#include "lib/storage/linked_directory.h"

namespace tessera {
namespace {

constexpr std::string_view kMetadata = "__metadata__.";  // in Manifest::provenance
constexpr std::string_view kOwnDocuments = "tessera.";   // keys of ours among __metadata__
constexpr std::string_view kBaseName = "base";
constexpr std::string_view kBaseUnused = "--base is not used";

struct Chain {
  std::string base;               // the folder of whole weights
  std::vector<DeltaLink> deltas;  // the newest first
  bool used_base = false;         // it is what --base names
};

/// "run/weight_v000002" from "run/weight_v000003"; "" where the name does not end in the version,
/// and where the other one is no number (another text might lead to any folder).
std::string neighbour(const std::string& folder, const DeltaIndex& index) {
  const auto [parent, name] = split_path(folder);
  if (index.version.empty() || !name.ends_with(index.version) || !is_decimal(index.base_version))
    return "";
  return join_path(parent, name.substr(0, name.size() - index.version.size()) + index.base_version);
}
bool is_first(const std::string& version) {
  return !version.empty() && version.find_first_not_of('0') == version.npos;
}

class ChainFinder {
 public:
  ChainFinder(FileSystem& fs, const std::string* base) : fs_(fs), base_(base) {}

  Chain find(const std::string& folder) {
    std::string next = folder;
    for (;;) {
      if (!is_folder(next)) break;
      DeltaLink link{next, storage::open_linked_directory(fs_, next), {}};
      link.index = in_file(next, [&] { return read_delta_index(*link.directory); });
      if (link.index.encoding.empty()) break;
      if (!seen_.insert(fs_.canonical(next)).second)
        fail(Code::kCorrupt,
             fmt::format("{} is met twice in its own chain of deltas", printable(next)));
      chain_.deltas.push_back(std::move(link));
      next = before(chain_.deltas.back());
    }
    chain_.base = next;
    return std::move(chain_);
  }

 private:
  std::string before(const DeltaLink& link) {
    const std::string beside = neighbour(link.folder, link.index);
    if (is_folder(beside)) return beside;
    const std::string& version = link.index.base_version;
    const std::string what =
        fmt::format("{} is a delta of version {} against version {}", printable(link.folder),
                    printable(link.index.version), printable(version));
    const std::string base = base_folder(what);
    const DeltaIndex given = is_folder(base)
                                 ? read_delta_index(*storage::open_linked_directory(fs_, base))
                                 : DeltaIndex();
    const bool fits = given.version.empty() ? is_first(version) : given.version == version;
    if (!fits)
      fail(Code::kCorrupt,
           fmt::format("{}, which is not beside it, and {} is {}: the chain is broken", what,
                       printable(base),
                       given.version.empty() ? "of no version" : "version " + given.version),
           "bring the deltas between back, or begin from whole weights of that version");
    chain_.used_base = true;
    return base;
  }
  std::string base_folder(const std::string& what) const {
    if (base_ == nullptr)
      fail(Code::kUnsupported, what + ", which is not beside it",
           "--base=PATH names the weights that it begins from");
    if (!base_->empty()) {
      if (!fs_.stat(*base_))
        fail(Code::kNotFound, fmt::format("--base {}: not found", printable(*base_)));
      return *base_;
    }
    const std::string beside =
        join_path(split_path(chain_.deltas.front().folder).first, std::string(kBaseName));
    if (!is_folder(beside))
      fail(Code::kNotFound, fmt::format("{} is not there", printable(beside)),
           "--base=PATH names another place");
    return beside;
  }
  bool is_folder(const std::string& path) const {
    if (path.empty()) return false;
    const auto info = fs_.stat(path);
    return info && info->type == FileType::kDirectory;
  }

  FileSystem& fs_;
  const std::string* base_;
  std::set<std::string> seen_;
  Chain chain_;
};

/// Puts deltas over a base, the oldest first.
class ChainApplier {
 public:
  ChainApplier(OpenedCheckpoint base, const ReadOptions& read)
      : base_(std::move(base)), manifest_(base_.manifest), read_(read) {
    read_.own = {};
    read_.own.set(kDeltaBlobs, true);
    read_.tolerate_damage = false;
    manifest_.format = safetensors_driver().id();
    manifest_.world_size.reset();
    for (std::uint32_t i = 0; i < manifest_.tensors.size(); ++i)
      if (!manifest_.tensors[i].embedded) names_.emplace(manifest_.tensors[i].name.view(), i);
    base_numbers_ = names_;
    for (const StoredFile& file : manifest_.files) paths_.insert(file.path);
  }

  void add(DeltaLink link) {
    in_file(link.folder, [&] {
      if (!link.index.is_empty) add_tensors(link);
      if (link.index.rest) add_rest(link);
    });
    links_.push_back(std::move(link));
  }

  std::unique_ptr<OpenedCheckpoint> finish() {
    const DeltaLink& newest = links_.back();
    manifest_.dialect =
        fmt::format("version {}: {} delta{} on {}", printable(newest.index.version), links_.size(),
                    links_.size() == 1 ? "" : "s", printable(base_.display));
    std::map<std::string, AppliedTensor> files;
    for (auto& [name, applied] : changed_) {
      StoredTensor& tensor = manifest_.tensors[names_.at(name)];
      const std::string path = new_path(fmt::format("{}/{}", newest.index.version, name));
      applied.size_bytes = static_cast<std::uint64_t>(tensor.spec.size_bytes());
      place(tensor, add_file({path, applied.size_bytes, 0}), 0, applied.size_bytes);
      files.emplace(path, std::move(applied));
    }
    if (std::ranges::any_of(links_,
                            [](const DeltaLink& link) { return link.index.rest != nullptr; })) {
      const Roles roles = find_roles(manifest_.state);
      assign_kinds(manifest_, roles);
      check_aliases(manifest_, roles);
      restore_integer_ids(manifest_.state, roles);
    }
    auto opened = std::make_unique<OpenedCheckpoint>();
    opened->driver = &safetensors_driver();
    opened->pickle_limit_bytes = base_.pickle_limit_bytes;
    opened->notes = base_.notes;
    opened->path = opened->display = newest.folder;
    opened->manifest = std::move(manifest_);
    std::vector<std::unique_ptr<Directory>> held;
    for (DeltaLink& link : links_) held.push_back(std::move(link.directory));
    opened->directory = std::make_unique<DeltaDirectory>(std::move(base_), std::move(held),
                                                         std::move(files), std::move(forwarded_));
    return opened;
  }

 private:
  void add_tensors(const DeltaLink& link) {
    const Manifest blobs =
        safetensors_driver().manifest({link.directory.get(), "", link.folder}, read_);
    for (const StoredTensor& tensor : blobs.tensors) {
      const std::string name(tensor.name.view());
      const Source& source = blobs.source(tensor, 0);
      const StoredFile& file = blobs.files[source.file];
      in_tensor(name, [&] {
        if (link.index.rest && link.index.rest->whole.contains(name))
          return put_whole(name, tensor.spec, link, file, source);
        const auto sum = blobs.provenance.find(std::string(kMetadata) + name);
        if (!names_.contains(name))
          fail(Code::kCorrupt, "a delta of a tensor that the base does not have");
        if (sum == blobs.provenance.end()) fail(Code::kCorrupt, "a delta without a checksum");
        applied(name).steps.push_back({link.directory.get(),
                                       link.index,
                                       sum->second,
                                       {file.path, source.offset, source.length}});
      });
    }
  }

  AppliedTensor& applied(const std::string& name) {
    const auto [found, is_new] = changed_.try_emplace(name);
    if (is_new) {
      found->second.name = name;
      if (const auto whole = whole_.find(name); whole != whole_.end())
        found->second.whole = whole->second;
      else
        found->second.base_tensor = base_numbers_.at(name);
    }
    return found->second;
  }
  /// As it stands in the delta's own file, whatever the base has under its name.
  void put_whole(const std::string& name, const TensorSpec& spec, const DeltaLink& link,
                 const StoredFile& file, const Source& source) {
    const auto [found, is_new] =
        names_.try_emplace(name, static_cast<std::uint32_t>(manifest_.tensors.size()));
    if (is_new) manifest_.tensors.emplace_back();
    StoredTensor& tensor = manifest_.tensors[found->second];
    tensor = {};
    tensor.name = name;
    tensor.spec = spec;
    changed_.erase(name);
    whole_[name] = {link.directory.get(), {file.path, source.offset, source.length}};
    const auto [number, is_first] = file_numbers_.try_emplace({link.directory.get(), file.path}, 0);
    if (is_first) {
      const std::string path = new_path(fmt::format("{}/{}", link.index.version, file.path));
      forwarded_[path] = {link.directory.get(), file.path};
      number->second = add_file({path, file.size_bytes, file.mtime_ns});
    }
    place(tensor, number->second, source.offset, source.length);
  }

  /// The base may be deltas of such a version itself.
  std::string new_path(std::string path) {
    while (!paths_.insert(path).second) path += "'";
    return path;
  }
  std::uint32_t add_file(StoredFile file) {
    manifest_.files.push_back(std::move(file));
    return static_cast<std::uint32_t>(manifest_.files.size() - 1);
  }
  /// The tensor is that run of a file.
  void place(StoredTensor& tensor, std::uint32_t file, std::uint64_t offset, std::uint64_t length) {
    Source source;
    source.kind = Source::Kind::kExtent;
    source.file = file;
    source.offset = offset;
    source.length = length;
    const std::vector<std::int64_t> origin(static_cast<std::size_t>(tensor.spec.shape.rank()));
    tensor.first_chunk = manifest_.chunks.size();
    tensor.chunk_count = 1;
    tensor.cast_from.reset();
    manifest_.chunks.add(ChunkView(origin, tensor.spec.shape.extents()), source);
  }

  /// What only our own deltas say.
  void add_rest(const DeltaLink& link) {
    const DeltaRest& rest = *link.index.rest;
    for (const auto& [name, sum] : rest.unchanged)
      in_tensor(name, [&] {
        if (!names_.contains(name))
          fail(Code::kCorrupt, "the base does not have it, and the delta leaves it as it is",
               "is this the base that the deltas were made against?");
        auto& steps = applied(name).steps;
        if (!steps.empty() && steps.back().directory == nullptr) steps.pop_back();
        steps.push_back({nullptr, link.index, sum, {}});
      });
    for (const std::string& name : rest.gone) {
      names_.erase(name);
      changed_.erase(name);
      whole_.erase(name);
    }
    restate(rest);
  }

  /// The state as the delta's writer had it, over the tensors that are there now.
  void restate(const DeltaRest& rest) {
    std::vector<StoredTensor> tensors;
    std::vector<SharedText> names;
    for (StoredTensor& tensor : manifest_.tensors) {
      const auto found = names_.find(std::string(tensor.name.view()));
      if (tensor.embedded || found == names_.end()) continue;
      found->second = static_cast<std::uint32_t>(tensors.size());
      names.push_back(tensor.name);
      tensors.push_back(std::move(tensor));
    }
    manifest_.tensors = std::move(tensors);
    std::vector<bool> embedded;
    manifest_.state = restore_state(names, rest.metadata, embedded);
    for (std::size_t i = 0; i < embedded.size(); ++i) manifest_.tensors[i].embedded = embedded[i];
    std::erase_if(manifest_.provenance, [](const auto& entry) {
      return entry.first.starts_with(kMetadata) || entry.first.starts_with(kAliasPrefix);
    });
    for (const auto& [key, text] : rest.metadata) {
      if (names_.contains(text) && !names_.contains(key))
        record_alias(manifest_, key, text);
      else if (!key.starts_with(kOwnDocuments))
        manifest_.provenance.emplace(std::string(kMetadata) + key, text);
    }
  }

  OpenedCheckpoint base_;
  Manifest manifest_;
  ReadOptions read_;
  std::unordered_map<std::string, std::uint32_t> names_;         // of leaves, in manifest_.tensors
  std::unordered_map<std::string, std::uint32_t> base_numbers_;  // the same, in the base's
  std::map<std::string, AppliedTensor> changed_;                 // by name
  std::map<std::string, LinkRun> whole_;                         // by name: not the base's
  std::map<std::string, ForwardedFile> forwarded_;
  /// The number of each file in manifest_.files.
  std::map<std::pair<const Directory*, std::string>, std::uint32_t> file_numbers_;
  std::set<std::string> paths_;  // of manifest_.files
  std::vector<DeltaLink> links_;
};

}  // namespace

Note base_unused(std::string_view path, std::string_view why) {
  return {Finding::kPath, Severity::kInfo,
          fmt::format("{}: {} {}", kBaseUnused, printable(path), why), "", ""};
}

bool is_base_unused(const Note& note) {
  return note.code == Finding::kPath && note.message.starts_with(kBaseUnused);
}

std::unique_ptr<OpenedCheckpoint> apply_weight_deltas(OpenedCheckpoint base,
                                                      std::vector<DeltaLink> deltas,
                                                      const ReadOptions& read) {
  ChainApplier applier(std::move(base), read);
  for (DeltaLink& link : deltas) applier.add(std::move(link));
  return applier.finish();
}

std::unique_ptr<OpenedCheckpoint> open_weight_delta(FileSystem& fs, const std::string& folder,
                                                    const Directory& directory,
                                                    const OpenOptions& asked) {
  const std::string* base_flag = asked.read.own.find(kBaseFlag);
  if (read_delta_index(directory, "", asked.read.guess_index).encoding.empty()) return nullptr;
  Chain chain = ChainFinder(fs, base_flag).find(folder);
  OpenOptions of_base;
  of_base.read = asked.read;
  of_base.read.own = {};
  of_base.check_seal = asked.check_seal;
  OpenedCheckpoint base = open_checkpoint(fs, chain.base, of_base);
  base.locate_all(of_base.read);
  std::ranges::reverse(chain.deltas);
  auto opened = apply_weight_deltas(std::move(base), std::move(chain.deltas), asked.read);
  opened->notes.clear();  // about the base's path
  if (base_flag != nullptr && !chain.used_base)
    opened->notes.push_back(
        base_unused(folder, fmt::format("begins from {} beside it", printable(chain.base))));
  return opened;
}

std::string weight_version(FileSystem& fs, const OpenedCheckpoint& opened) {
  const auto info = fs.stat(opened.path);
  const bool may_have = takes(opened.driver->capabilities().reads_with, kBaseFlag);
  if (!may_have || !info || info->type != FileType::kDirectory) return "";
  return read_delta_index(*storage::open_linked_directory(fs, opened.path), "", true).version;
}

}  // namespace tessera
