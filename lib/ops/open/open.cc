#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/base/text_index.h>
#include <tessera/format/megatron_torch.h>
#include <tessera/format/registry.h>
#include <tessera/format/safetensors.h>
#include <tessera/format/torch_rank_files.h>
#include <tessera/ops/open.h>
#include <tessera/ops/seal.h>
#include <tessera/state/aliases.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <charconv>

#include "lib/base/append.h"
#include "lib/base/damage.h"
#include "lib/format/findings.h"
#include "lib/ops/open/beside.h"
#include "lib/ops/open/damage_elsewhere.h"
#include "lib/ops/open/dequantize.h"
#include "lib/ops/open/part_folders.h"
#include "lib/ops/open/path_resolve.h"
#include "lib/ops/open/rank_parts.h"
#include "lib/ops/open/sealed_directory.h"
#include "lib/ops/open/weight_delta.h"
#include "lib/ops/seal/asset_names.h"
#include "lib/state/merge_parts.h"
#include "lib/state/tensor_wrapper.h"
#include "lib/storage/linked_directory.h"

namespace tessera {
namespace {

/// Digits after `prefix` at the front of `text`.
std::optional<std::int64_t> number_after(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

void check_unique_names(const Manifest& manifest) {
  TextIndex names;
  const auto& entries = manifest.state.entries;
  for (const StateEntry& entry : entries)
    if (names.add(entry.name, [&](std::size_t i) { return entries[i].name.view(); }))
      fail(Code::kCorrupt, fmt::format("two entries are named \"{}\"", printable(entry.name)));
}

/// A seal that cannot be used: nothing holds the files' bytes against it.
Note no_seal(const std::string& why, const std::string& seal) {
  return {Finding::kNoSeal, Severity::kWarning, why, seal, ""};
}

/// Where an archive is not the sealed one, that is why: a turned bit may look like what nobody
/// supports.
template <class Read>
auto blaming_archives(const SealedDirectory& sealed, Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.code() == Code::kUnsupported) sealed.check(sealed.archives());
    throw;
  }
}

/// Is less than the whole going to be looked at?
bool is_of_part(const OpenOptions& options) {
  return !options.selection.empty() || !options.needed_name.empty() || options.needed_part;
}

/// Reads manifests through the sums of seals, where there are seals.
class ManifestReader {
 public:
  ManifestReader(const FormatDriver& driver, const OpenOptions& options, std::vector<Note>& notes)
      : driver_(driver),
        options_(options),
        notes_(notes),
        report_([this, &notes](const Note& difference) {
          if (options_.check_seal) SealedDirectory::refuse(difference);
          // A reader may open a file twice.
          const bool known = std::ranges::any_of(notes, [&](const Note& note) {
            return note.file == difference.file && note.message == difference.message;
          });
          if (!known) notes.push_back(difference);
        }) {}

  Manifest read(const Place& place, const Seal* seal) { return read(driver_, place, "", seal); }

  /// Each part has a seal of its own; `sealed` is given what they say, as seen from the whole.
  Manifest read_parts(FileSystem& fs, const FoundCheckpoint& whole,
                      std::vector<SealedFile>& sealed) {
    std::vector<PartManifest> parts;
    for (const std::string& folder : whole.parts) {
      const bool own = folder.empty();
      const auto directory =
          storage::open_linked_directory(fs, own ? whole.path : join_path(whole.path, folder));
      const FormatDriver& driver = own ? driver_ : optimizer_folder_driver();
      const Place place{directory.get(), "", own ? whole.path : folder,
                        options_.read.pickle_limit_bytes};
      naming_folder(folder, [&] {
        std::string why;
        const std::optional<Seal> seal = read_seal(*directory, "", &why);
        if (!why.empty() && !own) {
          notes_.push_back(no_seal(why, join_path(folder, seal_name(""))));
          add_missing(*directory, folder);
        }
        parts.push_back({folder, read(driver, place, folder, seal ? &*seal : nullptr), ""});
        if (!seal || own) return;  // one's own is the whole's
        for (SealedFile file : seal->files) {
          file.path = join_path(folder, file.path);
          sealed.push_back(std::move(file));
        }
      });
    }
    if (!parts[0].folder.empty()) {
      for (PartManifest& part : parts) number_root(part.manifest, part.folder, whole.parts[0]);
      return merge_parts(std::move(parts));
    }
    return join_rank_files(whole, std::move(parts));
  }

  /// What seals list and is not there, as seen from the whole.
  const std::vector<std::string>& missing() const { return missing_; }
  void add_missing(const Directory& directory, const std::string& folder) {
    for (const std::string& path : missing_files(directory))
      missing_.push_back(folder.empty() ? path : join_path(folder, path));
  }

