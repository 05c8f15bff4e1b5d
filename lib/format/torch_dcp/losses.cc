#include "lib/format/torch_dcp/losses.h"

#include <fmt/format.h>
#include <tessera/base/text.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <set>
#include <string>

#include "lib/state/other_keys.h"

namespace tessera::dcp {
namespace {

void add(std::vector<Note>& notes, std::string message) {
  notes.push_back({Finding::kNone, Severity::kInfo, std::move(message), "", ""});
}

void note_containers(const StateDict& state, std::vector<Note>& notes) {
  const auto is_lost = [](const ContainerNote& note) { return !is_of_other_keys(note); };
  const auto count = std::ranges::count_if(state.containers, is_lost);
  if (count == 0) return;
  const ContainerNote& first = *std::ranges::find_if(state.containers, is_lost);
  add(notes, fmt::format("torch-dcp keeps leaves only: {} container{} (an empty dict, or an "
                         "OrderedDict, defaultdict or Counter) such as \"{}\" will be plain or "
                         "absent when read back",
                         count, count == 1 ? "" : "s", printable(dotted(first.path))));
}

/// Keys that are no strings, and the path of the first of them.
class OtherKeys {
 public:
  explicit OtherKeys(const StateDict& state) : roles_(find_roles(state)) {
    for (std::size_t i = 0; i < state.entries.size(); ++i)
      if (!is_kept_by_id(roles_.entries[i])) add_integers(state.entries[i].path);
    for (const ContainerNote& note : state.containers) {
      if (!is_of_other_keys(note)) continue;
      for (const auto& [text, key] : note.attributes.as_dict()) {
        Path path = note.path;
        path.push_back(key_item(text.as_string()));
        add_key(path);
      }
    }
  }

  std::size_t count() const { return seen_.size(); }
  const std::string& first() const { return first_; }

 private:
  bool is_kept_by_id(const EntryRole& role) const {
    return role.role == Role::kOptimState && role.root >= 0 &&
           roles_.optimizers[static_cast<std::size_t>(role.root)].dialect == OptimDialect::kById;
  }

  void add_integers(const Path& path) {
    for (std::size_t i = 0; i < path.size(); ++i)
      if (path[i].kind == PathItem::Kind::kIntKey)
        add_key(Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i) + 1));
  }

  void add_key(const Path& path) {
    if (seen_.empty()) first_ = dotted(path);
    seen_.insert(dotted(path));
  }

  Roles roles_;
  std::set<std::string> seen_;
  std::string first_;
};

void note_keys(const StateDict& state, std::vector<Note>& notes) {
  const OtherKeys keys(state);
  if (keys.count() == 0) return;
  const std::string example = printable(keys.first());
  add(notes, keys.count() == 1
                 ? fmt::format("the last key of \"{}\" is no string and becomes text: PyTorch's "
                               "DCP keeps keys as text",
                               example)
                 : fmt::format("{} dict keys that are no strings, such as the last one of \"{}\", "
                               "become text: PyTorch's DCP keeps keys as text",
                               keys.count(), example));
}

}  // namespace

void note_losses(const StateDict& state, std::vector<Note>& notes) {
  note_containers(state, notes);
  note_keys(state, notes);
  const bool list = std::ranges::any_of(state.entries, [](const StateEntry& entry) {
    return !entry.path.empty() && entry.path[0].kind == PathItem::Kind::kIndex;
  });
  if (list)
    add(notes,
        "the state is a list, torch-dcp holds a dict: its entries get the keys \"0\", \"1\", ...");
}

}  // namespace tessera::dcp
