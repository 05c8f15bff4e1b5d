#include "lib/format/hdf5/reader.h"

#include <fmt/format.h>
#include <tessera/base/checked.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/aliases.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/format/findings.h"
#include "lib/format/hdf5/dtype.h"
#include "lib/format/hdf5/files.h"
#include "lib/format/hdf5/keras_files.h"
#include "lib/format/hdf5/names.h"
#include "lib/format/hdf5/own_state.h"
#include "lib/format/hdf5/pieces.h"
#include "lib/format/hdf5/virtual.h"

namespace tessera::h5 {
namespace {

// What datasets may declare beyond what is stored: deflate's best ratio, and a constant.
constexpr std::uint64_t kMaxRatio = 1032;
constexpr std::uint64_t kSlackBytes = std::uint64_t{256} << 20;

std::string dotted_name(std::string path) {
  std::ranges::replace(path, '/', '.');
  return path;
}

Path path_items(const std::string& path) {
  Path out;
  for (const std::string_view part : split(path, '/')) out.push_back(key_item(part));
  return out;
}

class ManifestBuilder {
 public:
  ManifestBuilder(const Place& place, const ReadOptions& options)
      : place_(place),
        options_(options),
        findings_(options.tolerate_damage, out_.notes),
        files_(*place.directory, out_.files) {}

  Manifest build() {
    out_.format = "hdf5";
    main_ = place_.file;
    if (main_.empty()) {
      const auto found = main_file(*place_.directory);
      if (!found) fail(Code::kNotFound, "the folder has no HDF5 file, or several", "name one");
      main_ = *found;
    }
    if (has_index_suffix(main_)) {
      add_shards();
    } else {
      const DescribedFile& file = files_.get(main_);
      if (file.base == 0)
        own_ = OwnState::read(file.report, *place_.directory, main_, options_.memory_limit_bytes);
      add_report(file.report);
      for (const auto& [name, text] : file.texts)
        out_.state.entries.push_back({name, {key_item(name)}, Value::string(text)});
      if (own_) restore_state(file.report);
    }
    note_trailing_bytes();
    describe();
    check_declared();
    return std::move(out_);
  }

 private:
  void add_report(const Report& report) {
    list_dtypes(report);
    for (const Item& item : report.items) add(report, item);
    for (const LinkInfo& link : report.links) add_link(link);
    for (const Problem& problem : report.problems) add_problem(problem);
  }

  /// Keras' sharded weights: the trees of all shards are one.
  void add_shards() {
    const std::string index_file = main_;
    const KerasIndex index = read_keras_index(*place_.directory, index_file);
    add_index_file(index_file);
    for (const std::string& shard : index.shards) {
      if (const std::string why = files_.absence(shard); !why.empty()) {
        findings_.error(Finding::kMissingFile,
                        fmt::format("{}: {}", why, lost_groups(index, shard, index_file)), shard);
        continue;
      }
      main_ = shard;
      const Report& report = files_.get(shard).report;
      dtypes_.clear();
      add_report(report);
      check_groups(index, shard, report);
    }
    main_ = index_file;
    std::set<std::string_view> names;
    for (const StateEntry& entry : out_.state.entries)
      if (!names.insert(entry.name).second)
        fail(Code::kCorrupt, fmt::format("two shards hold \"{}\"", printable(entry.name)));
  }
  void add_index_file(const std::string& name) {
    const auto info = place_.directory->stat(name);
    if (info) out_.files.push_back({name, info->size_bytes, info->mtime_ns});
  }
  static std::string lost_groups(const KerasIndex& index, const std::string& shard,
                                 const std::string& index_file) {
    std::vector<std::string> lost;
    for (const auto& [path, shards] : index.groups)
      if (std::ranges::find(shards, shard) != shards.end()) lost.push_back(dotted_name(path));
    return fmt::format("{} places {} group{} of variables in it, \"{}\" first", index_file,
                       lost.size(), lost.size() == 1 ? "" : "s", printable(lost.front()));
  }
  void check_groups(const KerasIndex& index, const std::string& shard, const Report& report) {
    std::set<std::string_view> there;
    for (const Group& group : report.groups) there.insert(group.path);
    for (const auto& [path, shards] : index.groups)
      if (!there.contains(path) && std::ranges::find(shards, shard) != shards.end())
        findings_.error(Finding::kNotInShard,
                        "the index places it in this file, which does not hold it", shard,
                        dotted_name(path));
  }

  /// Attributes that say what raw bits mean.
  void list_dtypes(const Report& report) {
    for (const NamedValue& v : report.values)
      if (v.is_attribute && v.name == kDtypeAttribute && v.value.is_string())
        dtypes_.emplace(v.owner, v.value.as_string());
  }
  std::string dtype_attribute(const std::string& path) const {
    const auto found = dtypes_.find(path);
    return found == dtypes_.end() ? "" : found->second;
  }

