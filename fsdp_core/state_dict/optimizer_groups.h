#pragma once
// The parameter groups of optimizers as entries of a LiveState, `<root>.param_groups.<i>.<key>`;
// and back. Groups are matched by their members, not by their index; options come from what is
// stored, and keys that the class does not know are kept (group_options.h).
#include <tessera/state/live_state.h>
#include <tessera/state/optim_state.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "fsdp_core/state_dict/optimizer_members.h"

namespace tessera::fsdp {

class OptimizerGroups {
 public:
  /// `defer` runs a check whose failure counts only once the optimizer's part of a load is wanted.
  using Defer = std::function<void(const std::function<void()>&)>;

  OptimizerGroups(const std::vector<OwnedGroup>& groups, const std::vector<OptimizerEntry>& entries,
                  std::string root)
      : groups_(groups), entries_(entries), root_(std::move(root)) {}

  void declare(LiveState& state) const;
  void expect(LiveState& state, const Manifest& stored, const OptimState& optim,
              const Defer& defer);
  /// An option that is stored as a tensor of one element (PyTorch's lr may be one), now read.
  void take(const StateEntry& stored);
  void commit();

 private:
  struct Awaited {
    std::size_t group;
    const GroupKey* key;
  };
  struct Match {
    std::vector<std::int64_t> source;       // by group: the stored one with its members, -1: none
    std::unordered_set<std::int64_t> used;  // indices of stored groups with members of ours
  };
  Match match(const OptimState& optim, const Defer& defer) const;
  void declare_group(LiveState& state, std::size_t index) const;
  void check_class(std::size_t group, const OptimGroup& stored) const;
  void note_absent(LiveState& state, std::size_t group, const OptimGroup& stored) const;
  bool await(const StateEntry& option, std::int64_t stored_group,
             const std::vector<std::int64_t>& stored_groups);
  std::unique_ptr<torch::optim::OptimizerOptions> options_from(std::size_t group,
                                                               const OptimGroup& stored) const;

  const std::vector<OwnedGroup>& groups_;
  const std::vector<OptimizerEntry>& entries_;
  std::string root_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> new_options_;  // by group
  std::multimap<std::string, Awaited> awaited_;                               // by stored name
};

}  // namespace tessera::fsdp
