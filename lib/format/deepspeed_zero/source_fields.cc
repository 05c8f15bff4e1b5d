#include "lib/format/deepspeed_zero/source_fields.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <algorithm>
#include <array>

namespace tessera::deepspeed {
namespace {

/// Keys of the model file that a caller's own state cannot have, beside the naming's roots.
constexpr std::array kReserved = {kModule,       kOptimizer,       kBufferNames,       kParamShapes,
                                  kFrozenShapes, kFrozenFragments, kSharedParams,      kDpWorldSize,
                                  kMpWorldSize,  kTessera,         kParallelDimensions};

void check_free(const std::string& key, const std::string& name, const Naming& naming) {
  const bool reserved = std::ranges::find(kReserved, std::string_view(key)) != kReserved.end();
  if (!reserved && !naming.is_root(key)) return;
  fail(Code::kUnsupported,
       fmt::format("\"{}\": DeepSpeed keeps the key \"{}\" for itself", printable(name), key),
       "leave it out with --exclude, or --rename it");
}

bool lies_below(const std::string& name, const std::string& root) {
  return !root.empty() && name.starts_with(root + ".");
}

class Sorter {
 public:
  Sorter(const Manifest& source, const Roles& roles, const Naming& naming, ValuePolicy& policy)
      : state_(source.state), roles_(roles), naming_(naming), policy_(policy) {}

  SourceFields run() {
    for (std::size_t i = 0; i < state_.entries.size(); ++i) {
      for (Draft* draft : {&fields_, &of_optimizer_})
        draft->before.push_back(draft->state.entries.size());
      if (roles_.entries[i].role == Role::kOther) sort(state_.entries[i]);
    }
    for (const ContainerNote& note : state_.containers) place(note);
    SourceFields out{as_value(fields_), as_value(globals_), as_value(of_optimizer_)};
    if (!out.fields.is_dict())
      fail(Code::kUnsupported, "the state's top is a list, which has no names");
    return out;
  }

 private:
  struct Draft {
    StateDict state;
    std::vector<std::size_t> before;  // by the source's entry: how many of its own come before it
  };
  static Value as_value(const Draft& draft) {
    const bool empty = draft.state.entries.empty() && draft.state.containers.empty();
    return empty ? Value::dict({}) : unflatten(draft.state);
  }

  void sort(const StateEntry& entry) {
    if (!entry.value.is_tensor() && !policy_.keeps(entry)) return;
    StateEntry copy = entry;
    if (!entry.value.holds_tensors() && lies_below(entry.name, naming_.optim_root)) {
      if (copy.path.empty()) copy.path = root_path(entry.name);
      copy.path = below_optimizer(copy.path);
      return of_optimizer_.state.entries.push_back(std::move(copy));
    }
    if (copy.path.empty()) copy.path = path_of({entry.name});
    if (take_whole_globals(copy, globals_.state)) return;
    const bool global = copy.path.size() > 1 && copy.path[0].text() == kGlobalsRoot;
    if (!global) check_free(copy.path[0].text(), entry.name, naming_);
    if (global) copy.path.erase(copy.path.begin());
    (global ? globals_ : fields_).state.entries.push_back(std::move(copy));
  }
  Path below_optimizer(const Path& path) const {
    const std::size_t skip = root_path(naming_.optim_root).size();
    return {path.begin() + static_cast<std::ptrdiff_t>(skip), path.end()};
  }

  void place(const ContainerNote& note) {
    if (note.path.empty()) return;
    Draft* draft = &fields_;
    ContainerNote copy = note;
    if (lies_below(dotted(note.path), naming_.optim_root)) {
      copy.path = below_optimizer(note.path);
      if (is_state_or_groups(copy.path[0])) return;
      draft = &of_optimizer_;
    } else if (is_rooted(note.path)) {
      return;
    }
    if (note.entries_before < draft->before.size())
      copy.entries_before = draft->before[note.entries_before];
    draft->state.containers.push_back(std::move(copy));
  }
  static bool is_state_or_groups(const PathItem& item) {
    return item.text() == kState || item.text() == kParamGroups;
  }
  bool is_rooted(const Path& path) const {
    const std::string name = dotted(path);
    for (const std::string& root : {naming_.model_root, naming_.optim_root})
      if (name == root || lies_below(name, root)) return true;
    return path[0].text() == kGlobalsRoot || naming_.model_root.empty() ||
           (naming_.optim_root.empty() && is_state_or_groups(path[0]));
  }

  const StateDict& state_;
  const Roles& roles_;
  const Naming& naming_;
  ValuePolicy& policy_;
  Draft fields_, globals_, of_optimizer_;
};

}  // namespace

SourceFields source_fields(const Manifest& source, const Roles& roles, const Naming& naming,
                           ValuePolicy& policy) {
  return Sorter(source, roles, naming, policy).run();
}

}  // namespace tessera::deepspeed