  void add(const Report& report, const Item& item) {
    switch (item.kind) {
      case Item::Kind::kDataset:
        return add_dataset(report.datasets[item.index]);
      case Item::Kind::kValue:
        return own_ ? void() : add_value(report.values[item.index]);
      case Item::Kind::kGroup:
        if (!own_ && report.groups[item.index].empty) empty_group(report, item.index);
        return;
    }
  }

  void add_value(const NamedValue& v) {
    const std::string suffix = v.is_attribute ? "@" + v.name : "";
    StateEntry entry;
    entry.name = dotted_name(v.owner) + suffix;
    entry.path = path_items(v.owner);
    entry.path.back().key = entry.path.back().key + suffix;
    entry.value = v.value;
    out_.state.entries.push_back(std::move(entry));
  }

  /// An empty dict, unless attributes make it one with entries.
  void empty_group(const Report& report, std::uint32_t index) {
    const std::string& path = report.groups[index].path;
    const auto owns = [&](const NamedValue& v) { return v.is_attribute && v.owner == path; };
    if (path.empty() || std::ranges::any_of(report.values, owns)) return;
    out_.state.containers.push_back(
        {path_items(path), Value::Kind::kDict, {}, out_.state.entries.size()});
  }

  void begin_tensor(std::string name, const std::string& path, TensorSpec spec) {
    StoredTensor tensor;
    tensor.name = name;
    tensor.spec = std::move(spec);
    tensor.first_chunk = out_.chunks.size();
    const auto index = static_cast<std::uint32_t>(out_.tensors.size());
    out_.tensors.push_back(std::move(tensor));
    names_.push_back(name);
    if (!own_)
      out_.state.entries.push_back({std::move(name), path_items(path), Value::tensor(index)});
  }

  void add_dataset(const Dataset& dataset) {
    if (own_ && own_->is_state_dataset(dataset.path)) return;
    const std::string name = own_ ? own_->name_of(dataset.path) : dotted_name(dataset.path);
    in_tensor(name, [&] { add_named(name, dataset); });
  }

  void add_named(const std::string& name, const Dataset& dataset) {
    const auto dtype = dtype_of(dataset.type, dtype_attribute(dataset.path));
    if (!dtype) {
      // Its bytes, which is all that can be said of them.
      std::vector<std::int64_t> extents = dataset.extents;
      extents.push_back(dataset.type.size);
      begin_tensor(name, dataset.path, {DType::kBits8, Shape::checked(extents)});
      return refuse(
          name, Code::kUnsupported,
          fmt::format("its elements are {}, which has no dtype here", describe_type(dataset.type)));
    }
    const Shape shape = Shape::checked(dataset.extents);
    begin_tensor(name, dataset.path, {*dtype, shape});
    if (dataset.layout == LayoutKind::kExternal)
      return refuse(name, Code::kCorrupt,
                    fmt::format("its bytes are kept in the external file \"{}\", which is refused "
                                "as unsafe",
                                printable(dataset.external_file)));
    add_pieces(name, dataset, *dtype);
  }

  void add_pieces(const std::string& name, const Dataset& dataset, DType dtype) {
    std::vector<Piece> pieces;
    try {
      const DescribedFile& file = files_.get(main_);
      pieces = dataset.layout == LayoutKind::kVirtual
                   ? resolve_virtual(files_, main_, dataset, dtype)
                   : files_.pieces(file, dataset, dtype);
    } catch (const Error& error) {
      if (error.code() == Code::kUnsupported)
        return refuse(name, error.code(), error.status().message, Finding::kUnsupportedDataset,
                      error.status().hint);
      if (!options_.tolerate_damage || error.code() != Code::kCorrupt) throw;
      return refuse(name, error.code(), error.status().message);
    }
    for (const Piece& piece : pieces) add_piece(out_, piece, element_bytes(dtype));
    out_.tensors.back().chunk_count = static_cast<std::uint32_t>(pieces.size());
  }

  /// The last tensor cannot be read: one pending chunk, whose side is the reason: the code, why,
  /// NUL, what helps.
  void refuse(const std::string& name, Code code, const std::string& why,
              Finding note = Finding::kUnreadableDataset, const std::string& hint = {}) {
    StoredTensor& tensor = out_.tensors.back();
    Source source;
    source.kind = Source::Kind::kPending;
    source.side = static_cast<std::uint32_t>(out_.inline_bytes.size());
    const std::string all = why + '\0' + hint;
    const ByteView text = as_bytes(all);
    Bytes reason(1 + text.size(), static_cast<std::byte>(code));
    std::ranges::copy(text, reason.begin() + 1);
    out_.inline_bytes.push_back(std::move(reason));
    out_.chunks.add(Chunk::whole_of(Box::whole(tensor.spec.shape)), source);
    tensor.chunk_count = 1;
    // What this toolkit lacks is no damage.
    const bool damage = code != Code::kUnsupported && options_.tolerate_damage;
    if (code == Code::kUnsupported) note = Finding::kUnsupportedDataset;
    findings_.note(note, damage ? Severity::kError : Severity::kWarning, why, main_, name);
  }

