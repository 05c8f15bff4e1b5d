#include "lib/ops/open/damage_elsewhere.h"

#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/format/registry.h>
#include <tessera/state/aliases.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "lib/base/sort_unique.h"
#include "lib/ops/open/losses.h"

namespace tessera {
namespace {

bool is_below(std::string_view name, std::string_view folder) {
  return folder.empty() ||
         (name.size() > folder.size() && name.starts_with(folder) && name[folder.size()] == '.');
}

/// "optim_world_size_4_rank_2.pt" -> "optim_world_size_#_rank_#.pt": what a set of files shares.
std::string family(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const bool number = is_digit(c) || c == '*';
    if (!number) out += c;
    if (number && !out.ends_with('#')) out += '#';
  }
  return out;
}

/// Names alone are in it.
bool is_index(std::string_view path) { return path.ends_with(".index.json"); }

/// The files that hold elements of tensors here.
std::set<std::uint32_t> files_of(const Manifest& manifest) {
  std::set<std::uint32_t> files;
  for (const StoredTensor& tensor : manifest.tensors)
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
      const Source& source = manifest.source(tensor, c);
      if (source.kind != Source::Kind::kInline && source.kind != Source::Kind::kFill)
        files.insert(source.file);
    }
  return files;
}

bool matches_any(const std::vector<std::string>& globs, const std::string& name) {
  return std::ranges::any_of(globs, [&](const std::string& g) { return glob_match(g, name); });
}

bool wants_model(const OpenOptions& options) {
  return options.selection.only == Part::kModel || options.needed_part == Part::kModel;
}

/// Is `name` that entry, below it, or the value that it lies in?
bool is_needed(const std::string& entry, const std::string& name) {
  return entry == name || is_below(entry, name) || is_below(name, entry);
}

}  // namespace

bool is_called_optimizer(std::string_view path) {
  return path.substr(path.rfind('/') + 1).find("optim") != std::string_view::npos;
}

DamageElsewhere::DamageElsewhere(const Manifest& whole)
    : optimizers_(find_roles(whole.state).optimizers),
      files_(whole.files),
      has_tensors_(whole.files.size()) {
  for (const Note& note : whole.notes) {
    if (note.severity != Severity::kError) continue;
    notes_.push_back(note);
    if (!note.tensor.empty()) listed_files_.push_back(note.file);
  }
  for (const Note& loss : find_losses(whole, {})) notes_.push_back(loss);
  for (const StateEntry& entry : whole.state.entries) stored_.push_back(entry.name);
  std::ranges::sort(stored_);
  for (const std::uint32_t file : files_of(whole)) has_tensors_[file] = true;
  // Metadata lists what a file of these holds; elsewhere a lost entry is noted by its name.
  const bool all_listed = capabilities_of(whole.format).lists_contents;
  for (const StoredFile& file : files_)
    if (all_listed) listed_files_.push_back(file.path);
  sort_unique(listed_files_);
}

DamageElsewhere::Chosen::Chosen(const Manifest& part, const OpenOptions& asked)
    : options(asked), files(files_of(part)) {
  const std::string& root = asked.selection.root;
  for (const StateEntry& entry : part.state.entries)
    entries.push_back(root.empty() ? std::string(entry.name) : root + "." + entry.name);
  std::ranges::sort(entries);
}

std::optional<Part> DamageElsewhere::part_of(const std::string& name) const {
  for (const OptimizerRoot& root : optimizers_)
    if (!root.name.empty() && is_below(name, root.name)) return Part::kOptim;
  return std::nullopt;
}

/// Whether the selection would take an entry that is not there any more.
bool DamageElsewhere::takes_lost(const std::string& name, const OpenOptions& options) const {
  const Selection& selection = options.selection;
  if (!selection.root.empty() && !is_below(name, selection.root)) return false;
  const std::string seen = selection.root.empty() ? name : name.substr(selection.root.size() + 1);
  if (!selection.include.empty() && !matches_any(selection.include, seen)) return false;
  if (matches_any(selection.exclude, seen)) return false;
  if (!options.needed_name.empty() && !is_needed(seen, options.needed_name)) return false;
  for (const std::optional<Part>& wanted : {selection.only, options.needed_part})
    if (wanted && part_of(name).value_or(*wanted) != *wanted) return false;
  return true;
}

bool DamageElsewhere::may_hold(const std::string& file, const Chosen& chosen) const {
  const auto known = std::ranges::find(files_, file, &StoredFile::path);
  // It was read: its tensors are known, and whole or not by themselves.
  const auto number = static_cast<std::size_t>(known - files_.begin());
  if (known != files_.end() && known->size_bytes > 0 && has_tensors_[number]) return false;
  if (std::ranges::binary_search(listed_files_, file) || is_index(file)) return false;
  bool has_siblings = false;
  for (std::uint32_t f = 0; f < files_.size(); ++f) {
    if (!has_tensors_[f] || files_[f].size_bytes == 0) continue;
    if (files_[f].path == file || family(files_[f].path) != family(file)) continue;
    if (chosen.files.contains(f)) return true;
    has_siblings = true;
  }
  if (has_siblings) return false;
  return !wants_model(chosen.options) || !is_called_optimizer(file);
}

bool DamageElsewhere::concerns(const Note& note, const Chosen& chosen) const {
  if (note.tensor.empty()) return note.file.empty() || may_hold(note.file, chosen);
  if (std::ranges::binary_search(stored_, note.tensor))
    return std::ranges::binary_search(chosen.entries, note.tensor);
  const bool of_optimizer = is_called_optimizer(note.tensor) && is_called_optimizer(note.file);
  if (of_optimizer && wants_model(chosen.options)) return false;  // a whole one is lost
  return takes_lost(note.tensor, chosen.options);
}

bool DamageElsewhere::touches(const Manifest& part, const OpenOptions& options) const {
  const Chosen chosen(part, options);
  return !find_losses(part, {}).empty() ||
         std::ranges::any_of(notes_, [&](const Note& note) { return concerns(note, chosen); });
}

bool DamageElsewhere::leave_to_the_rest(Manifest& part, const OpenOptions& options) const {
  const Chosen chosen(part, options);
  return std::erase_if(part.notes, [&](const Note& note) {
           return note.severity == Severity::kError && !concerns(note, chosen);
         }) > 0;
}

Note DamageElsewhere::note() const {
  const Note& first = notes_.front();
  std::set<std::string> tensors;
  for (const Note& note : notes_)
    if (!note.tensor.empty()) tensors.insert(note.tensor);
  const std::string what =
      fmt::format("{}: {}", printable(first.tensor.empty() ? first.file : first.tensor),
                  printable(first.message));
  const std::string more = tensors.size() > 1
                               ? fmt::format(" ({} tensors and values in all)", tensors.size())
                               : std::string();
  return {Finding::kElsewhere, Severity::kWarning,
          fmt::format("the checkpoint is damaged, but not in what was asked for: {}{}; "
                      "ckpt-inspect verify lists it all",
                      what, more),
          first.file, ""};
}

bool keep_only(Manifest& manifest, const std::string& name) {
  const std::string stored = alias_target(manifest, name).value_or(name);
  std::vector<bool> keep;
  for (const StateEntry& entry : manifest.state.entries)
    keep.push_back(is_needed(entry.name, stored));
  if (std::ranges::find(keep, true) == keep.end()) return false;
  keep_entries(manifest, keep);
  return true;
}

}  // namespace tessera