  /// That were read from, held against their seals where those have sums for them.
  const std::vector<std::string>& archives() const { return archives_; }

 private:
  /// A part's reader names its own files.
  template <class Work>
  static void naming_folder(const std::string& folder, Work&& work) {
    try {
      work();
    } catch (const Error& error) {
      Status status = error.status();
      if (!folder.empty() && !status.context.file.empty())
        status.context.file = join_path(folder, status.context.file);
      throw Error(std::move(status));
    }
  }

  Manifest read(const FormatDriver& driver, const Place& place, const std::string& folder,
                const Seal* seal) {
    if (seal == nullptr) return driver.manifest(place, options_.read);
    SealedDirectory sealed(*place.directory, seal->files, report_);
    if (is_of_part(options_))
      sealed.look_at_part([](std::string_view, std::uint64_t) { return true; });
    Manifest manifest = blaming_archives(sealed, [&] {
      return driver.manifest({&sealed, place.file, place.display}, options_.read);
    });
    for (const std::string& path : sealed.archives())
      archives_.push_back(folder.empty() ? path : join_path(folder, path));
    return manifest;
  }

  Manifest join_rank_files(const FoundCheckpoint& whole, std::vector<PartManifest> parts) const {
    if (!are_model_and_optimizer(parts[0].manifest, parts[1].manifest)) {
      notes_.push_back({Finding::kPath, Severity::kInfo,
                        fmt::format("{} is itself a checkpoint and is used; 1 below it is not: {}",
                                    printable(whole.path), printable(parts[1].folder)),
                        "", ""});
      return std::move(parts[0].manifest);
    }
    become_model(parts[0]);
    return merge_parts(std::move(parts));
  }

