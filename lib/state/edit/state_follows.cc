#include "lib/state/edit/state_follows.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/state/optim_state.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "lib/state/tensor_wrapper.h"

namespace tessera {
namespace {

class StateSettler {
 public:
  StateSettler(Manifest& manifest, std::span<const ParameterEdit> edits) : manifest_(manifest) {
    for (std::size_t e = 0; e < edits.size(); ++e)
      if (!takes_all(edits[e]) && !edits[e].made.empty())
        for (const OldParameter& old : edits[e].olds)
          edited_.emplace(old.fqn, Edited{e, &old.shape});
  }

  std::vector<Note> settle(OptimPolicy policy) {
    if (edited_.empty()) return {};
    const Roles roles = find_roles(manifest_.state);
    std::vector<bool> keep(manifest_.state.entries.size(), true);
    std::vector<Note> notes;
    for (const OptimState& optim : canonical_optim_states(manifest_, roles)) {
      const std::map<std::size_t, std::string> stuck = stuck_edits(optim, policy);
      for (const OptimParameter& parameter : optim.parameters) {
        const auto edited = edited_.find(parameter.fqn);
        if (edited == edited_.end() || parameter.leaves.empty()) continue;
        const auto reason = stuck.find(edited->second.edit);
        if (reason == stuck.end()) continue;
        for (const OptimLeaf& leaf : parameter.leaves) keep[leaf.entry] = false;
        notes.push_back(
            {Finding::kLeftOut, Severity::kWarning,
             fmt::format("the optimizer's state of \"{}\" was left out (--optim drop): {}",
                         printable(parameter.fqn), reason->second),
             "", ""});
      }
    }
    leave_out(keep);
    return notes;
  }

 private:
  struct Edited {
    std::size_t edit = 0;
    const Shape* shape = nullptr;
  };

  /// Edits that some state of the optimizer cannot follow, each with the reason.
  std::map<std::size_t, std::string> stuck_edits(const OptimState& optim,
                                                 OptimPolicy policy) const {
    std::map<std::size_t, std::string> stuck;
    for (const OptimParameter& parameter : optim.parameters) {
      const auto edited = edited_.find(parameter.fqn);
      if (edited == edited_.end()) continue;
      const OptimLeaf* leaf = stuck_leaf(optim, parameter, *edited->second.shape);
      if (leaf == nullptr) continue;
      const std::string reason = reason_of(optim, parameter, *leaf);
      if (policy == OptimPolicy::kKeep)
        fail(Code::kUnsupported, reason + ": it cannot follow it",
             "--optim drop leaves out the state of such parameters, --only model the optimizer");
      stuck.emplace(edited->second.edit, reason);
    }
    return stuck;
  }

  /// The first leaf that cannot be cut; nullptr: all follow.
  const OptimLeaf* stuck_leaf(const OptimState& optim, const OptimParameter& parameter,
                              const Shape& shape) const {
    for (const OptimLeaf& leaf : parameter.leaves)
      if (!follows(optim.cut_of(parameter, leaf.name), leaf, shape)) return &leaf;
    return nullptr;
  }

  bool follows(LeafCut cut, const OptimLeaf& leaf, const Shape& shape) const {
    if (leaf.tensor == kNoTensor) return !manifest_.state.entries[leaf.entry].value.holds_tensors();
    const TensorSpec& spec = manifest_.tensors[leaf.tensor].spec;
    switch (cut) {
      case LeafCut::kElementwise:
      case LeafCut::kOne:
        return spec.shape == shape || spec.shape.numel() == 1;
      case LeafCut::kBlocks:
        return spec.shape == shape && is_floating(spec.dtype) && bits(spec.dtype) >= 16;
      case LeafCut::kPerRow:
      case LeafCut::kFactored:
      case LeafCut::kOpaque:
        return false;
    }
    return false;
  }

  std::string reason_of(const OptimState& optim, const OptimParameter& parameter,
                        const OptimLeaf& leaf) const {
    const StateEntry& entry = manifest_.state.entries[leaf.entry];
    const LeafCut cut = optim.cut_of(parameter, leaf.name);
    std::string why = "does not have its parameter's shape";
    if (const std::string wrapper = wrapper_class(entry.value); !wrapper.empty())
      why = fmt::format("is an object of class {}, not cut with its parameter", printable(wrapper));
    else if (leaf.tensor == kNoTensor)
      why = "is an object with tensors inside, not cut with its parameter";
    else if (cut != LeafCut::kElementwise && cut != LeafCut::kOne)
      why = fmt::format("is state of {} ({}), not cut with its parameter", optim.kind,
                        leaf_cut_name(cut));
    return fmt::format("\"{}\" {}", printable(entry.name), why);
  }

  void leave_out(const std::vector<bool>& keep) {
    if (std::ranges::find(keep, false) == keep.end()) return;
    const std::size_t known = manifest_.left_out.size();
    keep_entries(manifest_, keep);
    for (std::size_t i = known; i < manifest_.left_out.size(); ++i)
      manifest_.left_out[i].reason = "it cannot be cut with its parameter (--optim drop)";
  }

  Manifest& manifest_;
  std::unordered_map<std::string, Edited> edited_;
};

}  // namespace

bool takes_all(const ParameterEdit& edit) {
  if (edit.olds.size() != 1 || edit.made.size() != 1) return false;
  const NewParameter& made = edit.made[0];
  if (made.pieces.size() != 1 || made.shape != edit.olds[0].shape) return false;
  const TensorPiece& piece = made.pieces[0];
  return piece.source == 0 && piece.steps.empty() && piece.dims.empty() && piece.to_steps.empty() &&
         piece.box == Box::whole(made.shape);
}

std::vector<Note> settle_state(Manifest& manifest, std::span<const ParameterEdit> edits,
                               OptimPolicy policy) {
  return StateSettler(manifest, edits).settle(policy);
}

}  // namespace tessera
