#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/ops/select.h>
#include <tessera/state/aliases.h>
#include <tessera/state/roles.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "lib/state/edit/forget_ids.h"
#include "lib/state/quant_weights.h"
#include "lib/state/tensor_bytes.h"
#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

std::string nearest_name(const Manifest& manifest, std::string_view word) {
  std::vector<std::string_view> names;
  for (const StateEntry& entry : manifest.state.entries) names.push_back(entry.name);
  return nearest(word, names);
}

bool is_part_of_a_name(const Manifest& manifest, std::string_view pattern) {
  return pattern.find_first_of("*?[") == pattern.npos &&
         std::ranges::any_of(manifest.state.entries, [&](const StateEntry& entry) {
           return entry.name.view().find(pattern) != std::string_view::npos;
         });
}

/// A part of a tensor of a subclass has a row of its own in ls, and goes where the tensor goes.
void refuse_part(const Manifest& manifest, std::string_view flag, const std::string& pattern) {
  for (const PartRow& row : part_rows(manifest.state)) {
    const std::string& whole = manifest.state.entries[row.entry].name;
    if (glob_match(pattern, whole + row.suffix))
      fail(Code::kInvalidArgument,
           fmt::format("{} \"{}\": \"{}\" is a part of \"{}\", which is chosen as a whole", flag,
                       printable(pattern), printable(whole + row.suffix), printable(whole)),
           fmt::format("{} '{}'", flag, printable(whole)));
  }
}

[[noreturn]] void no_match(const Manifest& manifest, std::string_view flag,
                           const std::string& pattern) {
  refuse_part(manifest, flag, pattern);
  std::string near = nearest_name(manifest, pattern);
  // A part of a name is what people type first.
  if (near.empty() && is_part_of_a_name(manifest, pattern)) near = fmt::format("*{}*", pattern);
  fail(
      Code::kInvalidArgument,
      fmt::format("{} \"{}\" matches nothing in this checkpoint", flag, printable(pattern)),
      near.empty() ? "ckpt-inspect ls shows the names" : fmt::format("did you mean \"{}\"?", near));
}

/// How many leading path items spell `root`; 0 when they do not.
std::size_t root_items(const StateEntry& entry, const std::string& root) {
  std::string text;
  for (std::size_t i = 0; i < entry.path.size(); ++i) {
    text += (i ? "." : "") + entry.path[i].text();
    if (text == root) return i + 1;
    if (text.size() > root.size()) break;
  }
  return 0;
}

[[noreturn]] void no_root(const Manifest& manifest, const std::string& root) {
  if (const StateEntry* leaf = manifest.state.find(root))
    fail(Code::kInvalidArgument,
         fmt::format("--root \"{}\" is a {}, not a subtree", printable(root),
                     leaf->value.is_tensor() ? "tensor" : "value"),
         "--include selects single names");
  std::set<std::string> subtrees;
  for (const StateEntry& entry : manifest.state.entries)
    for (std::size_t dot = entry.name.find('.'); dot != std::string::npos;
         dot = entry.name.find('.', dot + 1))
      subtrees.insert(entry.name.substr(0, dot));
  const std::vector<std::string_view> names(subtrees.begin(), subtrees.end());
  const std::string near = nearest(root, names);
  fail(Code::kInvalidArgument,
       fmt::format("--root \"{}\" matches nothing in this checkpoint", printable(root)),
       near.empty() ? "ckpt-inspect ls shows the names"
                    : fmt::format("did you mean \"{}\"?", printable(near)));
}

