#pragma once
// ParamGroup: the parameters of one unit that share dtype, requires_grad (as when sharded) and the
// ranks that they are sharded over, in one layout: one collective gathers them, one reduces them. Holds their memory; knows nothing of
// streams or backward.
//
//   shard buffer -> [cast] -> own slot of the unsharded buffer -> all-gather -> compute parameters
//   compute gradients -> unsharded gradient buffer -> reduce-scatter -> shard gradient buffer
//
// A group of one shard whose compute dtype is the stored one is resident: its compute parameters
// lie in the shard buffer, and nothing is gathered or freed.
#include <tessera/fsdp/communicator.h>

#include <memory>
#include <optional>
#include <vector>

#include "fsdp_core/layout/unit_layout.h"
#include "fsdp_core/params/param.h"
#include "fsdp_core/params/refill_buffer.h"

namespace tessera::fsdp {

struct GatherHook;
class UnitGroups;

/// For each parameter of a group, whether its gradient was produced. Shared: streams read it later.
using UsedParams = std::shared_ptr<const std::vector<bool>>;

struct GroupDtypes {
  at::ScalarType stored;
  at::ScalarType compute;
  at::ScalarType reduce;
};

class ParamGroup {
 public:
  /// Takes the full values out of `params` (their compute tensors), keeps this rank's shard and
  /// registers it. `offload`: the shard buffer lives on the CPU whatever the compute device. `comms`: over
  /// which ranks; several groups of a unit may share them.
  ParamGroup(std::vector<Param> params, std::unique_ptr<UnitLayout> layout, GroupDtypes dtypes,
             c10::Device device, bool offload, std::shared_ptr<UnitGroups> comms);

  std::vector<Param>& params() { return params_; }
  const std::vector<Param>& params() const { return params_; }
  const UnitLayout& layout() const { return *layout_; }
  const GroupDtypes& dtypes() const { return dtypes_; }
  bool resident() const { return resident_; }
  c10::Device device() const { return device_; }
  UnitGroups& comms() const { return *comms_; }
  const std::shared_ptr<UnitGroups>& shared_comms() const { return comms_; }
  const at::Tensor& shard_buffer() const { return shard_buffer_; }

  // -- parameters --
  /// The shards as they are now are what the next gather gathers.
  void note_changes();
  /// Fills the unsharded buffers from all shards; collective over `comm`. Runs in the gather
  /// stream. `full_precision`: in the stored dtype, into a second set of buffers.
  /// `hook`: called instead of the collective.
  void gather(Communicator& comm, const CommTag& tag, bool full_precision = false,
              const GatherHook* hook = nullptr);
  /// Before drop_gathered: this rank's equal part of what was gathered stays, of `size` that
  /// neighbours keep. In the gather stream, as regather.
  void keep_part(int size, int rank);
  bool part_kept() const { return part_.allocated(); }
  void drop_part() { part_.release(); }
  /// As gather, from the parts that the ranks of `comm` kept; they are given back.
  void regather(Communicator& comm, const CommTag& tag);
  /// Instead of the gathered memory, which is dropped, the next attach shows copies of it in the
  /// host's memory. `full_precision` as for the gather. Runs in the gather stream.
  void move_to_host(bool full_precision);
  /// Compute parameters get the gathered memory, the registries show them.
  void attach(bool full_precision = false);
  /// The registries show the shards, compute parameters are poisoned. Gathered memory stays; what
  /// lay on the host goes.
  void detach();
  bool attached() const { return attached_; }
  bool full_precision() const { return attached_precise_; }
  /// Frees gathered memory, in the stream that gathers. Not while attached().
  void drop_gathered();
  /// Gives the gathered memory to the caller, who frees it once nobody reads it any more.
  std::vector<at::Tensor> take_gathered();
  /// True when a shard parameter changed, or was given out to be, since note_changes (optimizer,
  /// user).
  bool stale() const;
  /// Copies this rank's part of the (attached, stored dtype) full parameters back into the shard
  /// buffer.
  void write_back();
  /// A shard parameter whose storage the user replaced is copied into the shard buffer again.
  void adopt_replaced();
  /// Poison that names each parameter by its FQN from the root, which is known only later.
  /// `prefixes`: of the unit's modules.
  void rename(const std::vector<std::string>& prefixes);