  const FormatDriver& driver_;
  const OpenOptions& options_;
  std::vector<Note>& notes_;
  SealedDirectory::OnDifference report_;
  std::vector<std::string> archives_;
  std::vector<std::string> missing_;
};

/// A folder of ours that lost files may look like no checkpoint at all.
FoundCheckpoint resolve(FileSystem& fs, const std::string& path, const PathResolver& resolver,
                        std::vector<Note>& notes) {
  try {
    return resolver.resolve(path, notes);
  } catch (const Error& error) {
    const auto info = fs.stat(path);
    const bool found_none = error.code() == Code::kUnsupported || error.code() == Code::kNotFound;
    const bool may_have_lost = found_none && info.has_value() && info->type == FileType::kDirectory;
    std::string why;
    if (may_have_lost) read_seal(*storage::open_linked_directory(fs, path), "", &why);
    if (why.empty()) throw;
    in_file(path, [&] {
      fail(Code::kCorrupt, fmt::format("{}: {}", why, error.status().message),
           "take the files that are missing or changed from another copy");
    });
    throw;
  }
}

/// That of a folder's one file, which has its seal beside it.
std::optional<Seal> seal_of_lone_file(const OpenedCheckpoint& opened, std::string& why) {
  const std::vector<StoredFile>& files = opened.manifest.files;
  if (!opened.file.empty() || files.size() != 1) return std::nullopt;
  return read_seal(*opened.directory, files[0].path, &why);
}

/// A pointer may be lost, without which the checkpoint is one of the folders below.
void note_seal_around(const Directory& asked, std::vector<Note>& notes) {
  std::string why;
  if (!read_seal(asked, "", &why) && !why.empty()) notes.push_back(no_seal(why, seal_name("")));
}

/// What a lost file held is lost, whether or not the format would miss it. Assets and pointers hold
/// no state: the note on the seal names them.
void report_missing(const std::vector<std::string>& missing, const ReadOptions& read,
                    Manifest& manifest) {
  Findings findings(read.tolerate_damage, manifest.notes);
  for (const std::string& path : missing) {
    const bool known = std::ranges::any_of(manifest.notes, [&](const Note& note) {
      return note.severity == Severity::kError && note.file == path;
    });
    if (known || is_asset_name(path) || is_pointer_name(path)) continue;
    findings.error(Finding::kMissingFile,
                   fmt::format("the file is missing, {} lists it", seal_name("")), path);
  }
}

/// Where the checkpoint at `opened` is one of deltas: the weights that they make.
bool open_deltas(FileSystem& fs, const FoundCheckpoint& found, const OpenOptions& options,
                 OpenedCheckpoint& opened) {
  if (!takes(found.driver->capabilities().reads_with, kBaseFlag)) return false;
  std::unique_ptr<OpenedCheckpoint> whole;
  if (found.file.empty() && found.parts.empty())
    whole = open_weight_delta(fs, found.path, *opened.directory, options);
  if (whole == nullptr) {
    if (options.read.own.find(kBaseFlag) != nullptr)
      opened.notes.push_back(base_unused(found.path, "has whole weights"));
    return false;
  }
  whole->asked = opened.asked;
  whole->detected_by = found.reason;
  whole->is_part = opened.is_part;
  whole->is_named = found.is_named;
  whole->notes.insert(whole->notes.begin(), opened.notes.begin(), opened.notes.end());
  opened = std::move(*whole);
  return true;
}

/// One rank's file that lies where its name says nothing, as its own content says. What we wrote
/// ourselves is whole.
void note_ranks_elsewhere(OpenedCheckpoint& opened) {
  const bool is_file = opened.driver->capabilities().is_container;
  if (!is_file || !opened.others.empty() || opened.seal || opened.manifest.files.empty()) return;
  opened.others = megatron_ranks_elsewhere(opened.manifest);
  if (opened.others.empty()) return;
  opened.notes.push_back({Finding::kPath, Severity::kWarning,
                          fmt::format("{} is one rank's file and is read alone, without {}",
                                      printable(opened.manifest.files.at(0).path), opened.others),
                          "", ""});
}

OpenedCheckpoint open_whole(FileSystem& fs, const std::string& path, const OpenOptions& options) {
  OpenedCheckpoint opened;
  opened.asked = path;
  opened.is_part = is_of_part(options);
  opened.pickle_limit_bytes = options.read.pickle_limit_bytes;
  const PathResolver resolver(fs, options.from, options.read.pickle_limit_bytes);
  const FoundCheckpoint found = resolve(fs, path, resolver, opened.notes);
  opened.path = opened.display = found.path;
  opened.file = found.file;
  opened.detected_by = found.reason;
  opened.driver = found.driver;
  opened.part_of = found.part_of;
  opened.others = found.others;
  std::string folder = found.path;
  if (!found.file.empty()) {
    // A link that was named is read in the folder of its file, one that was found in its own.
    const auto [parent, name] = split_path(fs.canonical(found.path));
    folder = name == found.file ? parent : split_path(found.path).first;
  }
  opened.directory = storage::open_linked_directory(fs, folder);
  if (open_deltas(fs, found, options, opened)) return opened;
  std::string why, sealed_file = opened.file;
  std::optional<Seal> seal = read_seal(*opened.directory, opened.file, &why);
  ManifestReader reader(*opened.driver, options, opened.notes);
  if (const auto asked = fs.stat(path); asked && asked->type == FileType::kDirectory &&
                                        fs.canonical(path) != fs.canonical(found.folder()))
    note_seal_around(*storage::open_linked_directory(fs, path), opened.notes);
  std::vector<SealedFile> of_parts;
  in_file(opened.display, [&] {
    const auto read = [&] { return reader.read(opened.place(), seal ? &*seal : nullptr); };
    opened.manifest = reading_parts(
        [&] { return found.parts.empty() ? read() : reader.read_parts(fs, found, of_parts); });
    const bool may_be_lone = !seal && why.empty() && found.parts.empty();
    if (may_be_lone && (seal = seal_of_lone_file(opened, why))) opened.manifest = read();
    if (may_be_lone && !why.empty()) sealed_file = opened.manifest.files[0].path;
    if (!why.empty() && opened.file.empty()) reader.add_missing(*opened.directory, "");
    report_missing(reader.missing(), options.read, opened.manifest);
    check_unique_names(opened.manifest);
  });
  if (seal) {
    apply_seal(*seal, opened.manifest);
  } else if (!why.empty()) {
    opened.notes.push_back(no_seal(why, seal_name(sealed_file)));
  }
  if (!of_parts.empty()) {
    if (!seal) seal.emplace();
    seal->files.insert(seal->files.end(), of_parts.begin(), of_parts.end());
  }
  if (seal) opened.seal = std::make_shared<const Seal>(std::move(*seal));
  if (options.check_seal && opened.seal) {
    auto held = std::make_unique<SealedDirectory>(std::move(opened.directory), opened.seal->files,
                                                  SealedDirectory::refuse);
    held->set_archives_elsewhere(reader.archives());
    if (is_of_part(options))
      held->look_at_part([](std::string_view, std::uint64_t) { return true; });
    opened.sealed = held.get();
    opened.directory = std::move(held);
  }
  note_ranks_elsewhere(opened);
  const Roles roles = find_roles(opened.manifest.state);
  assign_kinds(opened.manifest, roles);
  name_parts(opened.manifest);
  check_aliases(opened.manifest, roles);
  restore_integer_ids(opened.manifest.state, roles);
  find_beside(fs, resolver, found, opened);
  append(opened.manifest.notes, lone_codes(opened.manifest, *opened.directory));
  // What the reader took apart is no loss; what it does not read has its reason already.
  std::erase_if(opened.manifest.left_out, [](const LeftOut& left) { return left.reason.empty(); });
  return opened;
}

/// The part that was asked for, where the damage that stopped the reader is outside of it.
std::optional<OpenedCheckpoint> open_beside_damage(FileSystem& fs, const std::string& path,
                                                   const OpenOptions& options) {
  OpenOptions tolerant = options;
  tolerant.read.tolerate_damage = true;
  tolerant.read.tolerate_io_errors = true;
  try {
    OpenedCheckpoint opened = open_whole(fs, path, tolerant);
    const DamageElsewhere damage(opened.manifest);
    if (damage.empty()) return std::nullopt;  // what stopped the reader is no damage of a file
    apply_selection(opened.manifest, options.selection);
    name_parts(opened.manifest);
    Selection part;
    part.only = options.needed_part;
    apply_selection(opened.manifest, part);
    if (!options.needed_name.empty() && !keep_only(opened.manifest, options.needed_name))
      return std::nullopt;
    if (damage.touches(opened.manifest, options)) return std::nullopt;
    std::erase_if(opened.manifest.notes,
                  [](const Note& note) { return note.severity == Severity::kError; });
    opened.notes.push_back(damage.note());
    return opened;
  } catch (const Error& error) {
    if (error.code() == Code::kCancelled || error.code() == Code::kInternal ||
        error.code() == Code::kResourceExhausted)
      throw;
    return std::nullopt;
  }
}

}  // namespace

