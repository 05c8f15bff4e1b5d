#pragma once
// LocalState: FSDP1's LOCAL state dicts. Each wrapped module's parameters are one flat parameter, a
// 1-D ShardedTensor; the optimizer's state is what torch.optim holds on each rank, keyed by id.
//
//   use_orig_params off   ids are flat parameters; state: [shard numel], zeros at the end
//   use_orig_params on    ids are parameters; state: this rank's run of the parameter's ravel, and
//                         such runs of the weights stand beside the flat parameters, tied ones
//                         under each of their names
//
// With a FlatRecord the parameters are tensors of their own again; without one the flat parameters
// are listed as they are, and state as one run per id.
//
// verl saves a sharded model and, beside it, torch.optim's own state: runs of flat parameters that
// stand in no file. The record alone says what they were.
#include <map>
#include <optional>
#include <set>

#include "lib/format/torch_files/flat_tensors.h"
#include "lib/format/torch_rank_files/flat_record.h"
#include "lib/format/torch_rank_files/rank_merge.h"

namespace tessera::rank_files {

class LocalState {
 public:
  /// All must outlive it.
  LocalState(const RankStates& states, ArchiveManifestBuilder& builder, ArchiveBytes& bytes,
             RankMerger& merger, Findings& findings);

  /// True when there are flat parameters, or runs of some in an optimizer.
  bool present() const { return !units_.empty() || state_alone_; }
  /// True when the optimizer's state alone is flat: the weights are sharded tensors.
  bool state_alone() const { return state_alone_; }
  bool uses_orig_params() const { return orig_; }

  /// Finds a record and lays the units out by it. Throws kCorrupt when the one that the user named
  /// does not fit.
  void name_parameters(const Directory& directory, const ReadOptions& options);
  /// The record as it fits this checkpoint; nullptr: parameters are not named.
  const FlatRecord* record() const { return record_ ? &*record_ : nullptr; }

  /// Adds what `entry` stands for; false: nothing special, the caller adds it.
  bool add(const RankEntry& entry);

 private:
  struct Unit {
    const RankEntry* entry = nullptr;
    Path prefix;       // of the state dict that it stands in
    std::string name;  // its key there
    DType dtype = DType::kFloat32;
    std::int64_t numel = 0;        // as stored
    std::int64_t shard_numel = 0;  // on every rank
    std::optional<FittedUnit> fitted;
    std::vector<FlatSegment> parameters;  // of the layout that fits
  };
  /// What an optimizer's id means: parameter -1 is the whole unit.
  struct Target {
    std::size_t unit = 0;
    std::int64_t parameter = -1;
  };
  struct Optimizer {
    Path prefix;
    std::vector<std::int64_t> ids;  // group by group
    std::vector<std::size_t> group_sizes;
    std::map<std::int64_t, Target> targets;  // empty: ids stay
  };
  /// What ranks hold of a flat parameter: FlatRun::buffer is the index of its tensor.
  struct Shards {
    std::vector<FlatRun> runs;
    std::vector<TensorRef> tensors;
    void add(const RankLeaf& leaf, std::uint32_t tensor, std::int64_t begin, std::int64_t end) {
      runs.push_back({static_cast<std::size_t>(leaf.rank), tensors.size(), begin, end, 0});
      tensors.push_back({leaf.file, tensor});
    }
  };
  /// The same, ready to be asked.
  struct Places {
    explicit Places(Shards shards)
        : flat(std::move(shards.runs)), tensors(std::move(shards.tensors)) {}
    FlatPlaces flat;
    std::vector<TensorRef> tensors;
  };

  void find_units();
  void check_ranks(const RankEntry& entry);
  void find_optimizers();
  void find_flat_state();
  /// What an optimizer's state by id is like, from one walk over the ranks' leaves.
  struct FlatState {
    bool found = false;  // runs of flat parameters
    bool even = true;    // every rank holds as much of each
    std::size_t ranks = 0;
  };
  FlatState flat_state_of(const Optimizer& optimizer);
  void add_units_of(const FlatRecord& record);
  std::optional<FlatRecord> find_record(const Directory& directory, const ReadOptions& options);
  std::optional<FlatRecord> record_of_full(const Directory& directory, const std::string& file,
                                           std::uint64_t pickle_limit_bytes);
  std::optional<FlatUnit> unit_of_full(const Unit& unit, const TorchArchive& full,
                                       const Value& weights) const;
  void fit(const FlatRecord& record);
  void find_slices();
  void find_tied_slices();
  bool is_same_run(const RankLeaf& a, const RankLeaf& b) const;
  void map_optimizer(Optimizer& optimizer);
  bool map_by_record(Optimizer& optimizer);
  void note_optimizer(const Optimizer& optimizer, std::string_view what);
  std::vector<Target> targets_in_order(bool whole_units, bool trained_only) const;
  std::map<std::int64_t, std::int64_t> stored_numels(const Optimizer& optimizer, bool sum) const;
  std::vector<std::int64_t> ranks_without_state(const Optimizer& optimizer) const;
  /// Elements of a parameter in a rank's shard.
  std::int64_t part_on(const Target& target, std::int64_t rank) const;
  void report_lost(const Optimizer& optimizer, const std::vector<std::int64_t>& lost);

  bool add_unit(const Unit& unit);
  bool add_optimizer(const RankEntry& entry, const Optimizer& optimizer);
  bool add_members(const RankEntry& entry, const Optimizer& optimizer);
  void add_state(const RankEntry& entry, const Optimizer& optimizer, const Target& target);
  void check_padding(const Unit& unit, const Places& places, const std::string& name,
                     std::optional<double> filler);
  void add_unnamed_state(const RankEntry& entry);
  void add_parameter(const Path& path, DType dtype, const FlatSegment& segment,
                     const Places& places);
  Places places_of(const Unit& unit) const;
  Places state_places(const RankEntry& entry, const Target& target) const;

  const RankStates& states_;
  ArchiveManifestBuilder& builder_;
  ArchiveBytes& bytes_;
  RankMerger& merger_;
  Findings& findings_;
  std::set<std::uint32_t> misnamed_;  // files that another rank saved
  std::vector<Unit> units_;
  std::vector<Optimizer> optimizers_;
  std::map<std::string, std::pair<std::size_t, std::size_t>> slices_;  // name -> unit, parameter
  std::optional<FlatRecord> record_;
  bool orig_ = false;
  bool state_alone_ = false;
  bool even_ = true;       // with state_alone_: FlatState::even, of all optimizers
  bool tolerate_ = false;  // damage is noted, and padding looked at
};

}  // namespace tessera::rank_files
