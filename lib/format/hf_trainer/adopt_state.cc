#include "lib/format/hf_trainer/adopt_state.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/aliases.h>
#include <tessera/state/optim_state.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "lib/format/hf_trainer/files.h"
#include "lib/format/hf_trainer/parameter_order.h"
#include "lib/state/edit/move_entry.h"
#include "lib/state/edit/tensor_remapper.h"
#include "lib/state/parameter_order.h"
#include "lib/state/role_names.h"

namespace tessera::hf_trainer {
namespace {

constexpr std::string_view kOtherWays =
    "--optim-keys id numbers them as the source's groups list them, for a Trainer with an "
    "optimizer "
    "of your own; --optim-keys fqn keeps names, as FSDP with FULL_STATE_DICT wants them";

/// Keys that other libraries give to what Trainer has in a file of its own.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kPlaces = {{
    {"scheduler", "scheduler"},
    {"lr_scheduler", "scheduler"},
    {"scaler", "scaler"},
    {"grad_scaler", "scaler"},
}};

/// How many items of `path` say the dotted root; nullopt: it does not begin with it.
std::optional<std::ptrdiff_t> root_length(const Path& path, std::string_view root) {
  if (root.empty()) return 0;
  for (std::size_t i = 1; i <= path.size(); ++i) {
    const auto length = static_cast<std::ptrdiff_t>(i);
    if (dotted(Path(path.begin(), path.begin() + length)) == root) return length;
  }
  return std::nullopt;
}

Path moved(const Path& path, std::ptrdiff_t old_length, std::string_view key) {
  Path out = {key_item(std::string(key))};
  out.insert(out.end(), path.begin() + old_length, path.end());
  return out;
}

/// Trainer's rule by names: biases and norms do not decay.
bool is_named_without_decay(std::string_view name) {
  std::string lower(name);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  for (const std::string_view word : {"bias", "layernorm", "rmsnorm"})
    if (lower.find(word) != lower.npos) return true;
  return std::ranges::any_of(split(lower, '.'), [](std::string_view part) {
    return part == "norm" || part.ends_with("_norm");
  });
}

class Adopter {
 public:
  Adopter(Manifest& manifest, TargetRequest& request) : manifest_(manifest), request_(request) {}

  std::vector<Note> run(OptimKeys asked) {
    move_roots();
    if (!put_in_order()) set_order_of_names(manifest_);
    const OptimDialect stored = dialect();
    listed_ = stored == OptimDialect::kByFqn || stored == OptimDialect::kById;
    if (asked == OptimKeys::kId && stored == OptimDialect::kById) return std::move(notes_);
    name_parameters();
    if (asked == OptimKeys::kFqn) return std::move(notes_);
    if (asked == OptimKeys::kKeep) regroup();
    rekey_optimizers(manifest_, OptimKeys::kId);
    return std::move(notes_);
  }

 private:
  OptimDialect dialect() const { return find_roles(manifest_.state).optimizers.at(0).dialect; }
  OptimState optimizer() const {
    return canonical_optim_states(manifest_, find_roles(manifest_.state)).at(0);
  }

  void move_roots() {
    const Roles roles = find_roles(manifest_.state);
    if (roles.optimizers.size() != 1 || roles.model_roots.size() != 1)
      fail(Code::kUnsupported,
           fmt::format("hf-trainer is one model and its optimizer, here are {} and {}",
                       roles.model_roots.size(), roles.optimizers.size()),
           roles.optimizers.empty() ? "use --to hf for the model alone" : "choose with --exclude");
    const std::string model = roles.model_roots[0], optim = roles.optimizers[0].name;
    std::vector<bool> keep(roles.entries.size(), true);
    std::vector<std::string> no_place;
    for (std::size_t i = 0; i < keep.size(); ++i) {
      StateEntry& entry = manifest_.state.entries[i];
      const EntryRole& role = roles.entries[i];
      if (role.role == Role::kModel) {
        const auto length = root_length(entry.path, model);
        rename(entry, length ? moved(entry.path, *length, kModel)
                             : Path{key_item(std::string(kModel)), key_item(role.fqn)});
      } else if (role.role != Role::kOther) {
        const auto length = root_length(entry.path, optim);
        if (!length)
          fail(Code::kUnsupported,
               fmt::format("the optimizer's state is kept by names alone (\"{}\")",
                           printable(entry.name)),
               "write torch-dcp, and from that this");
        rename(entry, moved(entry.path, *length, kOptimizer));
      } else if (const auto place = place_of(entry.path); !place.empty()) {
        rename(entry, moved(entry.path, 1, place));
      } else {
        keep[i] = false;
        refuse_weights(entry, role);
        no_place.push_back(entry.name);
      }
    }
    move_containers(model, optim);
    move_aliases(model);
    note_schedule();
    check_unique(manifest_.state, Code::kUnsupported);
    keep_entries(manifest_, keep);
    if (!no_place.empty())
      notes_.push_back(
          {Finding::kRelatedLeftBehind, Severity::kWarning,
           fmt::format("a Trainer's folder has no place for {} of the source's entries, "
                       "which are left out: {}{}",
                       no_place.size(), printable(no_place[0]), no_place.size() > 1 ? ", ..." : ""),
           "", ""});
  }