void apply_root(Manifest& manifest, const std::string& root) {
  const std::string prefix = root + ".";
  std::vector<bool> keep;
  for (const StateEntry& entry : manifest.state.entries)
    keep.push_back(entry.name.starts_with(prefix));
  if (std::ranges::find(keep, true) == keep.end()) no_root(manifest, root);
  const std::size_t known = manifest.left_out.size();
  keep_entries(manifest, keep);
  for (std::size_t i = known; i < manifest.left_out.size(); ++i)
    manifest.left_out[i].reason = fmt::format("not below --root {}", printable(root));
  for (StateEntry& entry : manifest.state.entries) {
    const std::size_t items = root_items(entry, root);
    entry.name = entry.name.substr(prefix.size());
    if (items > 0) {
      entry.path.erase(entry.path.begin(), entry.path.begin() + static_cast<std::ptrdiff_t>(items));
    } else {
      entry.path = {key_item(entry.name)};
    }
    if (entry.value.is_tensor()) manifest.tensors[entry.value.tensor_index()].name = entry.name;
  }
  std::vector<ContainerNote> containers;
  for (ContainerNote& note : manifest.state.containers) {
    if (note.path.empty()) continue;
    const StateEntry probe{dotted(note.path), note.path, {}};
    const std::size_t items = probe.name == root ? note.path.size() : root_items(probe, root);
    if (items == 0) continue;
    note.path.erase(note.path.begin(), note.path.begin() + static_cast<std::ptrdiff_t>(items));
    containers.push_back(std::move(note));
  }
  manifest.state.containers = std::move(containers);
  edit_aliases(manifest, [&prefix](const Alias& alias) -> std::optional<Alias> {
    if (!alias.first.starts_with(prefix) || !alias.second.starts_with(prefix)) return std::nullopt;
    return Alias(alias.first.substr(prefix.size()), alias.second.substr(prefix.size()));
  });
}

Part part_of(Role role) {
  switch (role) {
    case Role::kModel:
      return Part::kModel;
    case Role::kOptimState:
    case Role::kOptimGroup:
      return Part::kOptim;
    case Role::kOther:
      return Part::kOther;
  }
  return Part::kOther;
}

std::string_view part_name(Part part) {
  return part == Part::kModel ? "model" : part == Part::kOptim ? "optim" : "other";
}

class Chooser {
 public:
  Chooser(Manifest& manifest, const Selection& selection)
      : manifest_(manifest),
        selection_(selection),
        roles_(find_roles(manifest.state)),
        gone_(manifest.state.entries.size(), Gone::kFollows),
        include_hits_(selection.include.size()),
        exclude_hits_(selection.exclude.size()) {
    if (selection.parts_follow && !(selection.include.empty() && selection.exclude.empty()))
      find_quantized();
  }

  void apply() {
    const auto& entries = manifest_.state.entries;
    std::vector<bool> keep(entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) keep[i] = wanted(i);
    choose_aliases();
    for (std::size_t g = 0; g < include_hits_.size(); ++g)
      if (!include_hits_[g]) no_match(manifest_, "--include", selection_.include[g]);
    for (std::size_t g = 0; g < exclude_hits_.size(); ++g)
      if (!exclude_hits_[g]) no_match(manifest_, "--exclude", selection_.exclude[g]);
    parts_follow(keep);
    hand_over_tied(keep);
    const std::vector<std::string> forget = follow(keep);
    if (std::ranges::find(keep, true) == keep.end() && !entries.empty())
      fail(Code::kInvalidArgument, "the selection leaves nothing of this checkpoint",
           "ckpt-inspect ls shows the names and kinds");
    const std::size_t known = manifest_.left_out.size();
    keep_entries(manifest_, keep, forget);
    std::size_t left_out = known;
    for (std::size_t i = 0; i < keep.size(); ++i)
      if (!keep[i]) manifest_.left_out[left_out++].reason = reason(gone_[i]);
    edit_aliases(manifest_, [](const Alias& alias) { return std::optional(alias); });
    if (heirs_.empty()) return;
    rename_parameters(manifest_, find_roles(manifest_.state), [&](const std::string& fqn) {
      const auto heir = heirs_.find(fqn);
      return heir == heirs_.end() ? fqn : heir->second;
    });
    edit_aliases(manifest_, [this](const Alias& alias) -> std::optional<Alias> {
      const auto taken = handed_over_.find(alias.second);
      if (taken == handed_over_.end()) return alias;
      if (taken->second == alias.first) return std::nullopt;  // stored now
      return Alias(alias.first, taken->second);
    });
  }

 private:
  /// Why an entry is left out, should it be.
  enum class Gone : std::uint8_t { kFollows, kInclude, kExclude, kPart };
  std::string reason(Gone gone) const {
    switch (gone) {
      case Gone::kInclude:
        return "not asked for with --include";
      case Gone::kExclude:
        return "--exclude";
      case Gone::kPart:
        return fmt::format("not of --only {}", part_name(*selection_.only));
      case Gone::kFollows:
        break;
    }
    return "it belongs to a parameter that is left out";
  }