  // -- gradients --
  /// Gradient buffers exist and every compute parameter that requires grad has its view as .grad.
  /// New memory is zeroed; what accumulated without synchronisation stays.
  void expose_gradients();
  /// Compute parameters lose their .grad; the buffer keeps its values. A stale optimizer that looks
  /// for one gets an error.
  void hide_gradients();
  bool has_gradients() const { return has_gradients_; }
  /// Gives away the unsharded gradients, rank-major [shards x shard numel], without a copy where
  /// the layout lets; compute parameters lose their .grad.
  at::Tensor take_gradients();
  void drop_gradients();
  /// Shard parameters lose their .grad, whose memory is freed.
  void drop_shard_gradients();
  /// Adds `reduced` ([shard numel], reduce dtype) to the shard gradients of the parameters in
  /// `used`.
  void accumulate(const at::Tensor& reduced, const std::vector<bool>& used);
  /// Sums over the shards alone, without the replicas, wait for a later reduction: what is added up
  /// here goes into the next one by `add_partial`. In the reduction's stream.
  void hold_partial(const at::Tensor& reduced);
  void add_partial(const at::Tensor& reduced);
  /// On the caller's thread, for each: which parameters were used, in what is held too.
  UsedParams used_with_partial(UsedParams used, bool holds);
  const UsedParams& all_used() const { return all_used_; }
  /// Shard gradients in the compute dtype; the next accumulate starts from them.
  void lower_gradients();
  /// The shard gradients of all ranks as full tensors; undefined for a parameter that has none on
  /// any rank, zeros where only some ranks have one. Collective.
  std::vector<at::Tensor> full_gradients(Communicator& comm, const CommTag& tag);

 private:
  void register_tensors(bool shards);
  void add_to_gradients(const at::Tensor& reduced);
  /// What one gather fills, and the tensors over it, which stay: storages are refilled.
  struct FullMemory {
    std::vector<RefillBuffer> buffers;
    std::vector<at::Tensor> tensors;  // the buffers'
    RefillBuffer rank_major;          // per-parameter layout: the collective's output
    at::Tensor own_slot;              // this rank's part of that output
    std::vector<at::Tensor> views;    // of each parameter, full shape
  };
  void make_memory(FullMemory& memory, at::ScalarType dtype);
  FullMemory& memory(bool full_precision);
  /// Where the collective puts what it gathered, rank-major.
  RefillBuffer& gather_output(FullMemory& memory) {
    return layout_->in_place() ? memory.buffers[0] : memory.rank_major;
  }
  void spread(FullMemory& memory);
  std::uint64_t change_sum() const;

  std::vector<Param> params_;
  std::unique_ptr<UnitLayout> layout_;
  GroupDtypes dtypes_;
  c10::Device device_;
  std::shared_ptr<UnitGroups> comms_;
  bool resident_;

  at::Tensor shard_buffer_;
  FullMemory full_;     // compute dtype
  FullMemory precise_;  // stored dtype; made when first asked for
  RefillBuffer part_;   // compute dtype, between a forward and its backward
  bool attached_ = false;
  bool attached_precise_ = false;
  std::uint64_t gathered_changes_ = 0;

  std::vector<RefillBuffer> grads_;
  std::vector<at::Tensor> grad_tensors_;  // the buffers'
  bool has_gradients_ = false;
  at::Tensor shard_grad_buffer_;
  at::Tensor partial_;       // reduce dtype
  UsedParams partial_used_;  // null: nothing is held
  UsedParams all_used_;

  std::vector<at::Tensor> on_host_;  // full values of each parameter; empty: on the device
  // Per parameter: the compute parameter's .grad while no gradient is exposed.
  std::vector<at::Tensor> no_grad_here_;
  bool gradients_exposed_ = false;
};

}  // namespace tessera::fsdp