  /// LambdaLR, which Trainer's schedules are, does not load without `lr_lambdas`: a list of empty dicts,
  /// of which formats that keep leaves alone (DCP) have nothing.
  void note_schedule() {
    static constexpr std::array<std::string_view, 7> kOfEverySchedule = {
        "base_lrs",
        "last_epoch",
        "_step_count",
        "verbose",
        "_last_lr",
        "_is_initial",
        "_get_lr_called_within_step"};
    bool any = false, is_lambda = true;
    const auto look = [&](const Path& path) {
      if (path.size() < 2 || !is_key(path[0], "scheduler")) return;
      any = true;
      is_lambda = is_lambda && std::ranges::any_of(kOfEverySchedule, [&](std::string_view key) {
                    return is_key(path[1], key);
                  });
    };
    for (const StateEntry& entry : manifest_.state.entries) look(entry.path);
    for (const ContainerNote& note : manifest_.state.containers) look(note.path);
    if (any && is_lambda)
      notes_.push_back(
          {Finding::kRelatedLeftBehind, Severity::kWarning,
           "the schedule of the source has no lr_lambdas, without which Trainer does not load "
           "it: put the run's own scheduler.pt in the place of this one",
           "", ""});
  }

  void rename(StateEntry& entry, Path path) { move_entry(manifest_, entry, std::move(path)); }

  static std::string_view place_of(const Path& path) {
    if (path.size() < 2) return "";
    for (const auto& [key, place] : kPlaces)
      if (is_key(path[0], key)) return place;
    return "";
  }

  /// Averaged weights and the like are nothing to drop with a word.
  void refuse_weights(const StateEntry& entry, const EntryRole& role) const {
    for_each_tensor(entry.value, [&](std::uint32_t t) {
      const TensorSpec& spec = manifest_.tensors[t].spec;
      if (role.fqn.view().empty() && (!is_floating(spec.dtype) || spec.shape.rank() == 0)) return;
      fail(Code::kUnsupported,
           fmt::format("hf-trainer has no place for \"{}\"", printable(entry.name)),
           "leave it out with --exclude, or use --to torch-dcp");
    });
  }

  void move_containers(const std::string& model, const std::string& optim) {
    std::vector<ContainerNote> kept;
    for (ContainerNote& note : manifest_.state.containers) {
      const auto of_optim = root_length(note.path, optim);
      const auto of_model = model.empty() ? std::nullopt : root_length(note.path, model);
      if (of_optim)
        note.path = moved(note.path, *of_optim, kOptimizer);
      else if (of_model)
        note.path = moved(note.path, *of_model, kModel);
      else if (const auto place = place_of(note.path); !place.empty())
        note.path = moved(note.path, 1, place);
      else
        continue;
      kept.push_back(std::move(note));
    }
    manifest_.state.containers = std::move(kept);
  }

  void move_aliases(const std::string& model) {
    const auto inner = [&](const std::string& name) -> std::optional<std::string> {
      if (model.empty()) return fmt::format("{}.{}", kModel, name);
      if (!name.starts_with(model + ".")) return std::nullopt;
      return fmt::format("{}{}", kModel, name.substr(model.size()));
    };
    const auto edit = [&](const Alias& alias) -> std::optional<Alias> {
      const auto left = inner(alias.first), held = inner(alias.second);
      return left && held ? std::optional(Alias(*left, *held)) : std::nullopt;
    };
    edit_aliases(manifest_, edit);
    std::vector<Alias> aliases;
    for (const Alias& alias : request_.aliases)
      if (auto kept = edit(alias)) aliases.push_back(std::move(*kept));
    request_.aliases = std::move(aliases);
  }