  bool of_part(std::size_t i) const {
    return !selection_.only || *selection_.only == part_of(roles_.entries[i].role);
  }
  bool wanted(std::size_t i) {
    const std::string& name = manifest_.state.entries[i].name;
    bool included = selection_.include.empty();
    for (std::size_t g = 0; g < selection_.include.size(); ++g)
      if (is_named(selection_.include[g], name)) included = include_hits_[g] = true;
    if (!included) gone_[i] = Gone::kInclude;
    for (std::size_t g = 0; g < selection_.exclude.size(); ++g)
      if (is_named(selection_.exclude[g], name))
        exclude_hits_[g] = true, included = false, gone_[i] = Gone::kExclude;
    if (!of_part(i)) gone_[i] = Gone::kPart;
    return included && of_part(i);
  }

  /// By its own name, or, of codes, by that of the plain weight.
  bool is_named(const std::string& pattern, const std::string& name) const {
    if (glob_match(pattern, name)) return true;
    const auto plain = plain_names_.find(name);
    return plain != plain_names_.end() && glob_match(pattern, plain->second);
  }

  void find_quantized() {
    quantized_ = quant_weights(manifest_, {}).weights;
    for (const QuantWeight& weight : quantized_)
      if (const auto& codes = manifest_.tensors[weight.codes].name; codes != weight.name)
        plain_names_.emplace(codes, weight.name);
  }

  /// Scales, zero points and tables stay and go with the codes.
  void parts_follow(std::vector<bool>& keep) {
    if (quantized_.empty()) return;
    std::vector<std::size_t> entries(manifest_.tensors.size(), keep.size());
    for (std::size_t i = 0; i < keep.size(); ++i)
      if (const Value& value = manifest_.state.entries[i].value; value.is_tensor())
        entries[value.tensor_index()] = i;
    for (const QuantWeight& weight : quantized_) {
      const std::size_t codes = entries[weight.codes];
      if (codes == keep.size()) continue;
      for (const auto& [slot, part] : weight.parts) {
        const std::size_t entry = entries[part];
        if (entry == keep.size() || keep[entry] == keep[codes]) continue;
        if (!keep[codes]) {
          if (gone_[codes] == Gone::kExclude && selection_.include.empty()) keep[entry] = false;
        } else if (gone_[entry] == Gone::kExclude) {
          manifest_.notes.push_back(
              {Finding::kMissingScale, Severity::kWarning,
               fmt::format("\"{}\", a part of it, is left out: without it its codes are no numbers",
                           manifest_.state.entries[entry].name),
               "", manifest_.state.entries[codes].name});
        } else {
          keep[entry] = of_part(entry);
        }
      }
    }
  }

  /// A record of a tied weight is chosen by its own name.
  void choose_aliases() {
    edit_aliases(manifest_, [this](const Alias& alias) -> std::optional<Alias> {
      bool stays = selection_.include.empty();
      for (std::size_t g = 0; g < selection_.include.size(); ++g)
        if (glob_match(selection_.include[g], alias.first)) stays = include_hits_[g] = true;
      for (std::size_t g = 0; g < selection_.exclude.size(); ++g)
        if (glob_match(selection_.exclude[g], alias.first)) exclude_hits_[g] = true, stays = false;
      return stays ? std::optional(alias) : std::nullopt;
    });
  }

  /// Where the name that has the bytes of a tied weight is left out and the other stays, the other
  /// has them: the tensor stays, and its state, by that name.
  void hand_over_tied(std::vector<bool>& keep) {
    const std::vector<Alias> aliases = recorded_aliases(manifest_);
    std::map<std::string_view, std::size_t> entries;
    for (std::size_t i = 0; i < keep.size() && !aliases.empty(); ++i)
      entries.emplace(manifest_.state.entries[i].name, i);
    for (const Alias& alias : aliases) {
      const auto entry = entries.find(alias.second);
      if (entry == entries.end() || keep[entry->second] || !of_part(entry->second)) continue;
      const std::string& fqn = roles_.entries[entry->second].fqn;
      const std::string root = alias.second.substr(0, alias.second.size() - fqn.size());
      if (fqn.empty() || !alias.first.starts_with(root))
        fail(Code::kUnsupported,
             fmt::format("\"{}\" is one tensor with \"{}\", which is left out",
                         printable(alias.first), printable(alias.second)),
             "leave both out, or none");
      keep[entry->second] = true;
      heirs_.emplace(fqn, alias.first.substr(root.size()));
      handed_over_.emplace(alias.second, alias.first);
    }
  }

