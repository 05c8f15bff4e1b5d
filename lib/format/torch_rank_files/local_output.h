#pragma once
// FSDP1's LOCAL state dicts for another number of ranks: parameters laid end to end again, padding
// made anew, the optimizer keyed by the ids that torch.optim gives there.
#include <tessera/format/format_driver.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lib/format/torch_files/archive_draft.h"
#include "lib/format/torch_files/grouped_optim.h"
#include "lib/format/torch_rank_files/flat_record.h"

namespace tessera::rank_files {

class LocalOutput {
 public:
  /// nullptr when `source` is no LOCAL state dict with named parameters, or no longer one: then
  /// sharded tensors are written. `kept[e]`: entry e is written.
  static std::unique_ptr<LocalOutput> make(const Manifest& source, const TargetRequest& request,
                                           const Mesh& mesh, const std::vector<bool>& kept,
                                           std::vector<Note>& notes);

  /// Adds what stands in rank's file for entry `e`; false: nothing special. `depth`: path items
  /// that the file leaves out.
  bool add(std::size_t e, std::int64_t rank, std::ptrdiff_t depth, ArchiveDraft& archive,
           StateDict& state);
  /// flat_layout.json of the result.
  std::string record_text() const;

 private:
  struct Unit {
    std::string name;
    DType dtype = DType::kFloat32;
    std::vector<FlatParameter> parameters;
    std::vector<std::uint32_t> tensors;  // the weights, in order
    std::optional<FlatLayout> layout;
    std::int64_t numel = 0;  // as stored: with the tail for use_orig_params
    std::size_t last_entry = 0, first_entry = 0;
    std::size_t first_parameter = 0;  // in Optimizer::grouped
  };
  struct Member {
    std::size_t unit = 0;
    std::size_t parameter = 0;
  };
  using Place = std::pair<std::size_t, std::size_t>;  // unit, parameter
  struct Optimizer {
    Path prefix;
    std::map<std::size_t, std::int64_t> unit_ids;                    // off: unit -> id
    std::map<Place, std::int64_t> ids;                               // on: parameter -> id
    std::map<std::size_t, std::vector<std::int64_t>> group_members;  // entry of "params" -> ids
    std::map<std::size_t, Place> places;                             // entry of state -> parameter
    /// Off: the state, and the entry that stands for a leaf of all of a unit's parameters.
    GroupedOptimizer grouped;  // parameters unit by unit
    std::map<std::pair<std::size_t, std::string>, std::size_t> first_entries;  // unit, leaf
  };

  LocalOutput(const Manifest& source, GroupedOptimizer::Steps steps, std::int64_t world_size)
      : source_(source), steps_(steps), world_size_(world_size) {}
  bool find_units(const std::vector<bool>& kept);
  void find_tied(const std::vector<bool>& kept);
  bool find_optimizers(const std::vector<bool>& kept);
  bool find_groups(Optimizer& optimizer, const std::vector<bool>& kept);
  bool find_leaves(Optimizer& optimizer, const std::vector<bool>& kept);
  void add_run(const Member& member, std::size_t e, std::int64_t rank, std::ptrdiff_t depth,
               ArchiveDraft& archive, StateDict& state);
  bool add_weight(std::size_t e, std::int64_t rank, std::ptrdiff_t depth, ArchiveDraft& archive,
                  StateDict& state);
  bool add_optimizer(const Optimizer& optimizer, std::size_t e, std::int64_t rank,
                     std::ptrdiff_t depth, ArchiveDraft& archive, StateDict& state);
  void add_unit_state(const Optimizer& optimizer, std::size_t e, std::int64_t rank,
                      std::ptrdiff_t depth, ArchiveDraft& archive, StateDict& state);
  bool unite_leaves(Optimizer& optimizer) const;
  /// A rank's shard of what `tensors` hold, by parameter: `numel` elements of it.
  std::uint32_t add_shard(ArchiveDraft& archive, const Unit& unit,
                          const std::vector<std::uint32_t>& tensors, std::int64_t rank,
                          std::int64_t numel) const;
  std::optional<Chunk> slice(const Unit& unit, std::size_t parameter, std::int64_t rank) const;
  std::int64_t valid_numel(const Unit& unit, std::int64_t rank) const;
  bool is_shaped(std::size_t e, const Shape& shape) const;
  bool is_trained(std::size_t unit) const;
  const StateEntry& entry(std::size_t e) const { return source_.state.entries[e]; }

  const Manifest& source_;
  GroupedOptimizer::Steps steps_;
  std::int64_t world_size_;
  bool orig_ = false;
  Path prefix_;  // of the model's state dict
  FlatRecord record_;
  std::vector<Unit> units_;
  std::map<std::size_t, Member> weights_;  // entry -> parameter
  std::map<std::size_t, Member> tied_;     // entry -> parameter that it is another name of
  /// Rank, unit, parameter -> its run in the rank's file, which all its names share.
  std::map<std::tuple<std::int64_t, std::size_t, std::size_t>, std::uint32_t> runs_;
  std::map<std::string, Member> by_fqn_;
  std::vector<Optimizer> optimizers_;
};

}  // namespace tessera::rank_files
