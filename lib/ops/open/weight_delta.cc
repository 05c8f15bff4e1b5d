#include "lib/ops/open/weight_delta.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/format/safetensors.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "lib/ops/open/delta_directory.h"
#include "lib/ops/open/path_resolve.h"
#include "lib/storage/linked_directory.h"

namespace tessera {
namespace {

constexpr std::string_view kMetadata = "__metadata__.";  // in Manifest::provenance
constexpr std::string_view kBaseName = "base";

struct Link {
  std::string folder;
  std::unique_ptr<Directory> directory;
  DeltaIndex index;
};
struct Chain {
  std::string base;          // the folder of whole weights
  std::vector<Link> deltas;  // the newest first
};

/// "run/weight_v000002" from "run/weight_v000003"; "" where the name does not end in the version.
std::string neighbour(const std::string& folder, const DeltaIndex& index) {
  const auto [parent, name] = split_path(folder);
  if (index.version.empty() || index.base_version.empty() || !name.ends_with(index.version))
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
      Link link{next, storage::open_linked_directory(fs_, next), {}};
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
  std::string before(const Link& link) const {
    const std::string beside = neighbour(link.folder, link.index);
    if (is_folder(beside)) return beside;
    const std::string& version = link.index.base_version;
    const std::string what =
        fmt::format("{} is a delta of version {} against version {}", printable(link.folder),
                    printable(link.index.version), printable(version));
    const std::string base = base_folder(what);
    const DeltaIndex given = read_delta_index(*storage::open_linked_directory(fs_, base));
    const bool fits = given.version.empty() ? is_first(version) : given.version == version;
    if (!fits)
      fail(Code::kCorrupt,
           fmt::format("{}, which is not beside it, and {} is {}: the chain is broken", what,
                       printable(base),
                       given.version.empty() ? "of no version" : "version " + given.version),
           "bring the deltas between back, or begin from whole weights of that version");
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

/// Adds one delta's blobs to the tensors they change.
void add_blobs(const Link& link, const Manifest& base,
               std::unordered_map<std::string, std::uint32_t>& numbers,
               std::map<std::uint32_t, AppliedTensor>& changed, const ReadOptions& read) {
  ReadOptions blobs = read;
  blobs.own = {};
  blobs.own.set(kDeltaBlobs, true);
  blobs.tolerate_damage = false;
  in_file(link.folder, [&] {
    const Manifest manifest =
        safetensors_driver().manifest({link.directory.get(), "", link.folder}, blobs);
    for (const StoredTensor& tensor : manifest.tensors) {
      const std::string name(tensor.name.view());
      in_tensor(name, [&] {
        const auto number = numbers.find(name);
        const auto sum = manifest.provenance.find(std::string(kMetadata) + name);
        if (number == numbers.end())
          fail(Code::kCorrupt, "a delta of a tensor that the base does not have");
        if (sum == manifest.provenance.end()) fail(Code::kCorrupt, "a delta without a checksum");
        const Source& source = manifest.source(tensor, 0);
        AppliedTensor& applied = changed[number->second];
        if (applied.steps.empty()) {
          const StoredTensor& whole = base.tensors[number->second];
          const Source& from = base.source(whole, 0);
          applied.name = name;
          applied.base = {base.files[from.file].path, from.offset, from.length};
        }
        applied.steps.push_back({link.directory.get(),
                                 link.index,
                                 sum->second,
                                 {manifest.files[source.file].path, source.offset, source.length}});
      });
    }
  });
}

/// Every tensor of the base is one run of a file: what deltas are made against.
std::unordered_map<std::string, std::uint32_t> plain_tensors(const OpenedCheckpoint& base) {
  std::unordered_map<std::string, std::uint32_t> out;
  const Manifest& manifest = base.manifest;
  for (std::uint32_t i = 0; i < manifest.tensors.size(); ++i) {
    const StoredTensor& tensor = manifest.tensors[i];
    const bool plain =
        tensor.chunk_count == 1 && manifest.source(tensor, 0).kind == Source::Kind::kExtent &&
        manifest.source(tensor, 0).side == 0 && manifest.source(tensor, 0).flags == 0;
    if (plain) out.emplace(tensor.name.view(), i);
  }
  if (out.size() != manifest.tensors.size())
    fail(Code::kUnsupported, fmt::format("the base {} is no whole safetensors", base.display),
         "ckpt-convert --to hf makes one of it");
  return out;
}

}  // namespace

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
  auto opened = std::make_unique<OpenedCheckpoint>(open_checkpoint(fs, chain.base, of_base));
  auto numbers = plain_tensors(*opened);
  std::map<std::uint32_t, AppliedTensor> changed;
  Manifest& manifest = opened->manifest;
  for (auto link = chain.deltas.rbegin(); link != chain.deltas.rend(); ++link)
    add_blobs(*link, manifest, numbers, changed, asked.read);

  const DeltaIndex& newest = chain.deltas.front().index;
  manifest.dialect =
      fmt::format("version {}: {} delta{} on {}", printable(newest.version), chain.deltas.size(),
                  chain.deltas.size() == 1 ? "" : "s", printable(chain.base));
  std::map<std::string, AppliedTensor> files;
  for (auto& [number, applied] : changed) {
    const StoredTensor& tensor = manifest.tensors[number];
    Source source = manifest.source(tensor, 0);
    const std::string path = fmt::format("{}/{}", newest.version, applied.name);
    source.file = static_cast<std::uint32_t>(manifest.files.size());
    source.offset = 0;
    source.record = 0;
    manifest.chunks.source(tensor.first_chunk) = source;
    manifest.files.push_back({path, applied.base.length, 0});
    files.emplace(path, std::move(applied));
  }
  std::vector<std::unique_ptr<Directory>> held;
  for (Link& link : chain.deltas) held.push_back(std::move(link.directory));
  opened->directory = std::make_unique<DeltaDirectory>(std::move(opened->directory),
                                                       std::move(held), std::move(files));
  opened->seal = nullptr;  // of the base, whose bytes are held against it all the same
  opened->sealed = nullptr;
  opened->beside.clear();
  opened->beside_folder.clear();
  opened->path = opened->display = folder;
  return opened;
}

}  // namespace tessera