void OpenedCheckpoint::locate(std::span<const std::uint32_t> tensors, const ReadOptions& options) {
  for (const std::uint32_t tensor : tensors)
    if (tensor >= manifest.tensors.size())
      fail(Code::kInvalidArgument, fmt::format("there is no tensor number {} among the {} here",
                                               tensor, manifest.tensors.size()));
  ReadOptions granted = options;
  granted.pickle_limit_bytes = std::max(pickle_limit_bytes, options.pickle_limit_bytes);
  const auto read = [&] {
    reading_parts([&] { driver->locate(place(), manifest, tensors, granted); });
  };
  in_file(display, [&] { sealed != nullptr ? blaming_archives(*sealed, read) : read(); });
}

bool OpenedCheckpoint::needs(std::string_view name, std::uint64_t byte) const {
  for (const StoredTensor& tensor : manifest.tensors)
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
      const Source& source = manifest.source(tensor, c);
      if (source.kind == Source::Kind::kInline || source.kind == Source::Kind::kFill) continue;
      const bool inside = source.offset <= byte && byte - source.offset < source.length;
      if (inside && manifest.files[source.file].path == name) return true;
    }
  return false;
}

void OpenedCheckpoint::check_archives() const {
  if (sealed == nullptr) return;
  if (is_part)
    sealed->look_at_part(
        [this](std::string_view name, std::uint64_t byte) { return needs(name, byte); });
  sealed->check(sealed->archives());
  sealed->check(sealed->archives_elsewhere());
}

void OpenedCheckpoint::locate_all(const ReadOptions& options) {
  std::vector<std::uint32_t> all(manifest.tensors.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint32_t>(i);
  locate(all, options);
}

OpenedCheckpoint open_checkpoint(FileSystem& fs, const std::string& path,
                                 const OpenOptions& options) {
  try {
    OpenedCheckpoint opened = open_whole(fs, path, options);
    if (options.selection.empty()) return opened;
    std::optional<DamageElsewhere> damage;
    if (options.read.tolerate_damage) damage.emplace(opened.manifest);
    apply_selection(opened.manifest, options.selection);
    name_parts(opened.manifest);
    if (damage && damage->leave_to_the_rest(opened.manifest, options))
      opened.notes.push_back(damage->note());
    return opened;
  } catch (const Error& error) {
    if (!is_of_part(options) || options.read.tolerate_damage || !is_damage(error.code())) throw;
    if (auto opened = open_beside_damage(fs, path, options)) return std::move(*opened);
    throw;
  }
}

std::optional<std::int64_t> writing_rank(std::string_view file_path) {
  const std::string_view name = file_path.substr(file_path.rfind('/') + 1);
  if (const auto rank = number_after(name, "__")) return rank;
  if (const auto shard = number_after(name, "shard-");
      shard && name.find("-model-") != std::string_view::npos && *shard > 0)
    return *shard - 1;
  return rank_in_file_name(name);
}

std::vector<std::uint32_t> leaf_tensors(const Manifest& manifest) {
  std::vector<std::uint32_t> leaves;
  for (std::uint32_t i = 0; i < manifest.tensors.size(); ++i)
    if (!manifest.tensors[i].embedded) leaves.push_back(i);
  return leaves;
}

}  // namespace tessera