  /// A left-out parameter takes its optimizer state along; its FQN is returned for the groups. One
  /// that stays under another name leaves it to that name. Only what globs leave out counts: --only
  /// names whole parts.
  std::vector<std::string> follow(std::vector<bool>& keep) {
    if (!selection_.state_follows || (selection_.include.empty() && selection_.exclude.empty()))
      return {};
    std::set<std::string> gone, kept;
    for (std::size_t i = 0; i < keep.size(); ++i)
      if (roles_.entries[i].role == Role::kModel)
        (keep[i] ? kept : gone).insert(roles_.entries[i].fqn);
    for (const std::string& fqn : kept) gone.erase(fqn);
    if (kept.empty()) return {};  // the optimizer alone was asked for
    find_heirs(keep, gone);
    for (std::size_t i = 0; i < keep.size(); ++i) {
      const EntryRole& role = roles_.entries[i];
      if (role.root < 0 || role.fqn.empty()) continue;
      if (gone.contains(role.fqn)) keep[i] = false;
    }
    forget_ids(manifest_, roles_, gone, keep);
    return {gone.begin(), gone.end()};
  }

  /// Tied weights are one parameter, and its state stands under one of their names. Where that name
  /// is left out and another stays, the state goes by the other: no longer in `gone`.
  void find_heirs(const std::vector<bool>& keep, std::set<std::string>& gone) {
    std::set<std::string> with_state;
    for (const EntryRole& role : roles_.entries)
      if (role.role == Role::kOptimState) with_state.insert(role.fqn);
    std::map<TensorPlace, std::string> kept;
    for (std::size_t i = 0; i < keep.size(); ++i)
      if (const auto place = weight_place(i); place && keep[i])
        kept.emplace(*place, roles_.entries[i].fqn);
    for (std::size_t i = 0; i < keep.size(); ++i) {
      const std::string& fqn = roles_.entries[i].fqn;
      const auto place = keep[i] ? std::nullopt : weight_place(i);
      if (!place || !gone.contains(fqn) || !kept.contains(*place)) continue;
      const std::string& heir = kept.at(*place);
      if (with_state.contains(heir) || !taken_.insert(heir).second) continue;
      heirs_.emplace(fqn, heir);
    }
    for (const auto& [fqn, heir] : heirs_) gone.erase(fqn);
  }
  std::optional<TensorPlace> weight_place(std::size_t i) const {
    const Value& value = manifest_.state.entries[i].value;
    if (roles_.entries[i].role != Role::kModel || !value.is_tensor()) return std::nullopt;
    return place_of(manifest_, manifest_.tensors[value.tensor_index()]);
  }

  Manifest& manifest_;
  const Selection& selection_;
  Roles roles_;
  std::vector<Gone> gone_;  // by entry
  std::vector<bool> include_hits_, exclude_hits_;
  std::vector<QuantWeight> quantized_;              // where their parts follow
  std::map<std::string, std::string> plain_names_;  // of those, by the name of the codes
  std::map<std::string, std::string> heirs_;        // FQN left out -> the tied one that stays
  std::set<std::string> taken_;
  std::map<std::string, std::string> handed_over_;  // name left out -> the tied one with its bytes
};

}  // namespace

Part parse_part(std::string_view text) {
  if (text == "model") return Part::kModel;
  if (text == "optim" || text == "optimizer") return Part::kOptim;
  if (text == "other") return Part::kOther;
  fail(Code::kInvalidArgument,
       fmt::format("\"{}\" is not one of model, optim, other", printable(text)));
}

void apply_selection(Manifest& manifest, const Selection& selection) {
  if (!selection.root.empty()) apply_root(manifest, selection.root);
  if (selection.include.empty() && selection.exclude.empty() && !selection.only) return;
  Chooser(manifest, selection).apply();
}

}  // namespace tessera