  /// The weights in the model's order, in the places that they have among all entries. False: it is
  /// not known.
  bool put_in_order() {
    std::vector<StateEntry>& entries = manifest_.state.entries;
    const Roles roles = find_roles(manifest_.state);
    std::vector<std::size_t> at;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (roles.entries[i].role != Role::kModel || !entries[i].value.is_tensor()) continue;
      if (!is_floating(manifest_.tensors[entries[i].value.tensor_index()].spec.dtype)) continue;
      at.push_back(i);
      names.emplace_back(roles.entries[i].fqn);
    }
    const auto places = order_of(names);
    if (!places) return false;
    std::vector<StateEntry> ordered(at.size());
    for (std::size_t i = 0; i < at.size(); ++i) ordered[(*places)[i]] = std::move(entries[at[i]]);
    for (std::size_t i = 0; i < at.size(); ++i) entries[at[i]] = std::move(ordered[i]);
    return true;
  }

  /// PEFT's modules have an adapter's name that its files leave out.
  static std::optional<std::vector<std::size_t>> order_of(std::vector<std::string> names) {
    constexpr std::string_view kDefault = ".default";
    std::vector<std::string_view> views;
    for (std::string& name : names) {
      const std::size_t at = name.find(kDefault);
      const bool of_adapter = name.find(".lora_") != name.npos;
      if (of_adapter && at != name.npos) name.erase(at, kDefault.size());
      views.emplace_back(name);
    }
    return order_of_model(views, "");
  }

  void name_parameters() {
    if (dialect() == OptimDialect::kByFqn) return;
    if (dialect() == OptimDialect::kFlat) {
      std::vector<Note> notes = group_optimizers(manifest_);
      notes_.insert(notes_.end(), notes.begin(), notes.end());
      return;
    }
    require_names(manifest_, optimizer(), std::string(kOtherWays));
    rekey_optimizers(manifest_, OptimKeys::kFqn);
  }

  struct Member {
    std::string name;
    std::size_t group = 0;  // of the source
    std::size_t rank = 0;   // of its tensor
  };

  static constexpr std::size_t kGroups = 2;  // with decay, without

  void regroup() {
    const OptimState optim = optimizer();
    if (optim.groups.empty())
      fail(Code::kUnsupported, "the optimizer has no param_groups: its options are not known",
           "use --to torch-dcp");
    std::vector<Member> members = members_of(optim);
    sort(members, optim);
    std::array<std::vector<Member>, kGroups> made;
    const bool is_trainers = has_trainers_groups(members, optim);
    for (Member& member : members) made[decays(member, is_trainers) ? 0 : 1].push_back(member);
    std::array<ValueDict, kGroups> options;
    for (std::size_t g = 0; g < kGroups; ++g) options[g] = options_of(made[g], g, optim);
    for (const OptimGroup& group : optim.groups)
      if (optim.groups.size() < kGroups && Value::dict(group.options).holds_tensors())
        fail(Code::kUnsupported, "one group with a tensor among its options cannot become two",
             std::string(kOtherWays));
    write_groups(made, options);
  }

  std::vector<Member> members_of(const OptimState& optim) const {
    std::vector<Member> members;
    std::set<std::string, std::less<>> seen;
    for (std::size_t g = 0; g < optim.groups.size(); ++g)
      for (const std::string& name : optim.groups[g].members) {
        if (!seen.insert(name).second) continue;
        const OptimParameter* p = optim.find(name);
        const bool has_weight = p != nullptr && p->weight != kNoTensor;
        members.push_back(
            {name, g,
             has_weight ? static_cast<std::size_t>(manifest_.tensors[p->weight].spec.shape.rank())
                        : 0});
      }
    for (const OptimParameter& p : optim.parameters)
      if (!p.leaves.empty() && !seen.contains(p.fqn))
        fail(Code::kUnsupported,
             fmt::format("the optimizer keeps state of \"{}\", which no group lists",
                         printable(p.fqn)),
             "leave it out with --exclude");
    return members;
  }

  /// As the model has them; else as the source's groups list them, which its optimizer followed.
  void sort(std::vector<Member>& members, const OptimState& optim) const {
    std::vector<std::string> names;
    for (const Member& member : members) names.push_back(member.name);
    if (const auto places = order_of(names)) {
      std::vector<Member> ordered(members.size());
      for (std::size_t i = 0; i < members.size(); ++i) ordered[(*places)[i]] = members[i];
      members = std::move(ordered);
      return;
    }
    if (listed_ && has_trainers_groups(members, optim)) return;
    fail(Code::kUnsupported,
         "in which order Trainer's optimizer has its parameters is not known: no model that is "
         "known "
         "has modules of these names, and the source's groups are not Trainer's",
         std::string(kOtherWays));
  }

  /// Two groups, and no name says that its parameter should be in the other one.
  static bool has_trainers_groups(const std::vector<Member>& members, const OptimState& optim) {
    return optim.groups.size() == kGroups && std::ranges::all_of(members, [](const Member& member) {
             if (is_named_without_decay(member.name)) return member.group == 1;
             return member.rank < 2 || member.group == 0;
           });
  }

  /// A LayerNorm does not decay whatever its name is, which a vector's name leaves open.
  static bool decays(const Member& member, bool is_trainers) {
    if (is_named_without_decay(member.name)) return false;
    if (member.rank >= 2) return true;
    if (is_trainers) return member.group == 0;
    fail(Code::kUnsupported,
         fmt::format(
             "whether \"{}\" decays in Trainer's optimizer is not known: that depends on its "
             "module, and the source's groups are not Trainer's",
             printable(member.name)),
         std::string(kOtherWays));
  }

  /// Those of the members' groups, which must be the same.
  static ValueDict options_of(const std::vector<Member>& members, std::size_t made,
                              const OptimState& optim) {
    if (members.empty()) {
      const bool listed = optim.groups.size() == kGroups && optim.groups[made].members.empty();
      ValueDict options = optim.groups[listed ? made : 0].options;
      if (listed || made == 0) return options;
      for (auto& [key, value] : options)
        if (key.is_string() && key.as_string() == "weight_decay") value = Value::real(0);
      return options;
    }
    const ValueDict& options = optim.groups[members[0].group].options;
    for (const Member& member : members)
      if (Value::dict(optim.groups[member.group].options) != Value::dict(options))
        fail(Code::kUnsupported,
             fmt::format("Trainer's optimizer has two groups, and the source's groups have other "
                         "options within one of them (\"{}\", \"{}\")",
                         printable(members[0].name), printable(member.name)),
             std::string(kOtherWays));
    return options;
  }

  void write_groups(const std::array<std::vector<Member>, kGroups>& made,
                    const std::array<ValueDict, kGroups>& options) {
    const Roles roles = find_roles(manifest_.state);
    std::vector<StateEntry> entries;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < roles.entries.size(); ++i) {
      places.push_back(entries.size());
      if (roles.entries[i].role != Role::kOptimGroup)
        entries.push_back(std::move(manifest_.state.entries[i]));
    }
    places.push_back(entries.size());
    std::erase_if(manifest_.state.containers, [](const ContainerNote& note) {
      return note.path.size() > 1 && is_key(note.path[0], kOptimizer) &&
             is_key(note.path[1], "param_groups");
    });
    for (ContainerNote& note : manifest_.state.containers)
      if (note.entries_before < places.size()) note.entries_before = places[note.entries_before];
    for (std::size_t g = 0; g < kGroups; ++g) {
      const auto add = [&](const std::string& option, Value value) {
        StateEntry& entry = entries.emplace_back();
        entry.value = std::move(value);
        rename(entry, {key_item(std::string(kOptimizer)), key_item("param_groups"),
                       index_item(static_cast<std::int64_t>(g)), key_item(option)});
      };
      for (const auto& [key, value] : options[g])
        if (key.is_string() && key.as_string() != "param_names") add(key.as_string(), value);
      ValueList names;
      for (const Member& member : made[g]) names.push_back(Value::string(member.name));
      add("params", Value::list(std::move(names)));
    }
    manifest_.state.entries = std::move(entries);
  }

  Manifest& manifest_;
  TargetRequest& request_;
  bool listed_ = false;  // the source's groups list their members in the optimizer's order
  std::vector<Note> notes_;
};

}  // namespace

std::vector<Note> adopt_state(Manifest& manifest, TargetRequest& request, OptimKeys keys) {
  if (manifest.format == "hf-trainer") return {};
  return Adopter(manifest, request).run(keys);
}

void restate_as_written(Manifest& source, const StateDict& written) {
  for (const StateFile& file : state_files()) {
    const auto is_of_file = [&](const auto& part) {
      return !part.path.empty() && is_key(part.path[0], file.key);
    };
    if (std::ranges::any_of(source.state.entries, is_of_file)) continue;
    std::ranges::copy_if(
        written.entries, std::back_inserter(source.state.entries),
        [&](const StateEntry& entry) { return is_of_file(entry) && !entry.value.holds_tensors(); });
    std::ranges::copy_if(written.containers, std::back_inserter(source.state.containers),
                         is_of_file);
  }
}

}  // namespace tessera::hf_trainer