  void add_link(const LinkInfo& link) {
    const std::string name = dotted_name(link.path);
    switch (link.kind) {
      case LinkKind::kExternal:
        begin_tensor(name, link.path, {DType::kBits8, Shape{0}});
        return refuse(name, Code::kCorrupt,
                      fmt::format("an external link to \"{}\", which is not followed",
                                  printable(link.target)),
                      Finding::kExternalLink);
      case LinkKind::kAlias:
        return findings_.note(Finding::kSecondName, Severity::kInfo,
                              fmt::format("also \"{}\"; listed once, as \"{}\"", printable(name),
                                          printable(dotted_name(link.target))),
                              main_);
      default:
        return findings_.note(Finding::kSecondName, Severity::kInfo,
                              fmt::format("a soft link \"{}\" to \"{}\"; not listed",
                                          printable(name), printable(link.target)),
                              main_);
    }
  }
  void add_problem(const Problem& problem) {
    const std::string name =
        dotted_name(problem.owner) + (problem.name.empty() ? "" : "@" + problem.name);
    findings_.note(Finding::kNoValue, Severity::kWarning,
                   fmt::format("left out: \"{}\": {}", printable(name), problem.why), main_);
  }

  void restore_state(const Report& report) {
    std::vector<bool> embedded;
    out_.state = own_->restore(report, names_, embedded);
    for (std::size_t i = 0; i < embedded.size(); ++i) out_.tensors[i].embedded = embedded[i];
    for (const auto& [dropped, kept] : own_->aliases()) record_alias(out_, dropped, kept);
  }

  void note_trailing_bytes() {
    for (const auto& [path, file] : files_.described())
      if (file.end && *file.end < file.size_bytes)
        findings_.note(Finding::kTrailingBytes,
                       options_.tolerate_damage ? Severity::kError : Severity::kWarning,
                       fmt::format("{} bytes follow the end of the file that its superblock "
                                   "states ({})",
                                   file.size_bytes - *file.end, *file.end),
                       path);
  }

  void describe() {
    const std::size_t others = out_.files.size() - 1;
    const bool archive = has_keras_suffix(main_);
    out_.dialect = own_      ? "HDF5, written by Tessera"
                   : archive ? "a Keras archive"
                   : has_index_suffix(main_)
                       ? fmt::format("Keras weights in {} shard{}", others, others == 1 ? "" : "s")
                   : others == 0 ? "one HDF5 file"
                                 : fmt::format("an HDF5 file over {} others", others);
  }

  /// A small file cannot make anybody compute for hours: what is declared and not stored (fill
  /// values, elements mapped again and again) is bounded by what is stored.
  void check_declared() const {
    std::uint64_t stored = 0, declared = 0;
    for (const StoredFile& file : out_.files) stored += file.size_bytes;
    const auto allowed =
        checked_add(checked_mul(stored, kMaxRatio).value_or(~std::uint64_t{0} / 2), kSlackBytes);
    for (const StoredTensor& tensor : out_.tensors) {
      const auto sum = checked_add(declared, static_cast<std::uint64_t>(tensor.spec.size_bytes()));
      if (!sum || *sum > allowed.value_or(~std::uint64_t{0}))
        in_tensor(tensor.name, [&] {
          fail(Code::kCorrupt, fmt::format("more elements are declared ({}) than {} stored bytes "
                                           "can honestly hold",
                                           tensor.spec.shape.to_string(), stored));
        });
      declared = *sum;
    }
  }

  const Place& place_;
  const ReadOptions& options_;
  Manifest out_;
  Findings findings_;
  FileSet files_;
  std::string main_;
  std::optional<OwnState> own_;
  std::unordered_map<std::string, std::string> dtypes_;
  std::vector<std::string> names_;
};

}  // namespace

Manifest read_manifest(const Place& place, const ReadOptions& options) {
  return ManifestBuilder(place, options).build();
}

void refuse_pending(const Manifest& manifest, std::span<const std::uint32_t> tensors) {
  for (const std::uint32_t t : tensors) {
    const StoredTensor& tensor = manifest.tensors[t];
    if (tensor.chunk_count != 1) continue;
    const Source& source = manifest.source(tensor, 0);
    if (source.kind != Source::Kind::kPending) continue;
    const Bytes& reason = manifest.inline_bytes.at(source.side);
    in_tensor(tensor.name, [&] {
      const std::string_view text = as_text(ByteView(reason).subspan(1));
      const std::size_t end = text.find('\0');
      const std::string_view hint = text.substr(end + 1);
      fail(static_cast<Code>(reason.at(0)), std::string(text.substr(0, end)),
           fmt::format("{}{}leave it out with --exclude", hint, hint.empty() ? "" : "; or "));
    });
  }
}

}  // namespace tessera::h5
